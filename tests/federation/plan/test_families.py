"""A plan's families follow from its text, on any machine."""

from __future__ import annotations

import pytest

from federation.plan.families import families_of, family_of_name
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg.bounds import require_families
from tests.kit.paths import ROOT

DEMO = (ROOT / "deploy" / "examples" / "plan-demo-shards.toml").read_bytes()


def _plan(*environments: str) -> Plan:
    plan = read_plan(DEMO)
    evolve = plan.evolve.model_copy(update={"environments": environments})
    return plan.model_copy(update={"evolve": evolve})


def test_families_are_the_names_in_order_and_the_aliases_of_foreign_environments() -> None:
    assert families_of(_plan("wordle", "openenv:calendar", "craft")) == (
        "calendar",
        "craft",
        "wordle",
    )
    assert families_of(_plan("gym:calendar", "openenv:calendar")) == ("calendar",)


def test_a_plan_without_environments_is_about_the_constant_family() -> None:
    assert families_of(_plan()) == ("constant",)


@pytest.mark.parametrize("name", ["a:", "a:-b", "a:/", "n" * 128, "a:" + "n" * 126])
def test_every_name_that_a_plan_may_hold_gives_a_family_that_a_descriptor_may(name: str) -> None:
    require_families(families_of(_plan(name)), "families")
    assert family_of_name(name)
