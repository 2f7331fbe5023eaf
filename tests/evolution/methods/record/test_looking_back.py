"""Parts that look back over rounds, through the driver: they learn, and they keep units apart."""

from __future__ import annotations

import dataclasses

import pytest

from evolution.trajectory import EXPERT_ROUND, Step, Task, Trajectory
from federation.plan.recipe import PartChoice, PartsSection, recipe_of
from tests.kit.evolution.record_round import (
    LOCAL,
    REINFORCED,
    SETTINGS,
    SURE,
    population,
    step_work,
    work,
)

APART = [
    ("spear", {}),
    ("sppo", {}),
    ("maxrl", {}),
    ("agentevol", {}),
    ("fed-se", {"credit": "distinct"}),
    ("fed-se", {"credit": "reproduced"}),
    ("grpo", {"credit": "set-diversity"}),
    ("fed-se", {"objective": PartChoice(name="anchored", first=1.0)}),
]
TOGETHER = [
    ("fed-se", {"credit": "echo"}),
    ("fed-se", {"credit": "confident-replay"}),
    ("grpo", {"objective": PartChoice(name="clip-cov", low=-9.0)}),
    ("grpo", {"objective": PartChoice(name="kl-cov", share=0.1)}),
]


def recipe(method, parts):
    chosen = {
        kind: PartChoice(name=one) if isinstance(one, str) else one for kind, one in parts.items()
    }
    return recipe_of(method, PartsSection(**chosen))


def settings_of(made):
    return {**REINFORCED, "normaliser": made.normaliser, "window": 2}


def free(adapter, made, number, **settings):
    plain = work(adapter, round_index=number)[0]
    settings = dataclasses.replace(SETTINGS, **{**settings_of(made), **settings})
    return dataclasses.replace(plain, privacy=None, settings=settings)


@pytest.mark.parametrize(("method", "parts"), [*APART, *TOGETHER], ids=str)
def test_two_rounds_without_protection_change_the_adapter(make_silo, adapter, method, parts):
    made = recipe(method, parts)
    silo = make_silo(None, recipe=made)
    for number in range(2):
        evolution = silo.evolve(free(adapter, made, number, epochs=2))
        assert any(change.any() for change in evolution.delta.values())
        assert evolution.metrics["selected"] > 0


@pytest.mark.parametrize(("method", "parts"), APART, ids=str)
def test_removing_a_unit_changes_no_bit_of_what_another_comes_to(
    make_silo, adapter, method, parts, monkeypatch
):
    made = recipe(method, parts)
    settings = settings_of(made)
    silo = make_silo(SURE, recipe=made)
    for number in range(2):
        silo.evolve(work(adapter, spec=SURE, round_index=number, **settings)[0])
    asked = step_work(adapter, spec=SURE, round_index=1, **settings)
    silo._trainer.reset(adapter)

    def gradients():
        found = population(silo, 1, **settings)
        backend = silo._descent(asked.settings).gradients(silo._trainer, asked.names)
        made_of = backend.unit_gradients(list(found.rows_of.values()))
        return dict(zip(found.rows_of, (one.tobytes() for one in made_of), strict=True))

    whole = gradients()
    assert len(set(whole.values())) > 1
    victim = next(iter(whole))
    for name in ("groups", "select"):
        read = getattr(silo._memory, name)
        monkeypatch.setattr(
            silo._memory,
            name,
            lambda read=read, **asked: [
                one for one in read(**asked) if str(one.task.task_id) != victim.key
            ],
        )
    assert gradients() == {unit: one for unit, one in whole.items() if unit != victim}


def test_a_unit_of_an_earlier_round_is_replayed_by_itself(make_silo, adapter):
    made = recipe("spear", {})
    silo = make_silo(SURE, recipe=made)
    for number in range(2):
        silo.evolve(work(adapter, spec=SURE, round_index=number, **settings_of(made))[0])
    tried = {str(g.task.task_id) for g in silo._memory.groups(round_index=1)}
    units = population(silo, 1, **settings_of(made)).rows_of
    replayed = {unit: rows for unit, rows in units.items() if unit.key not in tried}
    assert replayed
    assert all((row.weights > 0).all() for rows in replayed.values() for row in rows)
    # With the window of the present round alone there is nothing to look back on.
    short = population(silo, 1, **{**settings_of(made), "window": 1}).rows_of
    assert {unit.key for unit in short} <= tried


@pytest.mark.parametrize(("method", "parts"), [APART[0], APART[1], APART[-1]], ids=str)
def test_the_charged_steps_are_taken(make_silo, adapter, ledger, method, parts):
    made = recipe(method, parts)
    asked, reserved = work(adapter, ledger, **settings_of(made))
    evolution = make_silo(LOCAL, recipe=made).evolve(asked)
    assert len(reserved) == 1
    assert evolution.metrics["units_with_rows"] > 0
    assert evolution.metrics["null_units"] == 0


def demonstration():
    step = Step(
        observation="", action="", context_ids=(1, 2), action_ids=(7, 1), action_logprobs=(0.0, 0.0)
    )
    return Trajectory(
        task=Task(environment="coin", task_id=0),
        steps=(step,),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=EXPERT_ROUND,
    )


@pytest.mark.parametrize("credit", ["one-per-task", "distinct", "reproduced", "confident-replay"])
def test_demonstrations_count_where_the_plan_says_so(make_silo, adapter, credit):
    made = recipe("fed-se", {"credit": credit})
    silo = make_silo(None, recipe=made)
    silo._memory.add_expert([demonstration()])
    # Nothing is played: what there is to learn from is what was shown.
    selected = [
        silo.evolve(free(adapter, made, 0, explore=False, use_expert=said)).metrics["selected"]
        for said in (True, False)
    ]
    assert selected == [1, 0]


@pytest.mark.parametrize("credit", ["one-per-task", "distinct", "reproduced"])
def test_demonstrations_belong_to_no_unit(make_silo, adapter, credit):
    made = recipe("fed-se", {"credit": credit})
    silo = make_silo(SURE, recipe=made)
    silo._memory.add_expert([demonstration()])
    silo.evolve(work(adapter, spec=SURE, **settings_of(made))[0])
    rows = population(silo, **settings_of(made)).rows_of
    names = {row.name for own in rows.values() for row in own}
    assert names
    assert demonstration().conversation_sha256 not in names
