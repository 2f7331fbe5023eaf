"""The driver with parts of the test's own: epochs, gates, cards, and units that fail alone."""

from __future__ import annotations

import dataclasses
import sys
import types

import numpy as np
import pytest

from dp.steps.units import UnitId
from evolution.errors import EvolverSetupError, PartError
from evolution.part import BasePart
from evolution.train.rows import Row
from federation.plan.methods import Couples, PartCard, Reads
from federation.plan.recipe import FED_SE, ChosenPart, PartsSection, recipe_of
from federation.plan.section import Section
from tests.kit.evolution.record_round import (
    LOCAL,
    SETTINGS,
    SHARED,
    population,
    step_work,
    summed,
    work,
)

SURE = dataclasses.replace(SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0))


class Options(Section):
    """A scale."""

    scale: float = 1.0


@pytest.fixture
def recipe(monkeypatch):
    """Fed-SE with a class of the test's own in one place."""

    def make(kind, made, *, couples=Couples.TASK, reads=Reads.UNIT, says=None, **options):
        made.couples, made.reads = says or (couples, reads)
        module = types.ModuleType("own_part")
        module.Own = made
        monkeypatch.setitem(sys.modules, "own_part", module)
        card = PartCard(
            kind=kind,
            name="own",
            code="own_part:Own",
            says="of a test",
            couples=couples,
            reads=reads,
            options=Options,
        )
        plain = recipe_of(FED_SE, PartsSection())
        part = ChosenPart(card=card, options=Options(**options))
        return dataclasses.replace(plain, parts={**plain.parts, kind: part})

    return make


def free(adapter, **settings):
    """The work of a round without protected units."""
    return dataclasses.replace(work(adapter)[0], privacy=None, settings=dataclasses.replace(
        SETTINGS, **settings
    ))  # fmt: skip


def zero(delta):
    return not any(change.any() for change in delta.values())


def test_each_local_epoch_plays_with_the_adapter_as_it_was_trained(make_silo, adapter):
    silo = make_silo(None)
    loaded, load = [], silo._engine.load_adapter
    silo._engine.load_adapter = lambda version, tensors: (
        loaded.append({name: value.copy() for name, value in tensors.items()}),
        load(version, tensors),
    )[1]
    evolution = silo.evolve(free(adapter, local_epochs=2))
    assert evolution.episodes == {"coin": 2 * SETTINGS.episodes}
    first, second = loaded
    assert all(np.array_equal(first[name], adapter[name]) for name in adapter)
    assert any(not np.array_equal(second[name], adapter[name]) for name in adapter)
    once = make_silo(None, "once").evolve(free(adapter))
    assert evolution.metrics["optimiser_steps"] > once.metrics["optimiser_steps"]
    # The released adapter's tries and those of the second are groups of their own.
    versions = {
        t.adapter_sha256 for g in silo._memory.groups(round_index=0) for t in g.trajectories
    }
    assert len(versions) == 2


def test_under_protection_the_released_adapter_alone_plays(make_silo, adapter, ledger):
    with pytest.raises(EvolverSetupError, match="set local_epochs to 1"):
        make_silo().evolve(work(adapter, ledger, local_epochs=2)[0])


class Never(BasePart):
    def admit(self, before, after, probes, work):
        asked.append((probes.success(before), probes.success(after)))
        return False


asked: list[tuple[float, float]] = []


def test_a_gate_that_refuses_leaves_zeros_and_a_figure(make_silo, adapter, recipe):
    asked.clear()
    silo = make_silo(None, recipe=recipe("gate", Never, couples=Couples.ALL, reads=Reads.SILO))
    evolution = silo.evolve(free(adapter))
    assert zero(evolution.delta)
    assert evolution.metrics["gate_refused"] == 1.0
    ((was, is_now),) = asked
    assert 0.0 <= was <= 1.0
    assert 0.0 <= is_now <= 1.0
    taken = make_silo(None, "taken").evolve(free(adapter))
    assert not zero(taken.delta)
    assert "gate_refused" not in taken.metrics


