"""Fed-SE where units inside the silo are protected: population, rows and steps."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from dp.steps.units import UnitId
from evolution.errors import EvolverSetupError
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.sft import RowTerms
from tests.kit.evolution.record_round import (
    ALPHA,
    LOCAL,
    RANK,
    SHARED,
    STEPS,
    Coin,
    population,
    step_work,
    summed,
    work,
)


def test_the_steps_are_charged_after_exploring_and_all_of_them_run(
    make_silo, adapter, ledger, monkeypatch
):
    order = []
    silo = make_silo()
    explore, descend = silo._explorer.explore, silo._trainer.descend
    monkeypatch.setattr(
        silo,
        "_explorer",
        SimpleNamespace(explore=lambda *a, **k: (order.append("explore"), explore(*a, **k))[1]),
    )
    monkeypatch.setattr(
        silo._trainer, "descend", lambda *a, **k: (order.append("train"), descend(*a, **k))[1]
    )
    one, reserved = work(adapter, ledger)
    privacy = dataclasses.replace(
        one.privacy, reserve=lambda: (order.append("reserve"), one.privacy.reserve())[1]
    )
    evolution = silo.evolve(dataclasses.replace(one, privacy=privacy))
    assert order == ["explore", "reserve", "train"]
    assert [receipt.steps_left for receipt in reserved] == [0]
    assert evolution.metrics["population"] == 8
    assert 1 < evolution.metrics["units_with_rows"] <= 8
    assert all(d.dtype == np.float32 for d in evolution.delta.values())
    # Three Adam steps of 0.01 each move every coordinate by 0.03 at most.
    assert 0.01 < max(np.abs(d).max() for d in evolution.delta.values()) < 0.0301


@pytest.mark.parametrize("backend", ["loop", "hooks", "functorch"])
def test_an_adapter_on_one_layer_type_is_noised_and_moved_alone(
    make_silo, tiny_base, ledger, backend
):
    some = initial_adapter(tiny_base, RANK, ALPHA, 0, ("v_proj",))
    silo = make_silo(target=("v_proj",), options={"gradient_backend": backend})
    evolution = silo.evolve(work(some, ledger)[0])
    assert evolution.delta.keys() == some.keys()
    assert all(delta.any() for delta in evolution.delta.values())
    assert silo._trainer.adapter().keys() == some.keys()


def test_without_a_success_the_noisy_steps_still_run(make_silo, adapter, ledger, monkeypatch):
    monkeypatch.setattr(Coin, "solvable", False)
    one, reserved = work(adapter, ledger)
    evolution = make_silo().evolve(one)
    assert evolution.successes == {"coin": 0}
    assert evolution.metrics["population"] == 8
    assert evolution.metrics["units_with_rows"] == 0
    assert evolution.metrics["optimiser_steps"] == STEPS
    assert reserved[0].steps_left == 0
    assert all(d.any() for d in evolution.delta.values())


def test_the_population_does_not_depend_on_success(make_silo, adapter, ledger, monkeypatch):
    lucky = make_silo(name="lucky")
    for index in range(2):
        lucky.evolve(work(adapter, ledger, round_index=index)[0])
    monkeypatch.setattr(Coin, "solvable", False)
    unlucky = make_silo(name="unlucky")
    for index in range(2):
        unlucky.evolve(work(adapter, ledger, round_index=10 + index)[0])
    ours, theirs = population(lucky, 1), population(unlucky, 11)
    assert len(ours.units) == len(theirs.units) == 16
    assert set(ours.rows_of) < set(ours.units)
    assert theirs.rows_of == {}
    again = make_silo(name="again")
    again.evolve(work(adapter, ledger, round_index=20)[0])
    monkeypatch.setattr(Coin, "solvable", True)
    other = make_silo(name="other")
    other.evolve(dataclasses.replace(work(adapter, ledger, round_index=20)[0]))
    assert population(again, 20).units == population(other, 20).units
    assert set(population(lucky, 1, window=1).units) < set(ours.units)


def test_rows_are_the_shortest_success_of_each_task_alone(make_silo, adapter, ledger):
    silo = make_silo()
    silo.evolve(work(adapter, ledger)[0])
    best = population(silo)
    every = population(silo, best_per_task=False)
    assert all(len(rows) == 1 for rows in best.rows_of.values())
    assert set(best.rows_of) == set(every.rows_of)
    for unit, rows in every.rows_of.items():
        assert {row.unit for row in rows} == {unit}
        assert best.rows_of[unit][0] in rows
    assert population(silo, max_sequence_tokens=1).rows_of == {}
    assert "rows redacted" in repr(best)


def test_what_no_released_adapter_played_is_no_row(make_silo, adapter, ledger):
    silo = make_silo()
    silo.evolve(work(adapter, ledger)[0])
    stored = silo._memory.select(round_index=0)
    chosen = population(silo)
    unit = next(iter(chosen.rows_of))
    mine = next(t for t in stored if str(t.task.task_id) == unit.key)
    silo._memory.delete_task(mine.task)
    silo._memory.explore([mine.task], round_index=0, adapter_sha256="0")
    silo._memory.add([dataclasses.replace(mine, adapter_sha256="local")])
    assert unit not in population(silo).rows_of
    assert population(silo).units == chosen.units
    silo._memory.delete_task(mine.task)
    silo._memory.add([mine])
    assert unit not in population(silo).units
    assert unit not in population(silo).rows_of


def test_users_are_units_over_all_their_tasks(make_silo, adapter, ledger, monkeypatch):
    spec = dataclasses.replace(LOCAL, unit="user")
    with pytest.raises(EvolverSetupError, match="subject"):
        make_silo(spec, name="nobody").evolve(work(adapter, ledger, spec=spec)[0])
    monkeypatch.setattr(Coin, "subjects", True)
    silo = make_silo(spec)
    silo.evolve(work(adapter, ledger, spec=spec, round_index=1)[0])
    found = population(silo, 1, unit="user")
    assert set(found.units) == {UnitId("", f"user {index}") for index in range(3)}
    assert sum(map(len, found.rows_of.values())) > len(found.rows_of)


def test_a_shared_step_sums_a_fresh_sample_at_the_steps_adapter(make_silo, adapter):
    silo = make_silo(SHARED)
    evolution = silo.evolve(work(adapter, spec=SHARED)[0])
    assert evolution.episodes == {"coin": 16}
    assert not any(d.any() for d in evolution.delta.values())
    assert evolution.delta.keys() == adapter.keys()
    sums = {summed(silo.unit_sum(step_work(adapter, step=s))).tobytes() for s in range(6)}
    assert len(sums) > 1

    everyone = dataclasses.replace(
        SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0)
    )
    sure = make_silo(everyone, name="sure")
    sure.evolve(work(adapter, spec=everyone)[0])
    one = summed(sure.unit_sum(step_work(adapter, spec=everyone)))
    two = summed(sure.unit_sum(step_work(adapter, spec=everyone)))
    moved = {name: tensor + np.float32(0.05) for name, tensor in adapter.items()}
    other = summed(sure.unit_sum(step_work(moved, spec=everyone)))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert np.linalg.norm(one / SHARED.grid) <= 8
    silent = sure.unit_sum(step_work(adapter, spec=everyone, learn=False))
    assert not summed(silent).any()


def test_a_step_along_the_sum_raises_the_likelihood_of_the_rows(make_silo, adapter):
    spec = dataclasses.replace(
        SHARED,
        clip_l2=10.0,
        grid=1 << 20,
        record=dataclasses.replace(SHARED.record, sampling_rate=1.0),
    )
    silo = make_silo(spec)
    silo.evolve(work(adapter, spec=spec)[0])
    rows = [row for rows in population(silo).rows_of.values() for row in rows]

    def loss(values):
        silo._trainer.reset(values)
        terms = RowTerms(Part.own("nll"))
        sums, _ = terms.sums(silo._trainer._model, *terms.collate(rows))
        return float(sums.detach().sum())

    direction = summed(silo.unit_sum(step_work(adapter, spec=spec))) / spec.grid * spec.clip_l2
    moved, start = {}, 0
    for name in sorted(adapter):
        size = adapter[name].size
        part = direction[start : start + size].reshape(adapter[name].shape)
        moved[name] = (adapter[name] + 0.05 * part).astype(np.float32)
        start += size
    assert loss(moved) < loss(adapter)


@pytest.mark.parametrize("backend", ["hooks", "functorch"])
def test_every_backend_runs_with_a_cap_per_task(make_silo, adapter, ledger, backend):
    silo = make_silo(options={"gradient_backend": backend, "buffer_capacity_per_task": 1})
    one, reserved = work(adapter, ledger, best_per_task=False)
    evolution = silo.evolve(one)
    assert reserved[0].steps_left == 0
    assert evolution.metrics["null_units"] == 0
    kept = [t.task.task_id for t in silo._memory.select(round_index=0)]
    assert len(kept) == len(set(kept)) > 0


def test_the_backends_give_the_evolver_the_same_sum(make_silo, adapter):
    spec = dataclasses.replace(SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0))
    sums = []
    for backend in ("loop", "hooks", "functorch"):
        silo = make_silo(spec, name=backend, options={"gradient_backend": backend})
        silo.evolve(work(adapter, spec=spec)[0])
        sums.append(summed(silo.unit_sum(step_work(adapter, spec=spec))))
    assert np.abs(sums[0]).max() > 100
    # One grid step per unit for a rounding that falls the other way.
    assert all(np.abs(other - sums[0]).max() <= 8 for other in sums[1:])


@pytest.mark.parametrize("spec", [LOCAL, SHARED], ids=["local", "shared"])
def test_what_is_too_long_is_counted_and_changes_nothing_else(make_silo, adapter, ledger, spec):
    silo = make_silo(spec)
    whole = silo.evolve(work(adapter, ledger, spec=spec)[0])
    assert whole.metrics["too_long"] == 0.0
    successes = silo._memory.select(round_index=0, best_per_task=True)
    limit = max(t.token_count for t in successes) - 1
    short = silo.evolve(work(adapter, ledger, spec=spec, max_sequence_tokens=limit)[0])
    left_out = sum(t.token_count > limit for t in successes)
    assert short.metrics["too_long"] == left_out > 0
    found = population(silo, max_sequence_tokens=limit)
    assert found.units == population(silo).units
    assert sum(map(len, found.rows_of.values())) == len(successes) - left_out
