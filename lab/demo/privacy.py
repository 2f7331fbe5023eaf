"""What the demo says about privacy: the guarantee in words, and what the silos' ledgers charged.

Covered: the four modes. Not covered: what a guarantee is worth against a given attack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dp.accounting.compose import Epsilon
from dp.config import ADJACENCY
from lab.demo.choices import Privacy
from lab.demo.outcome import Outcome
from lab.demo.scenario import SILOS, DemoSettings

__all__ = ["largest_spent", "meaning", "print_budgets", "rows_of_budgets", "summary"]

_MEANING: Final = {
    Privacy.RECORD_LOCAL: (
        "each task, with all its tries, is protected by its own silo: also against the coordinator "
        "and all other silos together. Silos as wholes are protected by masking."
    ),
    Privacy.RECORD_DISTRIBUTED: (
        "each task, with all its tries, is protected by the noise of all silos together: against "
        "the coordinator and one colluding silo. Silos as wholes are protected by masking."
    ),
    Privacy.SILO: (
        "no meaningful privacy at four silos: masking is what protects you here. With so few silos "
        "no noise gives a useful epsilon and still lets anything be learned."
    ),
    Privacy.NONE: (
        "no noise, so nothing is claimed: masking hides each silo's part of a sum, and the sums "
        "themselves are exact."
    ),
}


def meaning(privacy: Privacy | str) -> str:
    """What the guarantee is, in words."""
    return _MEANING[Privacy(privacy)]


def summary(outcome: Outcome, settings: DemoSettings) -> str:
    """Mode, unit, noise and the largest epsilon that any silo's ledger was charged."""
    recipe = settings.recipe
    spent = largest_spent(outcome)
    unit = outcome.epsilon_unit or ("task" if recipe.at_record_level else "silo")
    return (
        f"mode {recipe.mode.value}: noise multiplier z = {recipe.noise_multiplier:g} on a clip of "
        f"{recipe.clip_l2:g}; epsilon spent for each {unit} = {_number(spent)} of a cap of "
        f"{_number(outcome.epsilon_cap)} at delta = {outcome.delta:g} ({ADJACENCY})"
    )


def largest_spent(outcome: Outcome) -> float:
    """Of any silo's ledger, for the plan's own unit; the coordinator's count if there is none."""
    charged = [
        float(row["epsilon_spent"]["epsilon"])
        for rows in outcome.budgets.values()
        for row in rows
        if row["unit"] == outcome.epsilon_unit
    ]
    return max(charged, default=outcome.epsilon)


def rows_of_budgets(outcome: Outcome) -> list[tuple[str, str, str, str]]:
    """Silo, unit, epsilon spent and cap, from the silos' own ledgers."""
    return [
        (silo_id, str(row["unit"]), _spent(row["epsilon_spent"]), _number(row["epsilon_cap"]))
        for silo_id in SILOS
        for row in outcome.budgets.get(silo_id, ())
    ]


def _spent(shown: Mapping[str, Any]) -> str:
    return str(
        Epsilon(
            float(shown["epsilon"]),
            partial_releases=shown["partial_releases"],
            unprotected_releases=shown["unprotected_releases"],
        )
    )


def print_budgets(outcome: Outcome, console: Console) -> None:
    """A table of the ledgers; none where nothing was charged."""
    rows = rows_of_budgets(outcome)
    if not rows:
        return
    table = Table(
        title=f"Epsilon ({ADJACENCY}), from each silo's own ledger",
        title_justify="left",
        min_width=48,
    )
    for column in ("silo", "unit", "spent", "cap"):
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _number(value: float | str) -> str:
    number = float(value)
    return f"{number:.3g}" if math.isfinite(number) else "unbounded"