def test_a_gate_that_reads_what_is_public_gets_no_probes(make_silo, adapter, recipe):
    silo = make_silo(None, recipe=recipe("gate", Never, couples=Couples.TRY, reads=Reads.PUBLIC))
    with pytest.raises(PartError, match="does not say that it reads the silo"):
        silo.evolve(free(adapter))


@pytest.mark.parametrize(
    ("kind", "name", "apart"),
    [
        ("gate", "not-worse", r"'not-worse' couples 'all'.*record_local"),
        ("play", "episodes", r"'episodes' couples 'user'.*record_local"),
    ],
)
def test_a_silo_chooses_a_part_only_where_the_plan_lets_it(make_silo, adapter, kind, name, apart):
    mine = {kind: name}
    with pytest.raises(EvolverSetupError, match=r"evolve\.local_parts does not allow"):
        make_silo(None, options=mine)
    with pytest.raises(EvolverSetupError, match="no-such"):
        make_silo(None, options={kind: "no-such"}, local_parts=True)
    with pytest.raises(EvolverSetupError, match=f"{kind} is the name of a {kind}, not 3"):
        make_silo(None, options={kind: 3}, local_parts=True)
    with pytest.raises(EvolverSetupError, match=apart):
        make_silo(LOCAL, options=mine, local_parts=True)
    silo = make_silo(None, "own", options=mine, local_parts=True)
    assert silo.evolve(free(adapter)).metrics["selected"] > 0


def test_a_silo_s_own_play_is_what_it_plays(make_silo, adapter):
    """``episodes`` puts what worked before the tries of a second round, and ``once`` nothing."""
    helped = {}
    for place, options in (("own", {"play": "episodes"}), ("plain", {})):
        silo = make_silo(None, place, options=options, local_parts=True)
        for number in (1, 2):
            silo.evolve(dataclasses.replace(free(adapter), round=number))
        groups = silo._memory.groups(round_index=2, window=1)
        helped[place] = any(one.helped_by for group in groups for one in group.trajectories)
    assert helped == {"own": True, "plain": False}


def test_a_silo_cannot_play_otherwise_than_the_plan_says(make_silo):
    chosen = recipe_of("fed-se", PartsSection.model_validate({"play": "retry"}))
    with pytest.raises(EvolverSetupError, match="names a play, and the plan has one already"):
        make_silo(None, recipe=chosen, options={"play": "hints"}, local_parts=True)


@pytest.mark.parametrize("says", [(Couples.ALL, Reads.UNIT), (Couples.TASK, Reads.SILO)], ids=str)
def test_a_class_that_says_something_else_than_its_card_is_refused(make_silo, recipe, says):
    class Other(BasePart):
        def credit(self, groups, past, work):
            return []

    with pytest.raises(EvolverSetupError, match="its class and its card do not agree"):
        make_silo(None, recipe=recipe("credit", Other, says=says))


def test_options_reach_the_part(make_silo, adapter, recipe):
    class Scaled(BasePart):
        def credit(self, groups, past, work):
            return [Row.of(t, weight=self.options.scale) for g in groups for t in g.trajectories]

    found = []
    for scale in (0.0, 1.0):
        silo = make_silo(None, f"scaled {scale}", recipe=recipe("credit", Scaled, scale=scale))
        found.append(silo.evolve(free(adapter)))
    assert zero(found[0].delta)
    assert not zero(found[1].delta)
    assert found[1].metrics["selected"] == SETTINGS.episodes


def test_a_credit_that_returns_no_rows_of_ours_fails_the_round(make_silo, adapter, recipe):
    class Texts(BasePart):
        def credit(self, groups, past, work):
            return ["a row"]

    with pytest.raises(PartError, match="returns a list of rows"):
        make_silo(None, recipe=recipe("credit", Texts)).evolve(free(adapter))


