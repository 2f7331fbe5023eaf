"""The simulation's arithmetic, by hand: when silos answer, what a round comes to, what is known."""

import asyncio
import json
import math

import pytest

from federation.membership.facts import Availability, FreeGpu, SiloFacts
from federation.plan.tables import SelectionSection
from federation.selection.decide import Inputs
from federation.selection.decided import read_decisions
from lab.experiment.errors import StateError
from lab.experiment.orchestration.orchestrator import BEGINS_UNIX_S, Orchestrator, Tries
from lab.experiment.orchestration.silos import (
    Draw,
    Profile,
    Word,
    answered_after_s,
    away_left_s,
    draws,
    facts,
)
from lab.experiment.orchestration.timing import timing_of
from lab.experiment.tables import OrchestrationTable

MIDNIGHT = BEGINS_UNIX_S
EVEN = {"speeds": 0.0, "jitter": 0.0, "queue_s": 0.0, "drop": 0.0, "away": 0.0}
"""Every silo answers after exactly ``work_s``."""


def profile(**changes):
    usual = {
        "work_s": 600.0, "wait_s": 0.0, "drop": 0.0, "away_from_h": 0.0, "away_h": 0.0,
        "word": Word.TRUE,
    }  # fmt: skip
    return Profile(**usual | changes)


def table(**changes):
    usual = {"selection": SelectionSection(policy="all"), "liars": 0, "silent": 0, "quorum": 3}
    return OrchestrationTable(**usual | changes)


def orchestrator(made, count=3, **changes):
    names = [f"silo-{place}" for place in range(count)]
    usual = {
        "run_id": "x", "sha256": "ab" * 32, "seed": 1, "rounds": 4,
        "families": dict.fromkeys(names, ("craft",)), "sizes": dict.fromkeys(names, 100),
        "most_tries": 16,
    }  # fmt: skip
    return Orchestrator(made, **usual | changes)


def tried(silo_ids, solved):
    return {s: Tries(episodes={"craft": 16}, successes={"craft": solved}) for s in silo_ids}


def test_a_round_of_three_silos():
    """300 s, 450 s and never: the deadline is waited for, and two of three are ready."""
    answers = {"c": 450.0, "a": 300.0, "b": None}
    late = timing_of(answers, deadline_s=500, quorum=2)
    assert (late.ready, late.is_lost, late.seconds) == (("a", "c"), False, 500.0)
    lost = timing_of(answers, deadline_s=500, quorum=3)
    assert (lost.ready, lost.is_lost, lost.seconds) == (("a", "c"), True, 500.0)
    # Everybody in time: the round ends with the last of them, who may answer at the deadline.
    early = timing_of({"a": 300.0, "b": 450.0, "c": 500.0}, deadline_s=500, quorum=3)
    assert (early.is_lost, early.seconds) == (False, 500.0)
    assert timing_of({"a": 300.0, "b": 20.0}, deadline_s=500, quorum=2).seconds == 300.0
    assert timing_of({"a": 500.5, "b": None}, deadline_s=500, quorum=1).ready == ()


def test_when_a_silo_answers():
    """Away from 22:00 for nine hours, asked at 01:00: back in six, then its wait and its work."""
    one = profile(away_from_h=22.0, away_h=9.0)
    at_one = MIDNIGHT + 3600
    assert away_left_s(one, at_one) == 6 * 3600
    assert away_left_s(one, MIDNIGHT + 7 * 3600) == 0
    assert away_left_s(one, MIDNIGHT + 21 * 3600) == 0
    draw = Draw(wait_s=100.0, work_s=650.0, is_silent=False)
    assert answered_after_s(one, draw, at_one) == 6 * 3600 + 750
    assert answered_after_s(one, draw, MIDNIGHT + 12 * 3600) == 750
    assert answered_after_s(one, Draw(wait_s=0, work_s=1, is_silent=True), at_one) is None


