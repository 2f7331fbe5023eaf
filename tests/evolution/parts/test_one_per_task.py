"""AgentEvol's filter: above a threshold, one of a task, the newest round's first."""

import dataclasses

import pytest

from tests.kit.evolution.trajectories import credited, lost, named, names, shown, won


def giving(one, reward):
    """The same with this reward at its first step."""
    first, *rest = one.steps
    return dataclasses.replace(one, steps=(dataclasses.replace(first, reward=reward), *rest))


OLD = won(1, round_index=1)
NEW = won(1, round_index=3, steps=2, word=6)
LONGER = won(1, round_index=3, steps=3, word=7)
OTHER = won(2, round_index=2)
TRIES = [OLD, lost(1, round_index=2, word=8), NEW, LONGER, OTHER, lost(3, round_index=3)]


def test_of_each_task_the_newest_rounds_shortest_good_try_is_a_row():
    rows = credited("one-per-task", TRIES, now=3)
    assert named(rows) == names(NEW, OTHER)
    assert all((row.weights == 1.0).all() for row in rows)
    (row,) = (row for row in rows if row.name == OTHER.conversation_sha256)
    assert row.mask.tolist() == [False] * 3 + [True] * 2


def test_the_window_says_how_far_back_it_goes():
    assert named(credited("one-per-task", TRIES, now=3, window=1)) == names(NEW)
    assert named(credited("one-per-task", TRIES[:1], now=3, window=0)) == names(OLD)
    assert credited("one-per-task", TRIES[:1], now=3, window=2) == []


def test_by_the_return_a_failure_may_be_good_enough_and_a_success_may_not():
    tries = [giving(won(1), 0.5), giving(lost(1, word=6), 0.75), giving(won(2), 0.25)]
    rows = credited("one-per-task", tries, now=0, reward="return", threshold=0.5)
    assert named(rows) == names(tries[1])
    assert named(credited("one-per-task", tries, now=0)) == names(tries[0], tries[2])


@pytest.mark.parametrize("shown_first", [False, True])
def test_demonstrations_are_always_there_and_one_conversation_once(shown_first):
    other, same = shown(1, steps=4), shown(2) if shown_first else shown(2, word=9)
    rows = credited("one-per-task", TRIES, now=3, demonstrations=[other, same, shown(9)])
    expected = [NEW, OTHER, other, shown(9)] + ([] if shown_first else [same])
    assert named(rows) == names(*expected)
    # Without a good try of its own a task still has what was shown.
    assert named(credited("one-per-task", [lost(9)], now=0, demonstrations=[shown(9)])) == names(
        shown(9)
    )
