"""GRPO through the driver: it learns, says what it saw, and keeps task groups apart."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dp.config import Mode
from evolution.errors import EvolverSetupError
from federation.plan.recipe import PartChoice, PartsSection, recipe_of
from tests.kit.evolution.record_round import (
    LOCAL,
    REINFORCED,
    SETTINGS,
    SURE,
    population,
    step_work,
    summed,
    work,
)

EVERY = [
    ("grpo", {}),
    ("fedagent", {}),
    ("rloo", {}),
    ("grpo", {"credit": {"scale": "mean"}}),
    ("grpo", {"objective": {"surrogate": "dppo"}}),
    ("grpo", {"objective": {"surrogate": "cispo", "kl": "k3"}}),
    ("grpo", {"objective": {"mask_mismatch": True, "entropy": 0.01}}),
]


def recipe(method="grpo", **options):
    names = {"credit": "group-relative", "objective": "clipped"}
    chosen = {kind: PartChoice(name=names[kind], **given) for kind, given in options.items()}
    return recipe_of(method, PartsSection(**chosen))


def free(adapter, made, **settings):
    settings = {**REINFORCED, "normaliser": made.normaliser, **settings}
    return dataclasses.replace(
        work(adapter)[0], privacy=None, settings=dataclasses.replace(SETTINGS, **settings)
    )


def test_it_learns_from_failures_and_successes_without_a_demonstration(make_silo, adapter):
    made = recipe()
    silo = make_silo(None, recipe=made)
    now, solved = adapter, []
    for number in range(6):
        asked = dataclasses.replace(free(now, made), round=number, adapter_sha256=f"{number}")
        evolution = silo.evolve(asked)
        now = {name: value + evolution.delta.get(name, 0.0) for name, value in now.items()}
        solved.append(evolution.successes["coin"] / evolution.episodes["coin"])
    assert solved[0] < 0.9
    assert solved[-1] > solved[0] + 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_engine_and_trainer_agree_at_the_temperature_that_tries_are_played_at(
    make_silo, adapter, temperature
):
    made = recipe()
    figures = make_silo(None, recipe=made).evolve(free(adapter, made, temperature=temperature))
    said = figures.metrics
    assert 0 < said["groups_used"] <= said["groups"] == 8
    assert said["groups_used"] < said["selected"] <= 8 * said["groups_used"]
    # One step: the policy is the one that played, and φ_t is the reference.
    assert said["optimiser_steps"] == 1
    assert said["mismatch"] < 1e-8
    assert said["ratio_min"] == pytest.approx(1.0, abs=1e-3)
    assert said["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert said["kl"] == said["clip_low"] == said["clip_high"] == 0.0
    assert 0.0 < said["entropy"] < math.log(1000)


def test_a_second_pass_has_left_the_policy_that_played(make_silo, adapter):
    made = recipe()
    said = make_silo(None, recipe=made).evolve(free(adapter, made, epochs=3)).metrics
    assert said["optimiser_steps"] == 3
    assert said["ratio_min"] < 0.99
    assert said["ratio_max"] > 1.01
    assert said["kl"] > 0
    assert said["mismatch"] < 1e-8


def test_without_contrast_nothing_changes(make_silo, adapter):
    made = recipe()
    silo = make_silo(None, recipe=made)
    for environment in silo._environments.values():
        type(environment).solvable = False
    try:
        evolution = silo.evolve(free(adapter, made))
    finally:
        for environment in silo._environments.values():
            type(environment).solvable = True
    assert not any(change.any() for change in evolution.delta.values())
    assert (evolution.metrics["groups"], evolution.metrics["groups_used"]) == (8, 0)


@pytest.mark.parametrize(("method", "options"), EVERY, ids=str)
def test_removing_one_group_changes_no_bit_of_anothers_gradient(
    make_silo, adapter, method, options, monkeypatch
):
    made = recipe(method, **options)
    settings = {**REINFORCED, "normaliser": made.normaliser}
    silo = make_silo(SURE, recipe=made)
    silo.evolve(work(adapter, spec=SURE, **settings)[0])
    asked = step_work(adapter, spec=SURE, **settings)
    silo._trainer.reset(adapter)

    def gradients():
        found = population(silo, **settings)
        backend = silo._descent(asked.settings).gradients(silo._trainer, asked.names)
        made_of = backend.unit_gradients(list(found.rows_of.values()))
        return dict(zip(found.rows_of, (one.tobytes() for one in made_of), strict=True))

    whole = gradients()
    assert len(whole) > 1
    victim = next(iter(whole))
    groups = silo._memory.groups
    monkeypatch.setattr(
        silo._memory,
        "groups",
        lambda **asked: [g for g in groups(**asked) if str(g.task.task_id) != victim.key],
    )
    without = gradients()
    assert without == {unit: one for unit, one in whole.items() if unit != victim}
    assert len(set(whole.values())) == len(whole)


def test_under_record_local_the_steps_are_charged_and_the_delta_is_noisy(
    make_silo, adapter, ledger
):
    made = recipe()
    asked, reserved = work(adapter, ledger, **REINFORCED, normaliser=made.normaliser)
    evolution = make_silo(LOCAL, recipe=made).evolve(asked)
    assert len(reserved) == 1
    assert evolution.metrics["optimiser_steps"] == LOCAL.record.steps_per_round
    assert evolution.metrics["units_with_rows"] > 0
    assert any(change.any() for change in evolution.delta.values())


def test_under_record_distributed_a_group_moves_the_sum_by_no_more_than_the_clip(
    make_silo, adapter, monkeypatch
):
    made = recipe()
    settings = {**REINFORCED, "normaliser": made.normaliser}
    silo = make_silo(SURE, recipe=made)
    silo.evolve(work(adapter, spec=SURE, **settings)[0])
    whole = summed(silo.unit_sum(step_work(adapter, spec=SURE, **settings)))
    victim = next(iter(population(silo, **settings).rows_of))
    groups = silo._memory.groups
    monkeypatch.setattr(
        silo._memory,
        "groups",
        lambda **asked: [g for g in groups(**asked) if str(g.task.task_id) != victim.key],
    )
    moved = summed(silo.unit_sum(step_work(adapter, spec=SURE, **settings)))
    assert 0 < float(np.linalg.norm((whole - moved).astype(np.float64))) <= SURE.grid * 1.001


def test_what_couples_groups_is_refused_with_its_reason(make_silo):
    scaled = recipe_of("grpo", PartsSection(credit=PartChoice(name="batch-scaled")))
    with pytest.raises(EvolverSetupError, match=r"credit 'batch-scaled' couples 'all'"):
        make_silo(LOCAL, recipe=scaled)
    by_tokens = recipe_of("grpo", PartsSection(), "batch_tokens")
    (why,) = by_tokens.refusals(Mode.RECORD_LOCAL, "task")
    assert why.startswith("evolve.normaliser: batch_tokens divides by what all tries")
    assert not by_tokens.refusals(Mode.SILO, "task")
    assert not recipe_of("grpo", PartsSection(), "constant").refusals(Mode.RECORD_LOCAL, "task")
