"""The choice between the shared adapter, the silo's own, what lies between, and the base."""

import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest

from evolution.envs import catalogue
from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Assignment, Evaluation, EvolveSettings, Work
from evolution.methods.personal.choice import tasks_to_choose_by
from evolution.methods.personal.compared import (
    CANDIDATES,
    SHARED,
    Candidate,
    Choice,
    Choices,
    Compared,
    choice_of,
)
from evolution.methods.personal.interpolation import interpolated
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from tests.kit.evolution import coin
from tests.kit.evolution.coin import Coin
from tests.kit.evolution.silos import silos

RANK, ALPHA = 2, 4.0
OWN = Candidate(kind="own", weight=1.0)
BASE = Candidate(kind="base", weight=0.0)
ASKED = {"temperatures": (1.0, 0.0), "max_new_tokens": 3, "episodes": 10, "first_task": 4}


class Other(Coin):
    """The other half."""

    name = family = "other"

    def side(self, letter):
        return letter > "m"


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {
        **catalogue.ENVIRONMENTS,
        "coin": f"{coin.__name__}:Coin",
        "other": f"{__name__}:Other",
    }
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def make_silo(tiny_base, tmp_path):
    shards = {"coin": Shard(index=1, count=2), "other": None}
    with silos(tiny_base, tmp_path, "coin", rank=RANK, alpha=ALPHA) as make:

        def silo(name="silo", environments=("coin", "other"), **options):
            shares = tuple(Assignment(environment=n, shard=shards[n]) for n in environments)
            return make(name, assignments=shares, options=options)

        yield silo


@pytest.fixture
def adapter(tiny_base):
    return initial_adapter(tiny_base, RANK, ALPHA, 0)


def evaluation(adapter, round_index=1, **changes) -> Evaluation:
    return Evaluation(
        round=round_index, adapter=adapter, adapter_sha256=f"{round_index}", **ASKED | changes
    )


def spied(silo, monkeypatch):
    """What the engine plays from now on, by the order in which it is loaded."""
    loaded = []
    load = silo._engine.load_adapter
    monkeypatch.setattr(
        silo._engine, "load_adapter", lambda name, a: (loaded.append(dict(a)), load(name, a))
    )
    return loaded


def same(one, two) -> bool:
    return one.keys() == two.keys() and all(
        np.asarray(one[k]).tobytes() == np.asarray(two[k]).tobytes() for k in one
    )


# The rule -----------------------------------------------------------------------------------------


def compared(tasks, gained, lost, candidate=OWN) -> Compared:
    return Compared(candidate=candidate, tasks=tasks, gained=gained, lost=lost)


def test_better_is_above_zero_by_more_than_one_standard_error():
    """In whole numbers, for all counts of a dozen tasks, as the textbook's formula has it."""
    for gained, lost in itertools.product(range(13), repeat=2):
        if gained + lost > 12:
            continue
        outcomes = np.repeat([1.0, -1.0, 0.0], [gained, lost, 12 - gained - lost])
        one = compared(12, gained, lost)
        error = float(outcomes.std(ddof=1)) / math.sqrt(12)
        assert one.standard_error == pytest.approx(error)
        assert one.difference == pytest.approx(outcomes.mean())
        if not math.isclose(one.difference, error):  # Equal in numbers, but for rounding.
            assert one.better == (one.difference > error)
    # One task that only the candidate solves is one standard error, and not more.
    assert not compared(12, 1, 0).better
    assert not compared(1, 1, 0).better
    assert compared(12, 2, 0).better
    assert math.isinf(compared(1, 1, 0).standard_error)


def choice(**by_kind) -> Choice:
    """Counts by kind; interpolations have the same ones."""
    return Choice(
        compared=tuple(compared(40, *by_kind.get(one.kind, (0, 0)), one) for one in CANDIDATES)
    )


def test_the_shared_adapter_stays_until_something_is_told_apart_from_it():
    assert choice().chosen == SHARED
    assert choice(own=(3, 3), base=(5, 4)).chosen == SHARED
    assert choice(own=(9, 2)).chosen == OWN
    assert choice(own=(9, 2), base=(20, 1)).chosen == BASE
    # The largest difference, not the surest one; of equals what is nearest to the shared adapter.
    assert choice(own=(9, 2), interpolated=(5, 0)).chosen == OWN
    assert choice(own=(9, 2), interpolated=(7, 0)).chosen == CANDIDATES[0]
    assert choice(own=(9, 2), base=(7, 0)).chosen == OWN


