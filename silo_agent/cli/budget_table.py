"""What ``chorale-silo budget`` shows.

Covered: the table and its lines. Not covered: the figures (``silo_agent/books/budget.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dp.config import ADJACENCY
from silo_agent.books.budget import Budget, RunBudget

__all__ = ["budget_lines"]

_HEAD: Final = ("unit", "reserved", "left", "cap", "spent")


def budget_lines(budget: Budget) -> list[str]:
    """The budget for people: one table for the kinds of unit, one line for each run."""
    rows = [
        (
            row.unit,
            _figure(row.epsilon_reserved),
            *(
                (_figure(row.epsilon_left), _figure(row.epsilon_cap))
                if row.epsilon_cap > 0.0
                else ("-", "no cap")
            ),
            str(row.epsilon_spent),
        )
        for row in budget.units
    ]
    shown = [f"epsilon at delta {budget.delta:g}, {ADJACENCY}"]
    if rows:
        shown += _table((_HEAD, *rows))
    else:
        shown.append("  nothing was charged, and privacy.epsilon_caps allows nothing")
    if budget.carried:
        before = ", ".join(f"{unit} {found}" for unit, found in budget.carried.items())
        shown.append(f"carried from before: epsilon alone {before}")
    for row in budget.runs:
        shown.append(_run_line(row))
        if row.trainings_beyond:
            shown.append(
                f"  {row.trainings_beyond} local training(s) charged beyond the rounds that "
                "released: one that a crash or the end of its run cut short stays charged, and a "
                "round that is trained again is charged again"
            )
    if budget.unprotected:
        shown.append(f"{budget.unprotected} upload(s) in mode none, which no epsilon describes")
    if budget.ledger_seq is not None and budget.ledger_sha256 is not None:
        shown.append(f"ledger: record {budget.ledger_seq}, {budget.ledger_sha256[:16]}")
    return shown


def _run_line(row: RunBudget) -> str:
    alone = ", ".join(f"{unit} {cost}" for unit, cost in row.epsilons.items())
    counts = f"{row.attempts} upload(s)"
    if row.trainings:
        counts += f", {row.trainings} local training(s)"
    if row.unprotected:
        counts += f", {row.unprotected} without noise"
    return f"{row.run}: epsilon alone {alone or 'none'}; charged for {counts}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _figure(value: float) -> str:
    return f"{value:.4g}"
