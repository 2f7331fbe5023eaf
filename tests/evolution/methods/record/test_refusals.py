"""Fed-SE where units inside the silo are protected: what is refused, and what it costs."""

from __future__ import annotations

import dataclasses

import pytest

from dp.errors import ReceiptError, TooManyUnitsError
from evolution.errors import EvolveError, EvolverSetupError
from evolution.methods.evolver import Assignment, LocalPrivacy
from federation.plan.methods import PARTS, Reads
from federation.plan.recipe import ChosenPart, PartsSection, recipe_of
from tests.kit.evolution.record_round import LOCAL, SHARED, STEPS, population, step_work, work


def test_episodes_of_another_adapter_are_refused(make_silo, adapter, ledger, monkeypatch):
    silo = make_silo()
    load = silo._engine.load_adapter
    monkeypatch.setattr(silo._engine, "load_adapter", lambda _sha, a: load("local", a))
    with pytest.raises(EvolveError, match="released"):
        silo.evolve(work(adapter, ledger)[0])
    assert len(silo._memory) == 0


def test_too_many_sampled_units_end_the_round_without_a_delta(make_silo, adapter, ledger):
    record = dataclasses.replace(LOCAL.record, sampling_rate=1.0, expected_units=1)
    spec = dataclasses.replace(LOCAL, record=record)
    one, reserved = work(adapter, ledger, spec=spec, episodes=40)
    with pytest.raises(TooManyUnitsError):
        make_silo(spec).evolve(one)
    assert reserved[0].steps_left == STEPS - 1


def test_the_control_that_learns_nothing_pays_nothing(make_silo, adapter, ledger):
    one, reserved = work(adapter, ledger, learn=False)
    evolution = make_silo().evolve(one)
    assert reserved == []
    assert not any(d.any() for d in evolution.delta.values())


def test_a_refused_budget_trains_nothing(make_silo, adapter, monkeypatch):
    silo = make_silo()

    def refuse():
        raise ReceiptError("over the cap")

    monkeypatch.setattr(silo._trainer, "descend", pytest.fail)
    one, _ = work(adapter)
    with pytest.raises(ReceiptError):
        silo.evolve(dataclasses.replace(one, privacy=LocalPrivacy(spec=LOCAL, reserve=refuse)))


def test_privacy_cannot_be_forgotten_or_exchanged(make_silo, adapter, ledger):
    silo = make_silo()
    one, _ = work(adapter, ledger)
    weaker = dataclasses.replace(LOCAL, noise_multiplier=0.5)
    for privacy in (None, LocalPrivacy(spec=SHARED), LocalPrivacy(spec=weaker)):
        with pytest.raises(EvolverSetupError, match="set up with"):
            silo.evolve(dataclasses.replace(one, privacy=privacy))
    with pytest.raises(EvolverSetupError, match="set up with"):
        make_silo(None, name="plain").evolve(one)
    with pytest.raises(EvolverSetupError, match="no ledger"):
        silo.evolve(dataclasses.replace(one, privacy=LocalPrivacy(spec=LOCAL)))
    with pytest.raises(EvolverSetupError, match="set up with"):
        silo.unit_sum(step_work(adapter))
    with pytest.raises(EvolverSetupError, match="set up with"):
        make_silo(SHARED, name="other").unit_sum(step_work(adapter, spec=LOCAL))


@pytest.mark.parametrize("spec", [LOCAL, SHARED])
def test_what_would_couple_units_is_refused(make_silo, adapter, ledger, spec):
    silo = make_silo(spec)
    fed_se = recipe_of("fed-se", PartsSection())
    by_results = dataclasses.replace(PARTS["uniform"], name="bandit", reads=Reads.SILO)
    sampler = ChosenPart(card=by_results, options=by_results.options())
    asked = dataclasses.replace(fed_se, parts={**fed_se.parts, "sampler": sampler})
    with pytest.raises(EvolverSetupError, match="sampler 'bandit' reads the silo's results"):
        make_silo(spec, recipe=asked)
    with pytest.raises(EvolverSetupError, match="packing"):
        silo.evolve(work(adapter, ledger, spec=spec, packing=True)[0])
    if spec is SHARED:
        with pytest.raises(EvolverSetupError, match="packing"):
            silo.unit_sum(step_work(adapter, packing=True))
    with pytest.raises(EvolverSetupError, match="buffer_capacity_per_task"):
        make_silo(spec, options={"buffer_capacity": 100})
    with pytest.raises(EvolverSetupError, match="failure_capacity_per_task"):
        make_silo(spec, options={"failure_capacity": 100})
    with pytest.raises(EvolverSetupError, match="gradient_backend"):
        make_silo(spec, options={"gradient_backend": "ghost"})
    assert silo._memory.explored(round_index=9) == []


def test_how_many_tasks_a_silo_has_refuses_nothing(make_silo, adapter, ledger):
    """A refusal would tell the number, a plan at a time; each task is a unit once all the same."""
    few = make_silo(name="few", assignments=(Assignment(environment="small"),))
    one, reserved = work(adapter, ledger)
    assert one.settings.episodes // one.settings.tries_per_task > 5
    evolution = few.evolve(one)
    assert len(population(few).units) == 5
    assert evolution.episodes == {"small": 5 * one.settings.tries_per_task}
    assert reserved[0].steps_left == 0
    empty = make_silo(name="empty", assignments=(Assignment(environment="small"),))
    empty._environments["small"].task_ids = lambda *_, **__: ()
    one, reserved = work(adapter, ledger, round_index=1)
    assert any(delta.any() for delta in empty.evolve(one).delta.values())
    assert reserved[0].steps_left == 0


@pytest.mark.parametrize("spec", [None, LOCAL, SHARED], ids=["none", "local", "shared"])
def test_an_environment_that_cannot_be_made_refuses(make_silo, spec):
    """That something is not installed is no data, and its zeros would count towards a sum."""
    with pytest.raises(EvolverSetupError, match="nowhere"):
        make_silo(spec, name="gone", assignments=(Assignment(environment="nowhere"),))


def test_more_environments_than_the_plan_has_tasks_are_refused(make_silo, adapter, ledger):
    both = (Assignment(environment="coin"), Assignment(environment="small"))
    with pytest.raises(EvolverSetupError, match="no task each"):
        make_silo(name="both", assignments=both).evolve(work(adapter, ledger, episodes=2)[0])
