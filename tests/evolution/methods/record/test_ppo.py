"""PPO through the driver: it learns, keeps or shares its value head, and keeps units apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dp.config import Mode
from evolution.errors import EvolverSetupError, PersonalStoreError
from evolution.methods.evolver import Evaluation
from evolution.methods.personal.store import PersonalStore
from evolution.model.lora import initial_adapter
from federation.adapter.value_head import VALUE_HEAD, without_head
from federation.plan.recipe import PartChoice, PartsSection, recipe_of
from tests.kit.evolution.record_round import (
    ALPHA,
    LOCAL,
    RANK,
    REINFORCED,
    SETTINGS,
    SHARED,
    SURE,
    population,
    step_work,
    summed,
    work,
)


def recipe(value_head="local", *, credit=None, **options):
    given = {} if credit is None else {"credit": PartChoice(name="token-rewards", **credit)}
    chosen = PartChoice(name="ppo", value_head=value_head, **options)
    return recipe_of("ppo", PartsSection(objective=chosen, **given))


def free(adapter, made, number=0, **settings):
    settings = {**REINFORCED, "normaliser": made.normaliser, **settings}
    return dataclasses.replace(
        work(adapter, round_index=number)[0],
        privacy=None,
        settings=dataclasses.replace(SETTINGS, **settings),
    )


@pytest.fixture
def shared(tiny_base):
    return initial_adapter(tiny_base, RANK, ALPHA, 0, value_head=True)


def rounds(silo, now, made, count):
    solved = []
    for number in range(count):
        evolution = silo.evolve(free(now, made, number))
        now = {name: value + evolution.delta.get(name, 0.0) for name, value in now.items()}
        solved.append(evolution.successes["coin"] / evolution.episodes["coin"])
    return now, solved, evolution


@pytest.mark.parametrize("value_head", ["local", "federated"])
def test_it_learns_from_failures_and_successes_without_a_demonstration(
    make_silo, adapter, shared, tmp_path, value_head
):
    made = recipe(value_head, value_learning_rate=0.02)
    silo = make_silo(None, recipe=made)
    first = shared if value_head == "federated" else adapter
    now, solved, last = rounds(silo, first, made, 6)
    assert solved[0] < 0.9
    assert solved[-1] > solved[0] + 0.1
    assert last.delta.keys() == first.keys()
    if value_head == "federated":
        assert now[VALUE_HEAD].any()
        assert not (tmp_path / "silo" / "personal").exists()
    else:
        kept = PersonalStore(tmp_path / "silo" / "personal" / "value_head").newest()
        assert kept.keys() == {VALUE_HEAD}
        assert kept[VALUE_HEAD].any()
    # The value has learned how often the coin falls right.
    assert last.metrics["value_loss"] < 0.5 * 0.25
    assert -1.0 < last.metrics["explained_variance"] < 1.0


def test_the_engine_plays_and_judges_as_if_there_were_no_head(make_silo, adapter, shared):
    made = recipe("federated")
    with_head = {**shared, VALUE_HEAD: np.full_like(shared[VALUE_HEAD], 0.5)}
    one = make_silo(None, recipe=made, name="one")
    other = make_silo(None, recipe=recipe("local"), name="other")
    here, there = one.evolve(free(with_head, made)), other.evolve(free(adapter, made))
    assert (here.episodes, here.successes) == (there.episodes, there.successes)
    rows = [
        silo.evaluate(
            Evaluation(
                round=0,
                adapter=start,
                adapter_sha256="judged",
                episodes=8,
                temperatures=(1.0,),
                max_new_tokens=8,
            )
        )
        for silo, start in ((one, with_head), (other, adapter))
    ]
    assert rows[0] == rows[1]


def test_a_head_of_the_silos_own_goes_on_from_round_to_round_and_a_repeated_round_from_before(
    make_silo, adapter, tmp_path
):
    made = recipe()
    store = PersonalStore(tmp_path / "silo" / "personal" / "value_head")
    silo = make_silo(None, recipe=made)
    first = silo.evolve(free(adapter, made, 1))
    assert VALUE_HEAD not in first.delta
    after_first = store.newest()[VALUE_HEAD]
    moved = {name: value + first.delta[name] for name, value in adapter.items()}
    second = silo.evolve(free(moved, made, 2))
    after_second = store.newest()[VALUE_HEAD]
    assert (after_second != after_first).any()
    # The second round began where the first had ended.
    assert store.before(2)[VALUE_HEAD].tobytes() == after_first.tobytes()
    # The daemon died before anybody heard of the second round: it is done again, by a new process.
    silo.close()
    silo = make_silo(None, recipe=made)
    again = silo.evolve(free(moved, made, 2))
    assert all(again.delta[name].tobytes() == second.delta[name].tobytes() for name in adapter)
    assert store.newest()[VALUE_HEAD].tobytes() == after_second.tobytes()
    fresh = make_silo(None, recipe=made, name="fresh").evolve(free(moved, made, 2))
    assert any(fresh.delta[name].tobytes() != second.delta[name].tobytes() for name in adapter)


def test_a_later_local_epoch_trains_the_same_head_further(make_silo, adapter, tmp_path):
    made = recipe(value_learning_rate=0.01)
    store = PersonalStore(tmp_path / "silo" / "personal" / "value_head")
    silo = make_silo(None, recipe=made)
    found = silo.evolve(free(adapter, made, local_epochs=2, proximal_mu=0.1))
    assert found.metrics["optimiser_steps"] == 2
    # Two of AdamW's steps at most that long.
    assert 0.01 < np.abs(store.newest()[VALUE_HEAD]).max() <= 0.0201


@pytest.mark.parametrize("kind", ["ditto", "finetune"])
def test_a_personal_adapter_has_a_head_of_its_own(make_silo, adapter, tmp_path, kind):
    made = recipe()
    silo = make_silo(None, recipe=made, options={"personal": kind})
    plain = make_silo(None, recipe=made, name="plain")
    for number in (1, 2):
        found = silo.evolve(free(adapter, made, number))
        assert "personal_failed" not in found.metrics
        # What is uploaded, and the head that it is computed with, are as without.
        beside = plain.evolve(free(adapter, made, number))
        assert all(found.delta[n].tobytes() == beside.delta[n].tobytes() for n in adapter)
    own = PersonalStore(tmp_path / "silo" / "personal" / kind)
    assert own.newest().keys() == adapter.keys() | {VALUE_HEAD}
    assert (own.newest()[VALUE_HEAD] != own.before(2)[VALUE_HEAD]).any()


def test_a_damaged_head_is_an_error_and_not_a_new_one(make_silo, adapter, tmp_path):
    made = recipe()
    silo = make_silo(None, recipe=made)
    silo.evolve(free(adapter, made, 1))
    (file,) = (tmp_path / "silo" / "personal" / "value_head").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(PersonalStoreError):
        silo.evolve(free(adapter, made, 2))


def test_the_adapter_of_the_run_has_a_head_exactly_where_the_plan_shares_one(
    make_silo, adapter, shared
):
    federated = recipe("federated")
    with pytest.raises(EvolverSetupError, match=r"the adapter has no 'value_head\.weight'"):
        make_silo(None, recipe=federated).evolve(free(adapter, federated))
    local = recipe()
    with pytest.raises(EvolverSetupError, match="the plan federates no value head"):
        make_silo(None, recipe=local, name="other").evolve(free(shared, local))


@pytest.mark.parametrize("spec", [LOCAL, SHARED])
def test_a_head_of_the_silos_own_is_refused_where_units_are_protected(make_silo, spec):
    with pytest.raises(EvolverSetupError, match="trained on its units without noise"):
        make_silo(spec, recipe=recipe())


def test_scaffold_has_no_correction_for_it(make_silo, adapter):
    made = recipe()
    corrected = dataclasses.replace(free(adapter, made), correction=adapter)
    with pytest.raises(EvolverSetupError, match="value head that is not shared"):
        make_silo(None, recipe=made).evolve(corrected)


EVERY = [
    {},
    {"gae_lambda": 0.9, "gamma": 0.99},
    {"value_trains_adapter": True},
    {"value_clip": 0.0, "kl_to": "round", "credit": {"reward": "return"}},
]


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_removing_one_unit_changes_no_bit_of_anothers_gradient(
    make_silo, shared, options, monkeypatch
):
    made = recipe("federated", **options)
    settings = {**REINFORCED, "normaliser": made.normaliser}
    start = {**shared, VALUE_HEAD: np.full_like(shared[VALUE_HEAD], 0.01)}
    silo = make_silo(SURE, recipe=made)
    silo.evolve(work(start, spec=SURE, **settings)[0])
    asked = step_work(start, spec=SURE, **settings)
    silo._trainer.reset(start)

    def gradients():
        found = population(silo, **settings)
        backend = silo._descent(asked.settings).gradients(silo._trainer, asked.names)
        made_of = list(backend.unit_gradients(list(found.rows_of.values())))
        size = start[VALUE_HEAD].size
        assert all(one[-size:].any() and one[:-size].any() for one in made_of)
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
    assert gradients() == {unit: one for unit, one in whole.items() if unit != victim}
    assert len(set(whole.values())) == len(whole)


def test_under_record_local_the_steps_are_charged_and_the_delta_holds_the_head(
    make_silo, shared, ledger
):
    made = recipe("federated", value_learning_rate=0.5)
    asked, reserved = work(shared, ledger, **REINFORCED, normaliser=made.normaliser)
    evolution = make_silo(LOCAL, recipe=made).evolve(asked)
    assert len(reserved) == 1
    assert evolution.metrics["optimiser_steps"] == LOCAL.record.steps_per_round
    assert evolution.metrics["units_with_rows"] > 0
    # Adam's first step is as long as its rate; the head's is its own.
    assert np.abs(evolution.delta[VALUE_HEAD]).max() > 0.1
    assert max(np.abs(one).max() for one in without_head(evolution.delta).values()) < 0.1


def test_under_record_distributed_a_unit_moves_the_sum_by_no_more_than_the_clip(
    make_silo, shared, monkeypatch
):
    made = recipe("federated")
    settings = {**REINFORCED, "normaliser": made.normaliser}
    silo = make_silo(SURE, recipe=made)
    silo.evolve(work(shared, spec=SURE, **settings)[0])
    whole = summed(silo.unit_sum(step_work(shared, spec=SURE, **settings)))
    size = shared[VALUE_HEAD].size
    assert whole[-size:].any()
    victim = next(iter(population(silo, **settings).rows_of))
    groups = silo._memory.groups
    monkeypatch.setattr(
        silo._memory,
        "groups",
        lambda **asked: [g for g in groups(**asked) if str(g.task.task_id) != victim.key],
    )
    moved = summed(silo.unit_sum(step_work(shared, spec=SURE, **settings)))
    assert 0 < float(np.linalg.norm((whole - moved).astype(np.float64))) <= SURE.grid * 1.001


def test_the_recipe_says_where_its_head_is_and_which_modes_allow_that():
    local, federated = recipe(), recipe("federated")
    assert recipe_of("ppo", PartsSection()).value_head == "local"
    assert (local.value_head, federated.value_head) == ("local", "federated")
    assert (local.shares_value_head, federated.shares_value_head) == (False, True)
    assert recipe_of("grpo", PartsSection()).value_head is None
    (why,) = local.refusals(Mode.RECORD_LOCAL, "task")
    assert why.startswith("evolve.parts.objective: a value head of each silo's own")
    assert not local.refusals(Mode.SILO, "task")
    assert not federated.refusals(Mode.RECORD_DISTRIBUTED, "task")