def test_families_are_added_up_for_whoever_serves_one_adapter():
    found = Choices(
        families={"coin": choice(own=(9, 2)), "other": choice(own=(0, 8))},
        members={"coin": "coin", "coin-2": "coin", "other": "other"},
    )
    assert found.overall.compared[3] == compared(80, 9, 10)
    assert found.overall.chosen == SHARED
    assert [found.chosen_in(n) for n in ("coin", "coin-2", "other", "foreign")] == [
        OWN, OWN, SHARED, SHARED
    ]  # fmt: skip
    assert Choices(families={}, members={}).overall.chosen == SHARED


def test_a_task_that_one_of_two_did_not_finish_tells_them_nothing():
    solved = {one: [True, True, None, False] for one in (SHARED, *CANDIDATES)}
    solved[OWN] = [None, False, True, True]
    assert choice_of(solved).compared[3] == compared(2, 1, 1)


def test_what_is_kept_is_what_is_read():
    found = Choices(families={"coin": choice(own=(9, 2))}, members={"coin": "coin"})
    assert Choices.of(found.row()) == found


@pytest.mark.parametrize(
    "breaks",
    [
        lambda row: row.pop("members"),
        lambda row: row.update(families=[]),
        lambda row: row["members"].update(coin="nowhere"),
        lambda row: row.update(own_sha256="0" * 65),
        lambda row: row.update(own_sha256=None),
        lambda row: row["families"].update({"\x1b[2J": row["families"]["coin"]}),
        lambda row: row["families"]["coin"].pop(),
        lambda row: row["families"]["coin"].reverse(),
        lambda row: row["families"]["coin"][0].update(weight=0.3),
        lambda row: row["families"]["coin"][0].update(tasks=True),
        lambda row: row["families"]["coin"][0].update(gained=-1),
        lambda row: row["families"]["coin"][0].update(lost=41),
        lambda row: row["families"]["coin"][0].update(gained=1.5),
    ],
)
def test_a_row_that_is_no_choice_is_refused(breaks):
    row = Choices(families={"coin": choice()}, members={"coin": "coin"}).row()
    breaks(row)
    with pytest.raises(ValueError, match=r"^an? "):
        Choices.of(row)


# The tasks ----------------------------------------------------------------------------------------


class Few(Coin):
    """Ten held-out tasks."""

    def task_ids(self, split, *, shard=None):
        return super().task_ids(split, shard=shard)[: 10 if shard is None else 5]


def chosen_by(**changes):
    few = Few()
    asked = {"shard": None, "judged": few.task_ids(Split.HELD_OUT)[2:5], "count": 4, **changes}
    return few, [task.task_id for task in tasks_to_choose_by(few, name="coin", **asked)]


def test_tasks_to_choose_by_are_the_silos_own_and_none_is_judged():
    few, found = chosen_by()
    ids = few.task_ids(Split.HELD_OUT)
    assert found == [ids[9], ids[8], ids[7], ids[6]]
    few, found = chosen_by(count=99)
    assert sorted(found) == [*ids[:2], *ids[5:]]
    few, found = chosen_by(shard=Shard(index=1, count=2), judged=ids)
    assert found == []
    _, found = chosen_by(shard=Shard(index=1, count=2), count=2)
    assert [few.task_label(task_id) for task_id in found] == ["odd", "odd"]
    _, found = chosen_by(labels={"even"}, count=99)
    assert {few.task_label(task_id) for task_id in found} == {"even"}


# The silo -----------------------------------------------------------------------------------------


SETTINGS = EvolveSettings(
    episodes=16, tries_per_task=2, max_new_tokens=3, window=2, batch_size=4, learning_rate=1e-2
)


def work(adapter, round_index=0) -> Work:
    return Work(
        round=round_index,
        adapter=adapter,
        adapter_sha256=f"{round_index}",
        trainable=frozenset(adapter),
        settings=SETTINGS,
        seed=0,
    )


