"""Earlier successes that the player was neither unsure of nor too sure of, and how many of them."""

import dataclasses
import math

import pytest

from dp.config import Mode
from evolution.parts.credits.confident_replay import certainty
from federation.errors import UnknownPartError
from federation.plan.methods import PARTS
from federation.plan.recipe import PartChoice, PartsSection, recipe_of, refusal
from tests.kit.evolution.trajectories import credited, lost, named, names, shown, won

NAME = "confident-replay"


def sure(one, value):
    """The same, each of whose tokens had this probability."""
    steps = tuple(
        dataclasses.replace(step, action_logprobs=(math.log(value),) * len(step.action_ids))
        for step in one.steps
    )
    return dataclasses.replace(one, steps=steps)


def test_certainty_is_the_geometric_mean_over_all_tokens():
    step = won().steps[0]
    one = dataclasses.replace(
        won(),
        steps=(
            dataclasses.replace(step, action_logprobs=(math.log(0.5), math.log(0.5))),
            dataclasses.replace(step, action_ids=(4,), action_logprobs=(0.0,)),
        ),
    )
    assert certainty(one) == pytest.approx(0.25 ** (1 / 3))


FRESH = won(9, round_index=5, steps=3)


@pytest.mark.parametrize(
    ("value", "replayed"),
    [(0.3, False), (0.501, True), (0.7, True), (0.949, True), (0.951, False), (1.0, False)],
)
def test_between_the_bounds_it_is_replayed(value, replayed):
    old = sure(won(1, round_index=4), value)
    rows = credited(NAME, [FRESH, old], now=5)
    assert named(rows) == names(FRESH, *([old] if replayed else []))
    assert all((row.weights == 1.0).all() for row in rows)


def test_the_lower_bound_is_outside_and_the_upper_inside():
    old = sure(won(1, round_index=4), 0.7)
    value = certainty(old)
    assert len(credited(NAME, [FRESH, old], now=5, low=0.1, high=value)) == 2
    assert len(credited(NAME, [FRESH, old], now=5, low=value, high=0.9)) == 1


def test_of_each_task_one_of_the_newest_round_that_has_one():
    oldest = sure(won(1, round_index=2), 0.7)
    newer = sure(won(1, round_index=4, steps=2, word=6), 0.7)
    too_sure = sure(won(1, round_index=4, word=7), 0.99)
    failed = sure(lost(1, round_index=4, word=8), 0.7)
    rows = credited(NAME, [FRESH, oldest, newer, too_sure, failed], now=5)
    assert named(rows) == names(FRESH, newer)
    assert named(credited(NAME, [FRESH, oldest, newer], now=5, window=1)) == names(FRESH)


OLD = [sure(won(task, round_index=4, word=task), 0.7) for task in range(1, 8)]


def test_no_more_steps_are_replayed_than_the_fresh_ones_allow():
    # Three fresh steps: six of the seven; at half a step a step one.
    assert len(credited(NAME, [FRESH, *OLD], now=5)) == 1 + 6
    assert len(credited(NAME, [FRESH, *OLD], now=5, times=0.5)) == 1 + 1
    assert named(credited(NAME, [FRESH, *OLD], now=5, times=0.0)) == names(FRESH)
    long = sure(won(1, round_index=4, steps=7), 0.7)
    # What does not fit is left out, and what comes after it may.
    for seed in range(4):
        rows = credited(NAME, [FRESH, long, *OLD[1:3]], now=5, seed=seed)
        assert named(rows) == names(FRESH, *OLD[1:3])


def test_which_of_them_is_drawn_by_the_parts_own_stream():
    def drawn(seed):
        return tuple(named(credited(NAME, [FRESH, *OLD], now=5, times=0.5, seed=seed)))

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(6)}) > 1


def test_without_a_fresh_success_there_is_nothing_to_replay_beside():
    assert credited(NAME, [lost(9, round_index=5), *OLD], now=5) == []
    rows = credited(NAME, [lost(9, round_index=5), *OLD], now=5, demonstrations=[shown(3)])
    assert named(rows) == names(shown(3))


def test_of_a_fresh_task_the_shortest_or_all_as_the_plan_says():
    tries = [FRESH, won(9, round_index=5, word=6), won(9, round_index=5, word=6)]
    assert named(credited(NAME, tries, now=5)) == names(tries[1])
    assert named(credited(NAME, tries, now=5, best_per_task=False)) == names(*tries[:2])


def test_what_is_fresh_is_not_replayed_as_well():
    again = dataclasses.replace(sure(FRESH, 0.7), round=4)
    assert len(credited(NAME, [FRESH, again], now=5)) == 1
    # The same words at another task are another conversation.
    other = dataclasses.replace(again, task=OLD[0].task)
    assert len(credited(NAME, [FRESH, other], now=5)) == 2


def test_one_tasks_replay_depends_on_anothers_success_so_it_couples_all():
    # The same earlier success has room beside three fresh steps, and none beside one.
    old = sure(won(1, round_index=4, steps=3), 0.7)
    assert len(credited(NAME, [FRESH, old], now=5)) == 2
    assert len(credited(NAME, [won(9, round_index=5), old], now=5)) == 1
    for mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED):
        assert "couples 'all'" in refusal(PARTS[NAME], mode, "task")
    assert refusal(PARTS[NAME], Mode.SILO, "task") is None


def test_bounds_that_hold_nothing_are_refused():
    with pytest.raises(UnknownPartError, match="low is below high"):
        recipe_of("fed-se", PartsSection(credit=PartChoice(name=NAME, low=0.9, high=0.9)))
