"""Power-of-choice and Oort by losses do with the loss what they were published to do."""

import math
from collections import Counter
from random import Random

import pytest

from federation.plan.tables import SelectionSection
from lab.experiment.errors import ExperimentError
from lab.experiment.orchestration.by_loss import SiloLoss, oort, power_of_choice, utility
from lab.experiment.orchestration.orchestrator import Orchestrator, Tries
from lab.experiment.tables import OrchestrationTable

SILOS = tuple(f"silo-{place:02d}" for place in range(10))
SIZES = dict.fromkeys(SILOS, 100)


def seeded(seed):
    return Random(seed)  # noqa: S311 - a draw of whom is asked hides nothing


def known(loss, **changes):
    usual = {"loss": loss, "samples": 16, "seconds": 100.0, "round": 1}
    return SiloLoss(**usual | changes)


RISING = {silo_id: known(place / 10) for place, silo_id in enumerate(SILOS)}


def test_power_of_choice_takes_those_with_the_higher_loss_of_more_candidates():
    """K-Agent drew as many candidates as it kept, so that no loss ever counted."""
    every = power_of_choice(SIZES, RISING, count=3, candidates=10, rng=seeded(0))
    assert every == SILOS[-3:]
    few, many = (
        Counter(
            silo_id
            for seed in range(400)
            for silo_id in power_of_choice(SIZES, RISING, count=3, candidates=d, rng=seeded(seed))
        )
        for d in (4, 8)
    )
    half = SILOS[5:]
    share = [sum(found[s] for s in half) / found.total() for found in (few, many)]
    assert 0.55 < share[0] < share[1]
    # Of eight candidates of ten the lowest two can never be among the highest three.
    assert not many["silo-00"]
    with pytest.raises(ExperimentError, match="no choice"):
        power_of_choice(SIZES, RISING, count=3, candidates=3, rng=seeded(0))


def test_candidates_are_drawn_in_proportion_to_data_and_the_unknown_come_first():
    sizes = {**SIZES, "silo-00": 900}
    drawn = Counter(
        silo_id
        for seed in range(2000)
        for silo_id in power_of_choice(
            sizes, dict.fromkeys(SILOS, known(0.5)), count=1, candidates=2, rng=seeded(seed)
        )
    )
    # Ties keep the order of the draw: 900 of 1800 are first.
    assert abs(drawn["silo-00"] / 2000 - 0.5) < 0.06
    some = {s: RISING[s] for s in SILOS if s != "silo-03"}
    assert "silo-03" in power_of_choice(SIZES, some, count=2, candidates=10, rng=seeded(1))


def test_oorts_utility_by_hand():
    quick = known(0.5, round=4)
    # 16 · 0.5 + sqrt(0.1 · ln 9 / 4)
    expected = 8 + math.sqrt(0.1 * math.log(9) / 4)
    assert utility(quick, number=9, desired_s=100.0) == pytest.approx(expected)
    # Twice as slow as desired: a quarter of it.
    assert utility(known(0.5, round=4, seconds=200.0), number=9, desired_s=100.0) == pytest.approx(
        expected / 4
    )


def test_oort_exploits_near_the_cut_off_and_explores_those_it_never_saw():
    seen = {s: RISING[s] for s in SILOS[:7]}
    for seed in range(50):
        found = oort(SILOS, seen, count=5, explore=0.4, number=3, desired_s=100.0, rng=seeded(seed))
        new = set(found) & set(SILOS[7:])
        # ⌈0.6 · 5⌉ = 3 of the known, and 2 of three new ones.
        assert (len(found), len(new)) == (5, 2)
        # 0.6, 0.5, 0.4 are the best three; 0.95 of the last leaves nobody else.
        assert set(found) - new == {"silo-04", "silo-05", "silo-06"}
    # Nobody is known: all are explored; nobody is new: all are exploited.
    assert len(oort(SILOS, {}, count=4, explore=0.2, number=1, desired_s=1, rng=seeded(0))) == 4
    assert len(oort(SILOS, RISING, count=4, explore=0.5, number=2, desired_s=9, rng=seeded(0))) == 4


def test_oorts_memory_is_kept_from_round_to_round():
    """K-Agent made a new one on every call, so that everybody was always new."""
    made = OrchestrationTable(
        selection=SelectionSection(policy="oort", count=5, explore=1.0),
        knows="losses", liars=0, silent=0, drop=0.0, away=0.0, queue_s=0.0,
    )  # fmt: skip
    rounds = Orchestrator(
        made, run_id="x", sha256="ab" * 32, seed=1, rounds=3,
        families=dict.fromkeys(SILOS, ("craft",)), sizes=SIZES, most_tries=16,
    )  # fmt: skip
    cohorts = []
    for number in (1, 2):
        begun = rounds.begin(number)
        cohorts.append(set(begun.choice.silos))
        rounds.end(
            begun,
            {s: Tries(episodes={"craft": 16}, successes={"craft": 4}) for s in begun.answers},
            upload_bytes=0,
        )
    # With nothing but exploration the second round asks exactly those the first one did not.
    assert cohorts[0] | cohorts[1] == set(SILOS)
    assert not cohorts[0] & cohorts[1]