def test_all_candidates_play_the_same_own_tasks_that_are_not_judged(
    make_silo, adapter, monkeypatch
):
    silo = make_silo(personal="residual", personal_choice=6)
    silo.evolve(work(adapter))
    loaded = spied(silo, monkeypatch)
    reset, played = Coin.reset, []
    monkeypatch.setattr(Coin, "reset", lambda s, i: (played.append((s.name, i)), reset(s, i))[1])
    asked = evaluation(adapter)
    found = silo.choose(asked)
    chosen_by = set(played)
    own = silo._personal.current(adapter)
    expected = [adapter, *(interpolated(adapter, own, w) for w in (0.25, 0.5, 0.75)), own, {}]
    assert len(loaded) == len(expected)
    assert all(map(same, loaded, expected))
    assert len(played) == 6 * 12
    assert all(task_id % 2 == 1 for name, task_id in chosen_by if name == "coin")
    assert found.members == {"coin": "coin", "other": "other"}
    assert found.own_sha256 == hashlib.sha256(encode_adapter(own)).hexdigest()
    assert {one.tasks for family in found.families.values() for one in family.compared} == {6}
    # What is judged, whichever adapter, was not chosen by.
    played.clear()
    chosen = {"coin": CANDIDATES[1], "other": BASE}
    for evaluation_of in (asked, dataclasses.replace(asked, chosen=chosen, personal=True)):
        silo.evaluate(evaluation_of)
    assert len(played) == 2 * 2 * 2 * 10
    assert not chosen_by & set(played)
    # The same again is the same.
    assert silo.choose(asked) == found


def test_each_family_is_played_by_what_was_chosen_for_it(make_silo, adapter, monkeypatch):
    silo = make_silo(personal="residual", personal_choice=6)
    silo.evolve(work(adapter))
    loaded = spied(silo, monkeypatch)
    rows = silo.evaluate(evaluation(adapter, chosen={"other": OWN, "coin": CANDIDATES[0]}))
    own = silo._personal.current(adapter)
    assert all(map(same, loaded, [own, interpolated(adapter, own, 0.25)]))
    assert [row.environment for row in rows] == ["other"] * 4 + ["coin"] * 4


def test_what_learned_more_is_chosen_and_a_tie_is_not(make_silo, adapter, monkeypatch):
    silo = make_silo(environments=("coin",), personal="ditto", personal_choice=40)
    for index in range(3):
        silo.evolve(work(adapter, index))
    found = silo.choose(evaluation(adapter)).families["coin"]
    own = found.compared[3]
    assert own.better
    assert own.gained - own.lost > own.tasks * own.standard_error
    assert found.chosen.kind in {"own", "interpolated"}
    monkeypatch.setattr(Coin, "success", lambda _self, _info: False)
    assert silo.choose(evaluation(adapter)).overall.chosen == SHARED


def test_a_silo_that_asks_for_no_choice_makes_none(make_silo, adapter, monkeypatch):
    silo = make_silo(personal="residual")
    loaded = spied(silo, monkeypatch)
    assert silo.choose(evaluation(adapter)) is None
    # Before it has learned anything of its own, all but the base are one adapter, played once.
    fresh = make_silo("fresh", personal="residual", personal_choice=4)
    loaded = spied(fresh, monkeypatch)
    found = fresh.choose(evaluation(adapter))
    assert [bool(tensors) for tensors in loaded] == [True, False]
    assert found.overall.chosen.kind in {"shared", "base"}


def test_choosing_changes_no_bit_of_what_later_rounds_upload(make_silo, adapter):
    without = make_silo("without", personal="residual")
    chooses = make_silo("with", personal="residual", personal_choice=6)
    now = adapter
    for index in range(3):
        one, two = without.evolve(work(now, index)), chooses.evolve(work(now, index))
        assert same(one.delta, two.delta)
        assert (one.episodes, one.successes) == (two.episodes, two.successes)
        now = {name: value + one.delta[name] for name, value in now.items()}
        found = chooses.choose(evaluation(now, index + 1))
        chooses.evaluate(evaluation(now, index + 1, chosen=dict.fromkeys(found.members, OWN)))
        assert same(without._personal.current(now), chooses._personal.current(now))
    assert without._memory.known_tasks() == chooses._memory.known_tasks()
