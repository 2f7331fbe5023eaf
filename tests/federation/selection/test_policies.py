"""Selection policies alone: what they choose, and that they are fair."""

import asyncio
import hashlib
from collections import Counter
from itertools import combinations, pairwise

import pytest

from federation.membership.facts import Availability, FreeGpu, SiloFacts
from federation.plan.tables import Section, SelectionScheduleSection, SelectionSection
from federation.selection.by_facts import Oort, PowerOfChoice, readiness
from federation.selection.decide import ADVISED, POLICIES, policy_of, public_draw
from federation.selection.policies import (
    All,
    Counted,
    PastRound,
    PublicFacts,
    PublicHistory,
    RandomDraw,
    RoundRobin,
    asked_in,
)

NAMES = tuple(f"silo-{number}" for number in range(5))
PLAN = hashlib.sha256(b"plan").digest()
NOTHING = PublicHistory(rounds=())
FACTS = PublicFacts(families=(), last_seen_unix_s=1.0, lost_in_a_row=0)


def choose(policy, *, live=NAMES, past=NOTHING, round_number=1, run_id="run-1", at_least=3):
    rng = public_draw(run_id, round_number, PLAN)
    facts = live if isinstance(live, dict) else dict.fromkeys(live, FACTS)
    return asyncio.run(policy.choose(facts, past, at_least=at_least, rng=rng))


def asked(*rounds):
    return PublicHistory(
        rounds=tuple(
            PastRound(round=number, asked=silos, survivors=(), outcome="aggregated")
            for number, silos in enumerate(rounds, start=1)
        )
    )


def test_plans_know_the_policies_that_there_are():
    named = set(SelectionSection.model_fields["policy"].annotation.__args__)
    assert named == {*POLICIES, ADVISED}
    for policy in POLICIES.values():
        assert set(policy.options.model_fields) <= set(SelectionSection.model_fields)


def test_all_asks_everybody():
    assert choose(All(Section())).silos == NAMES


def test_random_draws_each_three_of_five_as_often_as_any_other():
    policy, rounds = RandomDraw(Counted(count=3)), 2000
    found = Counter(choose(policy, round_number=number).silos for number in range(1, rounds + 1))
    assert set(found) == set(combinations(NAMES, 3))
    expected = rounds / 10
    chi_squared = sum((count - expected) ** 2 / expected for count in found.values())
    # Nine degrees of freedom: above 33.7 in one of ten thousand.
    assert chi_squared < 33.7


def test_random_depends_on_run_and_round_and_on_nothing_else():
    policy = RandomDraw(Counted(count=3))
    assert choose(policy) == choose(policy, live=reversed(NAMES), past=asked(NAMES[:3]))
    runs = {choose(policy, run_id=f"run-{number}").silos for number in range(30)}
    assert len(runs) > 5


@pytest.mark.parametrize("made", [RandomDraw, RoundRobin])
@pytest.mark.parametrize(("there", "count"), [(5, 3), (4, 4), (3, 3)])
def test_as_many_are_asked_as_there_are_up_to_k(made, there, count):
    choice = choose(made(Counted(count=count)), live=NAMES[:there])
    assert len(choice.silos) == min(there, count)
    assert set(choice.silos) <= set(NAMES[:there])
    assert choice.silos == tuple(sorted(choice.silos))
    assert str(len(choice.silos)) in choice.why


def test_round_robin_leaves_nobody_out_twice_in_a_row():
    policy, chosen = RoundRobin(Counted(count=3)), []
    for number in range(1, 11):
        chosen.append(choose(policy, past=asked(*chosen), round_number=number).silos)
    times = Counter(silo_id for silos in chosen for silo_id in silos)
    assert sorted(times) == list(NAMES)
    assert max(times.values()) - min(times.values()) <= 2
    for first, second in pairwise(chosen):
        assert set(NAMES) - set(first) <= set(second)


def test_round_robin_asks_who_was_never_asked_first():
    policy = RoundRobin(Counted(count=3))
    past = asked(("silo-0", "silo-1", "silo-2"), ("silo-0", "silo-1", "silo-3"))
    choice = choose(policy, past=past)
    assert {"silo-4", "silo-2"} <= set(choice.silos)
    assert "from the beginning" in choice.why


def test_round_robin_goes_by_who_was_asked_and_not_by_who_was_summed():
    lost = PublicHistory(
        rounds=(
            PastRound(round=1, asked=NAMES[:3], survivors=NAMES[:2], outcome="aggregated"),
            PastRound(round=2, asked=None, survivors=NAMES, outcome="bisected"),
        )
    )
    assert {"silo-3", "silo-4"} <= set(choose(RoundRobin(Counted(count=3)), past=lost).silos)
    assert lost.last_asked() == dict.fromkeys(NAMES[:3], 1)


def schedule(**given):
    return SelectionScheduleSection.model_validate(given)


def test_a_decay_asks_fewer_each_round_down_to_its_least():
    """K_t = max(to, ceil(K (1 - rate)^(t-1))), by hand: 20, 16, 12.8, 10.24, 8.192, 6.55."""
    decay = schedule(kind="decay", to=7, rate=0.2)
    assert [asked_in(20, decay, t, 10) for t in range(1, 8)] == [20, 16, 13, 11, 9, 7, 7]
    # 10 · 0.9 is 9 and not a hair more.
    assert asked_in(10, schedule(kind="decay", to=3, rate=0.1), 2, 10) == 9


