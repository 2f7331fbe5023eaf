"""Selection policies alone: what they choose, and that they are fair."""

import asyncio
import hashlib
from collections import Counter
from itertools import combinations, pairwise

import pytest

from federation.plan.tables import Section, SelectionSection
from server.run.selection import (
    POLICIES,
    All,
    Counted,
    PastRound,
    PublicFacts,
    PublicHistory,
    RandomDraw,
    RoundRobin,
    public_draw,
)

NAMES = tuple(f"silo-{number}" for number in range(5))
PLAN = hashlib.sha256(b"plan").digest()
NOTHING = PublicHistory(rounds=())
FACTS = PublicFacts(families=(), last_seen_unix_s=1.0, lost_in_a_row=0)


def choose(policy, *, live=NAMES, past=NOTHING, round_number=1, run_id="run-1", at_least=3):
    rng = public_draw(run_id, round_number, PLAN)
    facts = dict.fromkeys(live, FACTS)
    return asyncio.run(policy.choose(facts, past, at_least=at_least, rng=rng))


def asked(*rounds):
    return PublicHistory(
        rounds=tuple(
            PastRound(round=number, asked=silos, survivors=(), outcome="aggregated")
            for number, silos in enumerate(rounds, start=1)
        )
    )


def test_plans_know_the_policies_that_there_are():
    assert set(SelectionSection.model_fields["policy"].annotation.__args__) == set(POLICIES)
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
