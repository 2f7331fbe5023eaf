"""The budget as people read it: one table for the kinds of unit, one line for each run.

Covered: widths, wording. Not covered: the figures (``silo_agent.books.budget``).
"""

from __future__ import annotations

from collections.abc import Sequence

from silo_agent.books.budget import Budget, RunBudget

__all__ = ["lines"]

_HEAD = ("unit", "spent", "reserved", "left", "cap")


def lines(budget: Budget) -> list[str]:
    """The whole budget, line by line."""
    rows = [
        (row.unit, *(_figure(value) for value in values))
        for row in budget.units
        for values in (
            (row.epsilon_spent, row.epsilon_reserved, row.epsilon_left, row.epsilon_cap),
        )
    ]
    shown = [f"epsilon at delta {budget.delta:g}"]
    if rows:
        shown += _table((_HEAD, *rows))
    else:
        shown.append("  nothing was charged, and privacy.epsilon_caps allows nothing")
    shown += [_run(row) for row in budget.runs]
    if budget.unprotected:
        shown.append(f"{budget.unprotected} upload(s) in mode none, which no epsilon describes")
    if budget.ledger_seq is not None and budget.ledger_sha256 is not None:
        shown.append(f"ledger: record {budget.ledger_seq}, {budget.ledger_sha256[:16]}")
    return shown


def _run(row: RunBudget) -> str:
    alone = ", ".join(f"{unit} {_figure(cost)}" for unit, cost in row.epsilons.items())
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
