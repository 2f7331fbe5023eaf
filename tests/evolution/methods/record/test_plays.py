"""Plays through the driver: what they ask for is played, remembered and learned from."""

from __future__ import annotations

import dataclasses

import pytest

from evolution.errors import EvolverSetupError
from federation.plan.recipe import PartChoice, PartsSection, recipe_of
from tests.kit.evolution.record_round import (
    LOCAL,
    REINFORCED,
    SURE,
    Coin,
    population,
    work,
)

PLAIN = {"episodes": 32, "tries_per_task": 4, "window": 2, "max_new_tokens": 3}
OF_ONE_TASK = [{"name": "retry"}, {"name": "retry", "critique": True}, {"name": "repair"}]
OF_A_USER = [
    {"name": "hints"},
    {"name": "experience"},
    {"name": "episodes", "floor": 0.0},
    {"name": "principles"},
]


def recipe(play, method="fed-se"):
    return recipe_of(method, PartsSection(play=PartChoice(**play)))


def free(adapter, number=0, **settings):
    asked = work(adapter, round_index=number, **{**PLAIN, **settings})[0]
    return dataclasses.replace(asked, privacy=None)


def tries(silo, number):
    return [
        one
        for group in silo._memory.groups(round_index=number, window=1)
        for one in group.trajectories
    ]


@pytest.mark.parametrize("play", [*OF_ONE_TASK, *OF_A_USER], ids=str)
def test_a_round_has_the_plans_episodes_and_learns_from_them(make_silo, adapter, play):
    silo = make_silo(None, recipe=recipe(play))
    for number in range(2):
        evolution = silo.evolve(free(adapter, number))
        assert evolution.episodes["coin"] == 32
        assert any(change.any() for change in evolution.delta.values())
    remembered = tries(silo, 1)
    assert len(remembered) == 32
    # In the second round there is something to help with.
    helped = [one for one in remembered if one.steps[0].bare_ids is not None]
    assert bool(helped) == (play["name"] != "repair")
    assert all(one.helped_by for one in helped)
    for one in helped:
        assert len(one.steps[0].context_ids) > len(one.steps[0].bare_ids)


def test_what_helped_is_not_in_a_row(make_silo, adapter):
    silo = make_silo(None, recipe=recipe({"name": "experience"}))
    for number in range(2):
        silo.evolve(free(adapter, number))
    rows = silo._credit(free(adapter, 1), silo._memory.groups(round_index=1, window=1), epoch=0)
    bare = {
        one.conversation_sha256: one.steps[0]
        for one in tries(silo, 1)
        if one.steps[0].bare_ids is not None
    }
    found = [row for row in rows if row.name in bare]
    assert found
    for row in found:
        first = bare[row.name]
        assert tuple(row.token_ids) == (*first.bare_ids, *first.action_ids)


def test_self_distillation_runs_and_says_how_far_the_teacher_is(make_silo, adapter):
    made = recipe_of("self-distil", PartsSection())
    silo = make_silo(None, recipe=made)
    settings = {**REINFORCED, "normaliser": made.normaliser}
    silo.evolve(free(adapter, 0, **settings))
    # Success is rare enough that some tasks need a hint, and common enough that a hint may help.
    figures = silo.evolve(free(adapter, 1, **settings)).metrics
    assert figures["groups"] == 8
    if figures["selected"]:
        assert figures["teacher_gap"] != 0.0


@pytest.mark.parametrize("play", OF_ONE_TASK, ids=str)
def test_removing_one_task_changes_no_bit_of_anothers_gradient(
    make_silo, adapter, play, monkeypatch
):
    silo = make_silo(SURE, recipe=recipe(play))
    silo.evolve(work(adapter, spec=SURE, **PLAIN)[0])
    before = population(silo, **PLAIN)
    assert len(before.rows_of) > 1
    victim = next(iter(before.rows_of))
    groups = silo._memory.groups
    monkeypatch.setattr(
        silo._memory,
        "groups",
        lambda **asked: [g for g in groups(**asked) if str(g.task.task_id) != victim.key],
    )
    after = population(silo, **PLAIN)
    for unit, rows in before.rows_of.items():
        if unit != victim:
            assert after.rows_of[unit] == rows


@pytest.mark.parametrize("play", OF_A_USER, ids=str)
def test_a_unit_is_helped_by_its_own_tries_alone(make_silo, adapter, play, monkeypatch):
    monkeypatch.setattr(Coin, "subjects", True)
    local = dataclasses.replace(LOCAL, mode=SURE.mode, unit="user", record=SURE.record)
    silo = make_silo(local, recipe=recipe(play))
    subject = {}
    for number in range(3):
        silo.evolve(work(adapter, spec=local, round_index=number, **PLAIN)[0])
        subject |= {one.conversation_sha256: one.task.subject for one in tries(silo, number)}
    helped = [one for number in range(3) for one in tries(silo, number) if one.helped_by]
    assert helped
    for one in helped:
        assert {subject[source] for source in one.helped_by} == {one.task.subject}


@pytest.mark.parametrize("play", OF_A_USER, ids=str)
def test_plays_that_look_at_other_tasks_are_refused_where_a_task_is_the_unit(make_silo, play):
    with pytest.raises(EvolverSetupError, match=f"play '{play['name']}' couples 'user'"):
        make_silo(LOCAL, recipe=recipe(play))