def test_a_growth_goes_in_equal_steps_to_the_last_round():
    growth = schedule(kind="growth", to=10)
    assert [asked_in(4, growth, t, 4) for t in range(1, 6)] == [4, 6, 8, 10, 10]
    assert asked_in(4, growth, 1, 1) == 4


def test_a_schedule_moves_how_many_a_policy_asks():
    policy = RandomDraw(Counted(count=5, schedule=schedule(kind="decay", to=3, rate=0.3)))
    for number, count in ((1, 5), (2, 4), (3, 3), (9, 3)):
        past = PublicHistory(rounds=(), number=number, planned=10)
        assert len(choose(policy, past=past).silos) == count


def said(**given):
    return PublicFacts(
        families=(), last_seen_unix_s=1.0, lost_in_a_row=0, published=SiloFacts(**given)
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, 0.5 * 0.5),
        ({"queue": 0, "free_gpu": FreeGpu.ALL}, 1.0),
        ({"queue": 3, "free_gpu": FreeGpu.SOME}, 0.25 * 0.5),
        ({"queue": 0, "free_gpu": FreeGpu.ALL, "availability": Availability.DOWN}, 0.01),
        ({"queue": 0, "free_gpu": FreeGpu.ALL, "earliest_start_unix_s": 7200}, 0.25),
        ({"queue": 0, "free_gpu": FreeGpu.ALL, "earliest_start_unix_s": 3600}, 1.0),
    ],
)
def test_readiness_is_the_product_of_what_was_published(given, found):
    """The deadline is an hour from 0: whoever starts after two is a quarter as ready."""
    assert readiness(SiloFacts(**given), now_unix_s=0, ready_deadline_s=3600) == pytest.approx(
        found
    )


def test_power_of_choice_asks_the_readiest_of_more_candidates_than_it_asks():
    """With d = 5 of five every draw sees all, so the three with the shortest queues are asked."""
    live = {name: said(queue=queue) for name, queue in zip(NAMES, (4, 0, 2, 9, 1), strict=True)}
    policy = PowerOfChoice(PowerOfChoice.options(count=3, candidates=5))
    assert choose(policy, live=live).silos == ("silo-1", "silo-2", "silo-4")
    fewer = PowerOfChoice(PowerOfChoice.options(count=3, candidates=4))
    drawn = {choose(fewer, live=live, round_number=number).silos for number in range(1, 200)}
    # Whoever queues longest is asked by nobody, for one of any four is always readier.
    assert {name for silos in drawn for name in silos} == set(NAMES) - {"silo-3"}
    assert len(drawn) > 3


def test_of_those_who_publish_nothing_power_of_choice_draws_alike():
    policy = PowerOfChoice(PowerOfChoice.options(count=3, candidates=5))
    found = Counter(
        name for number in range(1, 2001) for name in choose(policy, round_number=number).silos
    )
    assert max(found.values()) - min(found.values()) < 200


def test_oort_explores_who_was_never_asked_and_exploits_the_rest():
    live = {name: said(queue=0, free_gpu=FreeGpu.ALL) for name in NAMES}
    live["silo-2"] = said(queue=99)
    past = asked(("silo-0", "silo-1", "silo-2"))
    policy = Oort(Oort.options(count=3, explore=0.34))
    for number in range(2, 60):
        choice = choose(policy, live=live, past=past, round_number=number)
        assert len(set(choice.silos) & {"silo-3", "silo-4"}) == 1
        # Far below 0.95 of the cut-off, a silo with a long queue is not drawn.
        assert {"silo-0", "silo-1"} <= set(choice.silos)


def test_oort_asks_everybody_new_first_and_remembers_beyond_the_rounds_it_is_told():
    policy = Oort(Oort.options(count=4, explore=1.0))
    past = PublicHistory(rounds=(), before=dict.fromkeys(NAMES[:2], 1), number=40, planned=50)
    assert {"silo-2", "silo-3", "silo-4"} <= set(choose(policy, past=past).silos)


def test_a_history_that_is_cut_still_knows_whom_the_earlier_rounds_chose():
    past = asked(*[(f"silo-{number % 5}",) for number in range(12)])
    cut = past.newest(3)
    assert len(cut.rounds) == 3
    assert cut.last_asked() == past.last_asked()


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ({"policy": "power-of-choice", "count": 4}, "candidates"),
        ({"policy": "power-of-choice", "count": 4, "candidates": 4}, "candidates"),
        ({"policy": "random", "count": 4, "candidates": 9}, "power-of-choice"),
        ({"policy": "random", "count": 4, "explore": 0.5}, "oort"),
        ({"policy": "random", "count": 4, "advice": {}}, "advised"),
        ({"policy": "oort"}, "set count"),
        ({"policy": "all", "schedule": {"kind": "growth", "to": 5}}, "chooses nothing"),
        ({"policy": "advised", "schedule": {"kind": "growth", "to": 5}}, "schedule"),
        ({"policy": "random", "count": 4, "schedule": {"kind": "decay", "to": 3}}, "rate"),
        (
            {"policy": "random", "count": 4, "schedule": {"kind": "decay", "to": 5, "rate": 0.1}},
            "does not end at 5",
        ),
        ({"policy": "random", "count": 4, "ranges": {}}, "nothing may move"),
    ],
)
def test_what_does_not_fit_a_policy_is_refused(toml, problem):
    with pytest.raises(ValueError, match=problem):
        SelectionSection.model_validate(toml)


def test_an_advised_plan_without_a_count_asks_everybody_without_advice():
    assert policy_of(SelectionSection(policy="advised")).name == "all"
    advised = SelectionSection(policy="advised", count=4)
    assert policy_of(advised).name == "round-robin"
