"""Fed-SE where units are protected: what one unit, or the machine, can break, and how far."""

from __future__ import annotations

import dataclasses
import sqlite3

import numpy as np
import pytest

from evolution.envs.catalogue import Catalogue
from evolution.errors import EvolverSetupError, NotWantedError
from evolution.local_time import while_wanted
from evolution.memory.memory import Memory
from evolution.methods import exploring
from evolution.methods.recipe import RecipeEvolver
from evolution.rollout.engine import EngineSpec
from evolution.rollout.episodes import EpisodeBatch
from evolution.train.sft import RowTerms
from tests.kit.evolution.record_round import (
    LOCAL,
    SHARED,
    STEPS,
    population,
    step_work,
    summed,
    work,
)

SURE = dataclasses.replace(SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0))


@pytest.mark.parametrize("backend", ["loop", "hooks"])
@pytest.mark.parametrize("how", ["gradient", "row"])
def test_one_unit_that_fails_moves_the_sum_by_its_own_clip_at_most(
    make_silo, adapter, monkeypatch, tmp_path, *, how, backend
):
    silo = make_silo(SURE, options={"gradient_backend": backend})
    silo.evolve(work(adapter, spec=SURE)[0])
    whole = summed(silo.unit_sum(step_work(adapter, spec=SURE))).astype(np.int64)
    unit = next(iter(population(silo).rows_of))
    if how == "row":
        meddler = sqlite3.connect(tmp_path / "silo" / "successes.sqlite")
        with meddler:
            meddler.execute("UPDATE tried SET payload = x'ff' WHERE task_id = ?", (int(unit.key),))
        meddler.close()
    else:
        collate = RowTerms.collate

        def raising(self, rows):
            if any(row.unit == unit for row in rows):
                raise MemoryError("private data did this")
            return collate(self, rows)

        monkeypatch.setattr(RowTerms, "collate", raising)
    without = summed(silo.unit_sum(step_work(adapter, spec=SURE))).astype(np.int64)
    # With float32 batches the others may round another way, by a grid step each.
    slack = 0 if backend == "loop" else 8 * np.sqrt(whole.size)
    assert 0 < np.linalg.norm(whole - without) <= SURE.grid + slack
    assert without.any()


@pytest.mark.parametrize(
    "broken",
    [(exploring, "run_episodes"), (RecipeEvolver, "_population")],
    ids=["playing", "reading"],
)
def test_where_exploring_fails_as_a_whole_the_charged_steps_are_noise(
    make_silo, adapter, ledger, monkeypatch, broken
):
    def fail(*_, **__):
        raise MemoryError("the machine did this")

    monkeypatch.setattr(*broken, fail)
    one, reserved = work(adapter, ledger)
    evolution = make_silo().evolve(one)
    assert reserved[0].steps_left == 0
    assert evolution.metrics["optimiser_steps"] == STEPS
    assert evolution.metrics["units_with_rows"] == 0
    # Not one coordinate is left without noise.
    assert all(d.all() for d in evolution.delta.values())


@pytest.mark.parametrize("charged", [0, 1], ids=["exploring", "training"])
def test_work_that_nobody_wants_is_no_failure_that_noise_covers(
    make_silo, adapter, ledger, charged
):
    """Without its end being told from a failure the round would be charged and trained."""
    one, reserved = work(adapter, ledger)

    def wanted():
        return len(reserved) < charged

    with while_wanted(wanted), pytest.raises(NotWantedError):
        make_silo().evolve(one)
    assert ledger.debits_of_run("r").trainings == charged
    assert all(receipt.steps_left == STEPS for receipt in reserved)


def test_a_success_that_cannot_be_stored_costs_its_own_task_alone(
    make_silo, adapter, ledger, monkeypatch
):
    whole = make_silo(name="whole")
    whole.evolve(work(adapter, ledger)[0])
    bad, *others = {t.task.task_id for t in whole._memory.select(round_index=0)}
    add = Memory.add

    def full(self, trajectories):
        rows = list(trajectories)
        if any(row.task.task_id == bad for row in rows):
            raise OverflowError("a token that fits no column")
        return add(self, rows)

    monkeypatch.setattr(Memory, "add", full)
    silo = make_silo()
    silo.evolve(work(adapter, ledger)[0])
    assert {t.task.task_id for t in silo._memory.select(round_index=0)} == set(others)


def test_what_cannot_run_is_found_before_exploring_and_charging(
    make_silo, adapter, ledger, monkeypatch
):
    monkeypatch.setattr(exploring, "run_episodes", pytest.fail)
    coarse = dataclasses.replace(LOCAL, grid=16)
    users = dataclasses.replace(LOCAL, unit="user")
    for spec, match in ((coarse, "cannot be taken"), (users, "subject")):
        silo = make_silo(spec, name=match)
        one, reserved = work(adapter, ledger, spec=spec)
        with pytest.raises(EvolverSetupError, match=match):
            silo.evolve(one)
        assert reserved == []
        assert silo._memory.explored(round_index=0) == []


@pytest.mark.parametrize("backend", ["hooks", "functorch"])
def test_in_16_bits_units_are_computed_one_at_a_time_or_not_at_all(make_silo, backend):
    options = {"gradient_backend": backend}
    for spec in (LOCAL, SHARED):
        with pytest.raises(EvolverSetupError, match="neighbour"):
            make_silo(spec, dtype="bfloat16", options=options)
    make_silo(None, dtype="bfloat16", options=options)


@pytest.mark.parametrize(
    ("dtype", "batches"), [("float32", {(64, False)}), ("bfloat16", {(2, True)})]
)
def test_in_16_bits_a_batch_holds_the_tries_of_one_task(
    make_silo, adapter, ledger, monkeypatch, *, dtype, batches
):
    seen, honest = set(), exploring.run_episodes

    def noted(*args, batch_size, apart, **options):
        seen.add((batch_size, apart))
        return honest(*args, batch_size=batch_size, apart=apart, **options)

    monkeypatch.setattr(exploring, "run_episodes", noted)
    make_silo(dtype=dtype).evolve(work(adapter, ledger)[0])
    assert seen == batches


def test_units_are_not_played_on_a_server_that_one_of_them_could_bring_down(make_silo):
    with pytest.raises(EvolverSetupError, match="kind"):
        make_silo(engine=EngineSpec(kind="openai"))


@pytest.mark.parametrize("spec", [None, SURE])
def test_where_units_are_protected_no_task_makes_an_environment_be_left_alone(
    make_silo, adapter, monkeypatch, spec
):
    """A breaker that one task opened would cost the tasks after it their episodes."""
    made_by = []

    def play(_engine, tasks, *, make_environment, **_):
        made_by.append(make_environment.__self__)
        return EpisodeBatch(tries=(None,) * len(tasks), dropped=len(tasks), environment_steps=0)

    monkeypatch.setattr(exploring, "run_episodes", play)
    catalogue = Catalogue()
    one = work(adapter, spec=spec)[0]
    if spec is None:
        one = dataclasses.replace(one, privacy=None)
    make_silo(spec, catalogue=catalogue).evolve(one)
    assert [known is catalogue for known in made_by] == [spec is None]
