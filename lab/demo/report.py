"""A finished demo's outcome: kept in a file, and as tables on the terminal.

Covered: what an `Outcome` holds. Not covered: the page (``page.py``); reports across several runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.demo.charts import WHO, cells_of, label, phase_means
from lab.demo.choices import Scenario
from lab.demo.outcome import Cell, Outcome
from lab.demo.privacy import meaning, print_budgets, summary
from lab.demo.scenario import FAMILIES, SILOS, DemoSettings
from lab.demo.verdict import GREEDY_FELL, sentence
from lab.wilson import Interval

__all__ = ["load_outcome", "print_tables", "save_outcome"]


def save_outcome(outcome: Outcome, settings: DemoSettings, path: Path) -> None:
    """Write what ``chorale report`` needs later."""
    content: dict[str, Any] = {
        entry.name: getattr(outcome, entry.name) for entry in fields(outcome)
    }
    content["rates"] = [
        {"who": who, **asdict(cell), **asdict(interval)}
        for who, cells in outcome.rates.items()
        for cell, interval in cells.items()
    ]
    path.write_text(json.dumps({"settings": asdict(settings), "outcome": content}, indent=1))


def load_outcome(path: Path) -> tuple[Outcome, DemoSettings]:
    """Read what :func:`save_outcome` wrote."""
    document = json.loads(path.read_text())
    content = document["outcome"]
    rates: dict[str, dict[Cell, Interval]] = {}
    for row in content.pop("rates"):
        cell = Cell(
            environment=row["environment"], shard=row["shard"], temperature=row["temperature"]
        )
        rates.setdefault(row["who"], {})[cell] = Interval(
            rate=row["rate"], low=row["low"], high=row["high"], episodes=row["episodes"]
        )
    return Outcome(rates=rates, **content), DemoSettings(**document["settings"])


def print_tables(outcome: Outcome, settings: DemoSettings, console: Console) -> None:
    """What was seen, success with intervals, then ε, bytes and seconds."""
    for temperature in (1.0, 0.0):
        if said := sentence(outcome, temperature):
            console.print(said)
    table = Table(
        title="Success on held-out tasks, Wilson 95 % (read from the silos' own files)",
        title_justify="left",
    )
    table.add_column("tasks")
    table.add_column("n", justify="right")
    for title in WHO.values():
        table.add_column(title)
    for cell in cells_of(outcome):
        row = [label(cell), str(outcome.rates["base"][cell].episodes)]
        row += [str(outcome.rates.get(who, {}).get(cell, "")) for who in WHO]
        table.add_row(*row, end_section=False)
    console.print(table)
    if outcome.fell(0.0):
        console.print(GREEDY_FELL)
    alone = Table(title="Each silo alone, judged on all tasks of its slice", title_justify="left")
    alone.add_column("silo")
    pooled_cells = [cell for cell in cells_of(outcome) if cell.shard < 0]
    for cell in pooled_cells:
        alone.add_column(label(cell))
    for silo_id in SILOS:
        rates = outcome.rates.get(f"alone {silo_id}")
        if rates:
            alone.add_row(silo_id, *(str(rates.get(cell, "")) for cell in pooled_cells))
    if alone.row_count:
        console.print(alone)
    _print_own_environment(outcome, settings, console)
    print_budgets(outcome, console)
    console.print(summary(outcome, settings))
    console.print(f"  {meaning(settings.privacy)}")
    console.print(
        f"releases: {len(outcome.rounds)} in {outcome.round_count} rounds; upload per silo and "
        f"release: {outcome.bytes_per_upload / 1024:.0f} KiB"
    )
    phases = ", ".join(f"{k} {v:.1f}" for k, v in phase_means(outcome.rounds).items())
    console.print(f"seconds per round: {phases}")
    stages = ", ".join(f"{k} {v:.0f}" for k, v in outcome.seconds.items())
    console.print(f"seconds in all: {stages}")


def _print_own_environment(outcome: Outcome, settings: DemoSettings, console: Console) -> None:
    """The question a silo asks where everyone has an environment of its own: am I worse off?"""
    if settings.scenario != Scenario.ENVIRONMENTS or "alone" not in outcome.rates:
        return
    table = Table(title="Each silo on its own environment, temperature 1", title_justify="left")
    for column in ("silo", "environment", "alone", "together"):
        table.add_column(column)
    for silo_id, environment in zip(SILOS, FAMILIES, strict=True):
        cell = Cell(environment=environment, shard=-1, temperature=1.0)
        alone = outcome.rates[f"alone {silo_id}"].get(cell, "")
        table.add_row(
            silo_id, environment, str(alone), str(outcome.rates["together"].get(cell, ""))
        )
    console.print(table)
