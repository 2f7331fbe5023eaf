"""What a dry round proposes for a plan's times: counted for all units, whatever they are."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from dp.config import RecordSpec
from evolution.envs.catalogue import BUILT_IN
from evolution.errors import EvolverSetupError
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import TrainerSpec
from federation.plan.plan import UNIT_SHARE
from silo_agent.doctor import worst_case as measured
from silo_agent.doctor.worst_case import rows_of_step, worst_case
from tests.kit.silo_agent.policy_samples import MODES, make_plan


def plan_of(mode, *changes):
    return make_plan(
        *MODES[mode],
        ("tries_per_task = 4", "tries_per_task = 4\nmax_sequence_tokens = 64\nmax_new_tokens = 4"),
        *changes,
    )


@pytest.fixture
def config(tiny_base):
    return SimpleNamespace(
        base_model=tiny_base,
        threads=1,
        rollout=EngineSpec(),
        training=TrainerSpec(),
        catalogue=lambda: BUILT_IN,
        options=lambda _method: {},
    )


@pytest.mark.parametrize(
    ("mode", "target"), [("record_local", '["v_proj"]'), ("record_distributed", '"all-linear"')]
)
def test_the_longest_work_is_measured_and_counted_up(config, mode, target):
    plan = plan_of(mode, ('dtype = "float32"', f'dtype = "float32"\ntarget = {target}'))
    found = worst_case(config, plan)
    assert found.explore_s > 0
    assert found.step_s > 0
    local = mode == "record_local"
    steps = plan.spec.record.steps_per_round
    whole = found.explore_s + (steps * found.step_s if local else 0.0)
    # What a single task's environment may take stays beside it.
    assert found.ready_after_s * (1 - UNIT_SHARE) >= whole
    assert (found.step_answer_after_s == 0) is local
    assert found.step_answer_after_s * (1 - UNIT_SHARE) >= (0 if local else found.step_s)
    short = dataclasses.replace(found, ready_after_s=31)
    assert "ready_after_s" in short.missing(plan)


def test_a_step_is_counted_with_as_many_rows_as_its_units_can_have():
    record = RecordSpec(sampling_rate=0.25, expected_units=16, steps_per_round=3)
    wide = ("ready_after_s = 30", "ready_after_s = 30")
    every = ('environments = ["craft"', 'best_per_task = false\nenvironments = ["craft"')
    # B_max is 48, and there are 32 tasks with four tries each.
    assert record.max_units == 48
    assert rows_of_step(plan_of("record_local", wide), record) == 32
    assert rows_of_step(plan_of("record_local", every), record) == 128
    few = dataclasses.replace(record, expected_units=1)
    assert rows_of_step(plan_of("record_local"), few) == few.max_units == 9
    assert rows_of_step(plan_of("record_local", every), few) == 9 * 4
    # All tasks may be one user's.
    mine = ('mode = "record_local"', 'unit = "user"\nmode = "record_local"')
    assert rows_of_step(plan_of("record_local", mine, every), few) == 128


def test_a_slower_machine_is_proposed_more(config, monkeypatch):
    monkeypatch.setattr(measured, "_explore_s", lambda *_: (100.0, 64))
    monkeypatch.setattr(measured, "_step_s", lambda *_, **__: (10.0, 5.0))
    local = worst_case(config, plan_of("record_local"))
    # The tests of shapes are made once in a round, and any step may be the first that needs them.
    assert local.ready_after_s == 2 * (100 + 3 * 10 + 5)
    distributed = worst_case(config, plan_of("record_distributed"))
    assert (distributed.ready_after_s, distributed.step_answer_after_s) == (200, 30)
    assert distributed.missing(plan_of("record_distributed")) == (
        "ready_after_s",
        "step_answer_after_s",
    )


@pytest.mark.parametrize("mode", ["silo", "none"])
def test_where_no_time_is_demanded_nothing_is_measured(config, mode):
    with pytest.raises(EvolverSetupError, match="nothing to measure"):
        worst_case(config, plan_of(mode))


@pytest.mark.parametrize("tokens", [2, 33])
def test_of_the_measured_row_every_token_but_the_first_is_the_agents(tokens):
    row = measured._longest_row(tokens, frozenset())
    assert (len(row), row.mask.tolist()) == (tokens, [False] + [True] * (tokens - 1))