def test_what_silos_publish_and_that_a_liar_says_the_same_always():
    draw = Draw(wait_s=1500.0, work_s=650.0, is_silent=False)
    away = {"away_from_h": 22.0, "away_h": 9.0}
    told = facts(profile(**away), draw, MIDNIGHT + 3599.5)
    assert told == SiloFacts(
        availability=Availability.DOWN, queue=2, free_gpu=FreeGpu.NONE,
        earliest_start_unix_s=MIDNIGHT + 7 * 3600,
    )  # fmt: skip
    there = facts(profile(**away), draw, MIDNIGHT + 12 * 3600)
    assert (there.availability, there.queue, there.free_gpu) == ("up", 2, "some")
    assert there.earliest_start_unix_s is None
    lie = SiloFacts(availability=Availability.UP, queue=0, free_gpu=FreeGpu.ALL)
    assert facts(profile(word=Word.LIES, **away), draw, MIDNIGHT + 3599.5) == lie
    assert facts(profile(word=Word.SILENT, **away), draw, MIDNIGHT) == SiloFacts()


def test_silos_are_those_of_the_seed_and_liars_are_of_those_who_are_away():
    made = table(liars=5, silent=3)
    silos = Profile.all_of(made, 7, 25)
    assert silos == Profile.all_of(made, 7, 25) != Profile.all_of(made, 8, 25)
    liars = [one for one in silos if one.word is Word.LIES]
    assert (len(liars), sum(one.word is Word.SILENT for one in silos)) == (5, 3)
    assert all(one.away_h == 8.0 for one in liars)
    assert sum(one.away_h > 0 for one in silos) == 10
    assert draws(made, silos, 7, 3) == draws(made, silos, 7, 3) != draws(made, silos, 7, 4)
    # As many more liars than silos are away, so that all of those lie.
    many = Profile.all_of(table(liars=20), 7, 25)
    assert all(one.word is Word.LIES for one in many if one.away_h)


def test_the_clock_and_the_figures_of_rounds():
    """1500 s; and with a deadline that nobody keeps 2 × 1000 s for nothing."""
    rounds = orchestrator(table(**EVEN, figure_z=0.0, ready_deadline_s=2000))
    begun = rounds.begin(1)
    assert begun.answers == dict.fromkeys(("silo-0", "silo-1", "silo-2"), 1500.0)
    rounds.end(begun, tried(begun.timing.ready, 4), upload_bytes=120)
    assert rounds.now_unix_s == MIDNIGHT + 1500
    inputs = last_inputs(rounds, 2)
    (past,) = inputs.past.rounds
    assert (past.outcome, past.seconds, past.upload_bytes) == ("aggregated", 1500.0, 120)
    # 12 of 48 tries, without noise.
    assert (past.success, past.success_error) == (0.25, 0.0)
    assert past.asked == past.survivors == ("silo-0", "silo-1", "silo-2")

    hurried = orchestrator(table(**EVEN, ready_deadline_s=1000))
    for number in (1, 2):
        begun = hurried.begin(number)
        assert begun.timing.is_lost
        hurried.end(begun, {}, upload_bytes=0)
    assert hurried.now_unix_s == MIDNIGHT + 2000
    inputs = last_inputs(hurried, 3)
    assert [one.outcome for one in inputs.past.rounds] == ["skipped", "skipped"]
    assert [one.success for one in inputs.past.rounds] == [None, None]
    assert {told.lost_in_a_row for told in inputs.live.values()} == {2}


def last_inputs(rounds, number):
    """What the decision of the next round followed from."""
    rounds.begin(number)
    *_, newest = read_decisions(rounds.decisions.encode().splitlines())
    return Inputs.from_json(newest.inputs)


def test_noise_of_the_figures_is_told_with_its_error():
    """Counts of 48 tries with noise of 1.6: the ratio's error is sqrt(1.6² (1 + ρ²)) / n."""
    rounds = orchestrator(table(**EVEN))
    begun = rounds.begin(1)
    rounds.end(begun, tried(begun.timing.ready, 4), upload_bytes=0)
    (past,) = last_inputs(rounds, 2).past.rounds
    assert past.success != 0.25
    assert abs(past.success - 0.25) < 5 * past.success_error
    assert past.success_error == pytest.approx(1.6 * math.hypot(1, past.success) / 48, rel=0.15)


