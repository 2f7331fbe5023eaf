"""docs/parts.md lists every row of the page of methods, and what it says runs is a recipe."""

from __future__ import annotations

import re
import tomllib

import pytest

from evolution.envs.catalogue import BUILT_IN
from federation.plan.cards import Normaliser
from federation.plan.methods import METHODS, PARTS
from federation.plan.recipe import PartsSection, recipe_of
from tests.kit.paths import ROOT
from tests.kit.silo_agent.policy_samples import make_plan

PAGE = (ROOT / "docs" / "parts.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", PAGE, re.MULTILINE)
STANDING = {"runs", "beside", "out of domain", "survey", "not yet"}
BEYOND_THE_PAGE = {"uniform", "once", "shortest-success", "all-tries", "group-relative", "nll",
                   "batch-scaled", "token-rewards", "clipped", "ppo", "not-worse"}  # fmt: skip
"""Parts of Fed-SE, GRPO, RLOO, REINFORCE++ and PPO."""


def plan_of(cell):
    """The keys that a row names, as `[evolve]` and `[evolve.parts]` of a plan have them."""
    keys = re.findall(r"`([a-z]+ = [^`]+)`", cell)
    found = tomllib.loads("\n".join(key for key in keys if not key.startswith("learn")))
    return found.pop("method"), found


def test_every_row_of_the_page_is_there_once():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 54))
    assert {standing.strip() for _, _, standing, _ in ROWS} == STANDING


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row[2].strip() == "runs"], ids=lambda row: row[0]
)
def test_what_is_said_to_run_is_a_recipe_with_that_part(row):
    method, parts = plan_of(row[3])
    recipe = recipe_of(method, PartsSection.model_validate(parts))
    assert set(parts) <= set(recipe.parts)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row[2].strip() == "runs"], ids=lambda row: row[0]
)
def test_what_is_said_to_run_is_a_plan(row):
    """With a window of two rounds, four tries a task, and the keys of the row."""
    keys = re.findall(r"`([a-z_]+ = [^`]+)`", row[3])
    method, parts = plan_of(row[3])
    evolve = [key for key in keys if key.split(" = ")[0] not in {"method", *parts}]
    if recipe_of(method, PartsSection.model_validate(parts)).normaliser is Normaliser.CONSTANT:
        evolve.append("nominal_tokens = 8")
    places = re.findall(r"environment `([a-z]+)`", row[3])
    assert set(places) <= set(BUILT_IN.names)
    chosen = [key for key in keys if key.split(" = ")[0] in parts]
    plan = make_plan(
        ('method = "fed-se"', "\n".join([f'method = "{method}"', "window = 2", *evolve])),
        ("[aggregation]", "\n".join(["[evolve.parts]", *chosen, "[aggregation]"])),
    )
    assert set(parts) <= set(plan.recipe.parts)


def test_every_part_of_the_page_is_named_on_it():
    used = set()
    for _, _, standing, cell in ROWS:
        if standing.strip() == "runs":
            method, parts = plan_of(cell)
            recipe = recipe_of(method, PartsSection.model_validate(parts))
            used |= {part.card.name for part in recipe.parts.values()}
    for card in METHODS.values():
        if f"`{card.name}`" in PAGE:
            used |= set(card.parts.values())
    named = {name for name in PARTS if f"`{name}`" in PAGE}
    assert set(PARTS) - used - named - BEYOND_THE_PAGE == set()
