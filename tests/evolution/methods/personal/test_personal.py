"""Adapters of a silo's own: Ditto, fine-tuning, the residual, FedSA."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evolution.envs import catalogue
from evolution.envs.tasks import Shard, Split
from evolution.errors import EvolverSetupError, PersonalStoreError
from evolution.methods.evolver import Assignment, Evaluation, EvolveSettings, Work
from evolution.methods.personal.store import PersonalStore
from evolution.methods.probes import validation_tasks
from evolution.model.lora import initial_adapter
from evolution.trajectory import Task
from tests.kit.evolution import coin
from tests.kit.evolution.coin import Coin
from tests.kit.evolution.silos import silos

RANK, ALPHA = 2, 4.0
SETTINGS = EvolveSettings(
    episodes=16, tries_per_task=2, max_new_tokens=3, window=2, batch_size=4, learning_rate=1e-2
)
DITTO = {"personal": "ditto", "personal_lambda": 0.5}
RESIDUAL = {"personal": "residual"}


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {**catalogue.ENVIRONMENTS, "coin": f"{coin.__name__}:Coin"}
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def make_silo(tiny_base, tmp_path):
    shares = (Assignment(environment="coin", shard=Shard(index=1, count=2)),)
    with silos(tiny_base, tmp_path, "coin", rank=RANK, alpha=ALPHA) as make:
        yield lambda name="silo", **options: make(name, assignments=shares, options=options)


@pytest.fixture
def adapter(tiny_base):
    return initial_adapter(tiny_base, RANK, ALPHA, 0)


def work(adapter, round_index=0, trainable=None, **settings) -> Work:
    return Work(
        round=round_index,
        adapter=adapter,
        adapter_sha256=f"{round_index}",
        trainable=frozenset(adapter) if trainable is None else trainable,
        settings=dataclasses.replace(SETTINGS, **settings),
        seed=0,
    )


def moved(adapter, delta):
    return {name: value + delta.get(name, 0) for name, value in adapter.items()}


def factors(adapter, which):
    return frozenset(name for name in adapter if f"lora_{which}" in name)


def same(one, two) -> bool:
    return one.keys() == two.keys() and all(
        np.asarray(one[k]).tobytes() == np.asarray(two[k]).tobytes() for k in one
    )


def distance(one, two) -> float:
    return float(np.sqrt(sum(np.square(one[k] - two[k]).sum() for k in one)))


def rounds(silo, adapter, count, **settings):
    """Run rounds, the silo's delta being the whole federation's; return adapters and results."""
    adapters, results = [adapter], []
    for index in range(count):
        results.append(silo.evolve(work(adapters[-1], index, **settings)))
        adapters.append(moved(adapters[-1], results[-1].delta))
    return adapters, results


@pytest.mark.parametrize("options", [DITTO, {"personal": "finetune"}, RESIDUAL])
def test_what_is_uploaded_is_the_same_with_and_without_a_personal_adapter(
    make_silo, adapter, options
):
    _, without = rounds(make_silo("without"), adapter, 3)
    silo = make_silo("with", **options)
    _, with_one = rounds(silo, adapter, 3)
    for one, two in zip(without, with_one, strict=True):
        assert same(one.delta, two.delta)
        assert one.episodes == two.episodes
        assert one.successes == two.successes
        assert two.metrics["personal_optimiser_steps"] > 0
    assert any(d.any() for d in without[0].delta.values())


def test_what_breaks_in_the_personal_adapter_costs_the_round_nothing(make_silo, adapter, tmp_path):
    _, without = rounds(make_silo("without"), adapter, 2)
    silo = make_silo("with", **DITTO)
    first = silo.evolve(work(adapter))
    (stored,) = (tmp_path / "with" / "personal" / "ditto").iterdir()
    stored.write_bytes(b"damaged")
    second = silo.evolve(work(moved(adapter, first.delta), 1))
    assert same(second.delta, without[1].delta)
    assert second.metrics["personal_failed"] == 1.0
    with pytest.raises(PersonalStoreError, match="safetensors"):
        silo.evaluate(Evaluation(round=1, adapter=adapter, adapter_sha256="x", personal=True))


def test_ditto_goes_on_from_its_own_and_is_pulled_to_the_global_adapter(make_silo, adapter):
    """v ← v − η(∇F(v) + λ(v − φ)): arXiv 2012.04221, algorithm 1."""
    own = {}
    for strength in (0.0, 0.5, 50.0):
        silo = make_silo(str(strength), personal="ditto", personal_lambda=strength)
        # The global adapter stays where it is, so what v does is its own.
        for index in range(3):
            silo.evolve(work(adapter, index))
        own[strength] = silo._personal.current(adapter)
    assert distance(own[0.0], adapter) > distance(own[0.5], adapter) > distance(own[50.0], adapter)
    assert distance(own[50.0], adapter) > 0
    tuned = make_silo("tuned", personal="finetune")
    for index in range(3):
        tuned.evolve(work(adapter, index))
    # Fine-tuning begins again in every round; Ditto without a pull does not.
    assert 0 < distance(tuned._personal.current(adapter), adapter) < distance(own[0.0], adapter)


def test_the_pull_is_to_the_global_adapter_and_not_to_where_the_round_began(
    make_silo, adapter, tmp_path
):
    far = {name: value + np.float32(0.05) for name, value in adapter.items()}
    PersonalStore(tmp_path / "silo" / "personal" / "ditto").write(0, far)
    silo = make_silo(personal="ditto", personal_lambda=50.0, personal_epochs=2)
    silo.evolve(work(adapter, 1))
    assert distance(silo._personal.current(adapter), adapter) < 0.7 * distance(far, adapter)


def test_ditto_trains_every_factor_whatever_the_plan_trains(make_silo, adapter):
    silo = make_silo(**DITTO)
    evolution = silo.evolve(work(adapter, trainable=factors(adapter, "B")))
    assert evolution.delta.keys() == factors(adapter, "B")
    own = silo._personal.current(adapter)
    assert all((own[name] != adapter[name]).any() for name in factors(adapter, "B"))
    assert own.keys() == adapter.keys()
    assert not same({n: own[n] for n in factors(adapter, "A")}, {n: adapter[n] for n in
        factors(adapter, "A")})  # fmt: skip


@pytest.mark.parametrize(
    "options", [DITTO, {"personal": "finetune"}, RESIDUAL, {"personal": "fedsa"}]
)
def test_a_restarted_silo_goes_on_and_a_repeated_round_trains_once(make_silo, adapter, options):
    trainable = factors(adapter, "A") if options["personal"] == "fedsa" else None
    straight = make_silo("straight", **options)
    works = [work(adapter, index, trainable=trainable) for index in range(3)]
    for one in works:
        straight.evolve(one)
    stopped = make_silo("stopped", **options)
    stopped.evolve(works[0])
    stopped.evolve(works[1])
    stopped.close()
    again = make_silo("stopped", **options)
    # The round was done and not remembered: it is asked for once more, and once more.
    again.evolve(works[1])
    again.evolve(works[1])
    again.evolve(works[2])
    assert same(again._personal.current(adapter), straight._personal.current(adapter))


def test_without_a_round_the_personal_adapter_is_the_global_one(make_silo, adapter):
    assert same(make_silo(**DITTO)._personal.current(adapter), adapter)
    assert same(make_silo("added", **RESIDUAL)._personal.current(adapter), adapter)
    silo = make_silo("off")
    with pytest.raises(EvolverSetupError, match="no personal adapter"):
        silo.evaluate(Evaluation(round=0, adapter=adapter, adapter_sha256="x", personal=True))


def test_the_control_that_learns_nothing_leaves_the_personal_adapter_alone(
    make_silo, adapter, tmp_path
):
    silo = make_silo(**DITTO)
    silo.evolve(work(adapter, learn=False))
    assert not (tmp_path / "silo" / "personal").exists()


def test_the_residual_is_what_an_own_adapter_adds_to_whatever_is_shared(
    make_silo, adapter, tmp_path
):
    """Federated Residual Learning, arXiv 2003.12880: the own part learns what the sum lacks."""
    silo, tuned = make_silo(**RESIDUAL), make_silo("tuned", personal="finetune")
    silo.evolve(work(adapter))
    tuned.evolve(work(adapter))
    # The first time it is fine-tuning: there is nothing of its own to begin with.
    own = tuned._personal.current(adapter)
    kept = PersonalStore(tmp_path / "silo" / "personal" / "residual").newest()
    assert kept is not None
    assert same(kept, {name: own[name] - adapter[name] for name in adapter})
    newer = {name: value + np.float32(0.25) for name, value in adapter.items()}
    assert same(silo._personal.current(newer), {n: newer[n] + kept[n] for n in newer})
    # Fine-tuning keeps the adapter of the round before, however far the shared one has come.
    assert same(tuned._personal.current(newer), own)


def test_the_residual_goes_on_from_its_own_upon_the_newest_shared_adapter(
    make_silo, adapter, monkeypatch
):
    silo = make_silo(**RESIDUAL)
    silo.evolve(work(adapter))
    newer = {name: value + np.float32(0.25) for name, value in adapter.items()}
    expected = silo._personal.current(newer)
    began = []
    reset = silo._trainer.reset
    monkeypatch.setattr(
        silo._trainer, "reset", lambda tensors: (began.append(dict(tensors)), reset(tensors))
    )
    silo.evolve(work(newer, 1))
    assert same(began[0], newer)
    assert same(began[-1], expected)
    assert not same(silo._personal.current(newer), expected)


def test_a_part_of_other_factors_is_added_to_nothing(make_silo, adapter, tmp_path):
    _, without = rounds(make_silo("without"), adapter, 1)
    silo = make_silo(**RESIDUAL)
    store = PersonalStore(tmp_path / "silo" / "personal" / "residual")
    for part in (
        {name: value[:1] for name, value in adapter.items()},
        dict(list(adapter.items())[:1]),
    ):
        store.write(0, part)
        with pytest.raises(PersonalStoreError, match="other factors"):
            silo._personal.current(adapter)
    second = silo.evolve(work(adapter, 1))
    assert second.metrics["personal_failed"] == 1.0
    assert second.delta.keys() == without[0].delta.keys()


def test_fedsa_uploads_a_and_keeps_b(make_silo, adapter, tmp_path):
    """FedSA-LoRA, arXiv 2410.01463, §3.2."""
    A, B = factors(adapter, "A"), factors(adapter, "B")
    silo = make_silo(personal="fedsa")
    played = []
    load = silo._engine.load_adapter

    def spy(identity, tensors):
        played.append(dict(tensors))
        load(identity, tensors)

    silo._engine.load_adapter = spy
    first = silo.evolve(work(adapter, trainable=A))
    assert first.delta.keys() == A
    # B is zero at first, so A has no gradient before B has moved; it has two epochs.
    assert any(d.any() for d in first.delta.values())
    after = {**moved(adapter, first.delta)}
    own = silo._personal.current(after)
    assert same({n: own[n] for n in A}, {n: after[n] for n in A})
    assert all(own[name].any() for name in B)
    second = silo.evolve(work(after, 1, trainable=A))
    assert same(played[0], adapter)
    assert same(played[1], own)
    # The delta is against the global A, and B goes on from the silo's own.
    trained = silo._trainer.adapter()
    assert all((trained[n] - after[n]).tobytes() == second.delta[n].tobytes() for n in A)
    assert same(silo._personal.current(trained), trained)
    stored = PersonalStore(tmp_path / "silo" / "personal" / "fedsa").newest()
    assert stored is not None
    assert stored.keys() == B


def test_fedsa_needs_a_plan_that_uploads_a_alone(make_silo, adapter):
    silo = make_silo(personal="fedsa")
    for trainable in (None, factors(adapter, "B")):
        with pytest.raises(EvolverSetupError, match="aggregation 'fedsa'"):
            silo.evolve(work(adapter, trainable=trainable))
    corrected = dataclasses.replace(
        work(adapter, trainable=factors(adapter, "A")), correction=adapter
    )
    with pytest.raises(EvolverSetupError, match="SCAFFOLD"):
        silo.evolve(corrected)
    assert silo._memory.explored(round_index=9) == []


def test_the_personal_adapter_is_what_is_judged_when_asked_for(make_silo, adapter, monkeypatch):
    silo = make_silo(**DITTO)
    silo.evolve(work(adapter))
    loaded = []
    load = silo._engine.load_adapter
    monkeypatch.setattr(
        silo._engine, "load_adapter", lambda name, a: (loaded.append(dict(a)), load(name, a))
    )
    asked = Evaluation(
        round=0, adapter=adapter, adapter_sha256="x", episodes=4, temperatures=(0.0,),
        max_new_tokens=3,
    )  # fmt: skip
    silo.evaluate(asked)
    rows = silo.evaluate(dataclasses.replace(asked, personal=True))
    assert same(loaded[0], adapter)
    assert same(loaded[1], silo._personal.current(adapter))
    assert not same(loaded[0], loaded[1])
    assert sum(row.episodes for row in rows) == 4


def test_validation_tasks_are_the_silos_own_and_were_never_seen(make_silo):
    silo = make_silo(**DITTO)
    train = Coin().task_ids(Split.TRAIN, shard=Shard(index=1, count=2))
    silo._memory.explore(
        [Task(environment="coin", task_id=train[-2])],
        round_index=0,
        adapter_sha256="a",
    )
    drawn = validation_tasks(
        silo._setup.assignments,
        silo._environments,
        known=silo._memory.known_tasks(),
        count=3,
    )
    assert [t.task_id for t in drawn] == [train[-1], train[-3], train[-4]]


def test_the_store_keeps_two_rounds_and_forgets_a_future_that_did_not_happen(tmp_path):
    store = PersonalStore(tmp_path / "personal")
    one = {"base_model.model.x.lora_A.weight": np.ones((1, 2), dtype=np.float32)}
    assert store.newest() is None
    for number in (1, 4, 5):
        store.write(number, {k: v * number for k, v in one.items()})
    names = sorted(path.name for path in (tmp_path / "personal").iterdir())
    assert names == ["0000000004.safetensors", "0000000005.safetensors"]
    assert {float(v[0, 0]) for v in (store.before(5) or {}).values()} == {4.0}
    assert {float(v[0, 0]) for v in (store.newest() or {}).values()} == {5.0}
    store.write(4, one)
    assert sorted(p.name for p in (tmp_path / "personal").iterdir()) == names[:1]
    with pytest.raises(PersonalStoreError, match="NaN"):
        store.write(5, {k: v * np.float32("nan") for k, v in one.items()})
    assert sorted(p.name for p in (tmp_path / "personal").iterdir()) == names[:1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"personal": "dito"}, "there is no personal"),
        ({"personal": 1}, "there is no personal"),
        ({"personal": "ditto", "personal_lambda": -0.1}, "personal_lambda"),
        ({"personal": "ditto", "personal_lambda": float("nan")}, "personal_lambda"),
        ({"personal": "ditto", "personal_lambda": "1"}, "personal_lambda"),
        ({"personal": "ditto", "personal_epochs": 0}, "personal_epochs"),
        ({"personal": "finetune", "personal_lambda": 0.1}, "no effect"),
        ({"personal": "fedsa", "personal_epochs": 1}, "no effect"),
        ({"personal": "residual", "personal_lambda": 0.1}, "no effect"),
        ({"personal_lambda": 0.1}, "no effect"),
        ({"personal_choice": 8}, "no effect"),
        ({"personal": "fedsa", "personal_choice": 8}, "no effect"),
        ({"personal": "ditto", "personal_choice": 1}, "whole number from 2"),
        ({"personal": "ditto", "personal_choice": True}, "whole number from 2"),
        ({"success_filter": "maybe"}, "success_filter"),
        ({"buffer_capacity": 0}, "buffer_capacity"),
        ({"buffer_capacity": 1.5}, "buffer_capacity"),
        ({"failure_capacity": 0}, "failure_capacity"),
        ({"failure_capacity_per_task": True}, "failure_capacity_per_task"),
        ({"memory_max_age_days": 0}, "memory_max_age_days"),
        ({"memory_max_age_days": "1"}, "memory_max_age_days"),
    ],
)
def test_options_that_make_no_sense_are_refused(make_silo, options, match):
    with pytest.raises(EvolverSetupError, match=match):
        make_silo(**options)