def test_a_sampler_draws_from_its_pool_and_no_more_than_it_may(make_silo, adapter, recipe):
    class Greedy(BasePart):
        def draw(self, pool, past, work, *, count):
            (one,) = pool.environments
            return [one.task(one.task_ids[0])] * (count + 1)

    public = {"couples": Couples.TRY, "reads": Reads.PUBLIC}
    with pytest.raises(PartError, match="drew 9 tasks, of at most 8"):
        make_silo(None, recipe=recipe("sampler", Greedy, **public)).evolve(free(adapter))

    class Twice(Greedy):
        def draw(self, pool, past, work, *, count):
            return super().draw(pool, past, work, count=count)[:count]

    with pytest.raises(EvolverSetupError, match="drew a task twice"):
        make_silo(LOCAL, "twice", recipe=recipe("sampler", Twice, **public)).evolve(
            work(adapter)[0]
        )


@pytest.mark.parametrize("mode", ["record_local", "record_distributed"])
def test_a_unit_whose_credit_fails_loses_its_own_rows_alone(
    make_silo, adapter, ledger, recipe, mode
):
    victim: list[str] = []

    class Picky(BasePart):
        def credit(self, groups, past, work):
            tries = [t for g in groups for t in g.trajectories]
            if victim and str(tries[0].task.task_id) == victim[0]:
                raise KeyError("what this unit holds")
            return [Row.of(t) for t in tries if t.success]

    spec = LOCAL if mode == "record_local" else SURE
    silo = make_silo(spec, recipe=recipe("credit", Picky))
    silo.evolve(work(adapter, ledger, spec=spec)[0])
    before = population(silo)
    victim.append(next(iter(before.rows_of)).key)
    after = population(silo)
    assert after.units == before.units
    assert after.rows_of == {
        unit: rows for unit, rows in before.rows_of.items() if unit != UnitId("coin", victim[0])
    }
    if mode == "record_distributed":
        moved = summed(silo.unit_sum(step_work(adapter, spec=SURE)))
        victim.clear()
        whole = summed(silo.unit_sum(step_work(adapter, spec=SURE)))
        distance = float(np.linalg.norm((whole - moved).astype(np.float64)))
        assert 0 < distance <= spec.grid * 1.001


def test_a_units_play_and_credit_see_that_unit_alone(make_silo, adapter, ledger, recipe):
    seen: list[set[int]] = []

    class Looks(BasePart):
        def credit(self, groups, past, work):
            seen.append({g.task.task_id for g in (*groups, *past.groups())})
            seen[-1] |= {t.task.task_id for t in past.successes(shortest=False)}
            return []

    silo = make_silo(LOCAL, recipe=recipe("credit", Looks))
    evolution = silo.evolve(work(adapter, ledger)[0])
    assert evolution.metrics["population"] == len(seen) == 8
    assert all(len(tasks) == 1 for tasks in seen)
    assert len(set.union(*seen)) == 8


class Told(BasePart):
    def terms(self, out, row):
        told.append(self.progress)
        return -out.logprob * row.weights


told: list[float] = []


def test_an_objective_is_told_of_the_charged_steps(make_silo, adapter, ledger, recipe):
    sure = dataclasses.replace(LOCAL, record=dataclasses.replace(LOCAL.record, sampling_rate=1.0))
    silo = make_silo(sure, recipe=recipe("objective", Told, couples=Couples.TRY))
    told.clear()
    silo.evolve(work(adapter, ledger, spec=sure)[0])
    steps = LOCAL.record.steps_per_round
    assert sorted(set(told)) == [step / steps for step in range(steps)]
    assert told[-1] == (steps - 1) / steps


def test_where_each_step_is_an_aggregation_it_is_told_of_the_rounds_steps(
    make_silo, adapter, recipe
):
    silo = make_silo(SURE, recipe=recipe("objective", Told, couples=Couples.TRY))
    silo.evolve(work(adapter, spec=SURE)[0])
    for step in (2, 0, 1):
        told.clear()
        silo.unit_sum(step_work(adapter, spec=SURE, step=step))
        assert set(told) == {step / SURE.record.steps_per_round}