SETTINGS = {
    "constant": {"selection": {"policy": "random", "count": 6}},
    "schedule": {
        "selection": {
            "policy": "random", "count": 9,
            "schedule": {"kind": "decay", "rate": 0.2, "to": 5},
        }
    },
    "uniform": {"selection": {"policy": "random", "count": 6}, "draws_count": True},
    "facts": {"selection": {"policy": "power-of-choice", "count": 6, "candidates": 9}},
    "loss-poc": {
        "selection": {"policy": "power-of-choice", "count": 6, "candidates": 9},
        "knows": "losses",
    },
    "loss-oort": {"selection": {"policy": "oort", "count": 6}, "knows": "losses"},
    "oracle": {"selection": {"policy": "random", "count": 6}, "knows": "answers"},
    "advised": {
        "selection": {
            "policy": "advised", "count": 6, "ranges": {"ready_deadline_s": [1800, 7200]},
            "advice": {"style": "count", "then": "random"},
        },
        "adviser": "rule",
    },
    "names": {
        "selection": {
            "policy": "advised", "count": 6, "ranges": {"ready_deadline_s": [1800, 7200]},
            "advice": {"style": "silos", "then": "random"},
        },
        "adviser": "rule",
    },
}  # fmt: skip


def of_setting(name, **changes):
    document = {"liars": 3, "silent": 2, "quorum": 5, **SETTINGS[name]}
    return OrchestrationTable.model_validate_json(json.dumps(document | changes))


def played(rounds, numbers):
    for number in numbers:
        begun = rounds.begin(number)
        ready = () if begun.timing.is_lost else begun.timing.ready
        rounds.end(begun, tried(ready, 4 + number), upload_bytes=10 * len(ready))
        yield begun


@pytest.mark.parametrize("name", SETTINGS)
def test_every_decision_comes_out_again_and_a_run_that_goes_on_decides_alike(name):
    made = of_setting(name)
    whole = orchestrator(made, count=12, rounds=6)
    begun = list(played(whole, range(1, 7)))
    decided = list(read_decisions(whole.decisions.encode().splitlines()))
    assert [one.round for one in decided] == [1, 2, 3, 4, 5, 6]
    for one in decided:
        assert asyncio.run(one.again()) == one.choice
        assert len(one.choice.silos) >= 5
    assert all(one.is_advised == (name in ("advised", "names")) for one in begun)

    before = orchestrator(made, count=12, rounds=6)
    list(played(before, range(1, 4)))
    after = orchestrator(made, count=12, rounds=6)
    after.take_up(before.record())
    list(played(after, range(4, 7)))
    assert after.decisions == whole.decisions
    assert (after.now_unix_s, after.record()) == (whole.now_unix_s, whole.record())


def test_a_journal_that_is_none_is_refused():
    with pytest.raises(StateError):
        orchestrator(table()).take_up(b'{"now_unix_s": "soon"}')


def test_the_bound_asks_nobody_who_will_not_answer_and_a_schedule_asks_as_many_as_it_says():
    bound = orchestrator(of_setting("oracle"), count=12, rounds=6)
    for one in played(bound, range(1, 7)):
        assert one.timing.is_lost or len(one.timing.ready) == len(one.answers) <= 6
    schedule = orchestrator(of_setting("schedule"), count=12, rounds=6)
    # 9 · 0.8^(t−1), rounded up, at least 5.
    assert [len(one.choice.silos) for one in played(schedule, range(1, 7))] == [9, 8, 6, 5, 5, 5]
    uniform = orchestrator(of_setting("uniform"), count=12, rounds=40)
    counts = {len(one.choice.silos) for one in played(uniform, range(1, 41))}
    assert (min(counts), max(counts)) == (5, 12)


def test_the_adviser_costs_the_time_of_its_requests():
    quick, slow = (
        orchestrator(of_setting("names", adviser_s=s, **EVEN), count=12) for s in (0.0, 30.0)
    )
    for one in (quick, slow):
        assert one.begin(1).requests == 2
    assert slow.now_unix_s - quick.now_unix_s == 60.0
