"""One unit that sleeps, against what noise is made for: at most C, in both record modes."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from dp.noise.unit_sum import UnitSum
from evolution.errors import LocalTimeError
from evolution.local_time import local_time
from evolution.methods import exploring
from tests.kit.evolution.record_round import (
    LOCAL,
    SHARED,
    Coin,
    population,
    step_work,
    summed,
    work,
)

TRY_S = 1.0


def every_unit(spec):
    """Each step takes all units, and any step may be compared with any other."""
    record = dataclasses.replace(spec.record, sampling_rate=1.0)
    return dataclasses.replace(spec, record=record)


@pytest.fixture
def asleep(monkeypatch):
    """Names the task that does not come back before the test is over."""
    wake, sleeper, honest = threading.Event(), [], Coin.step

    def step(self, action):
        if self.task in sleeper:
            wake.wait(60)
        return honest(self, action)

    def reset(self, task_id, honest=Coin.reset):
        self.task = task_id
        return honest(self, task_id)

    monkeypatch.setattr(Coin, "step", step)
    monkeypatch.setattr(Coin, "reset", reset)
    yield sleeper
    wake.set()


def first_sum(silo, adapter, ledger, monkeypatch, spec):
    """The integers of the round's first step, before noise."""
    if spec.mode is SHARED.mode:
        silo.evolve(work(adapter, spec=spec, try_s=TRY_S)[0])
        return summed(silo.unit_sum(step_work(adapter, spec=spec))).astype(np.int64)
    sums, honest = [], UnitSum.add_to

    def noted(self, out):
        sums.append(self._buffer.view(np.int32).astype(np.int64))
        honest(self, out)

    with monkeypatch.context() as patch:
        patch.setattr(UnitSum, "add_to", noted)
        silo.evolve(work(adapter, ledger, spec=spec, try_s=TRY_S)[0])
    return sums[0]


@pytest.mark.parametrize("spec", [LOCAL, SHARED], ids=["record_local", "record_distributed"])
def test_a_unit_that_sleeps_moves_a_steps_sum_by_its_own_clip_at_most(
    make_silo, adapter, ledger, monkeypatch, asleep, *, spec
):
    spec = every_unit(spec)
    awake = make_silo(spec, name="awake")
    whole = first_sum(awake, adapter, ledger, monkeypatch, spec)
    units = population(awake)
    sleeper = next(iter(units.rows_of))
    asleep.append(int(sleeper.key))
    silo = make_silo(spec, name="asleep")
    without = first_sum(silo, adapter, ledger, monkeypatch, spec)
    assert 0 < np.linalg.norm(whole - without) <= spec.grid
    # It is a member all the same, and every other unit has the very same rows.
    after = population(silo)
    assert after.units == units.units
    assert after.rows_of == {u: rows for u, rows in units.rows_of.items() if u != sleeper}
    assert without.any()


@pytest.mark.parametrize("spec", [LOCAL, SHARED], ids=["record_local", "record_distributed"])
def test_a_limit_on_the_whole_would_take_all_units_away_at_once(
    make_silo, adapter, ledger, monkeypatch, asleep, *, spec
):
    """What one sleeping unit does without a clock of its own: all units are gone, not one.

    So work that is over as a whole raises here, and nothing of it leaves the silo.
    """
    spec = every_unit(spec)
    assert asleep == []
    whole = first_sum(make_silo(spec, name="awake"), adapter, ledger, monkeypatch, spec)
    assert np.linalg.norm(whole) > spec.grid

    def over(*_, **__):
        raise LocalTimeError("one unit slept for as long as all may work")

    monkeypatch.setattr(exploring, "run_episodes", over)
    one, reserved = work(adapter, ledger, spec=spec)
    with local_time(1.0), pytest.raises(LocalTimeError):
        make_silo(spec).evolve(one)
    assert reserved == []
