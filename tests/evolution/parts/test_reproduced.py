"""Successes that wait until half of the task's tries succeed."""

from tests.kit.evolution.trajectories import credited, lost, named, names, shown, won

NAME = "reproduced"


def test_a_success_counts_once_half_of_the_tries_are_solved():
    # One of three waits, for ⌈3/2⌉ is 2; two of three, and one of two, do not.
    lucky = [won(1), lost(1, word=6), lost(1, word=7)]
    sure = [won(2), won(2, steps=2), lost(2, word=7)]
    even = [won(3), lost(3, word=6)]
    rows = credited(NAME, [*lucky, *sure, *even], now=0)
    assert named(rows) == names(sure[0], even[0])
    assert all((row.weights == 1.0).all() for row in rows)
    rows = credited(NAME, [*lucky, *sure, *even], now=0, best_per_task=False)
    assert named(rows) == names(*sure[:2], even[0])


def test_tries_are_counted_over_the_window_and_equal_ones_as_often_as_they_were_played():
    lucky = won(1, round_index=1)
    fails = [lost(1, round_index=1, word=w) for w in (6, 7)]
    later = [won(1, round_index=2, word=8)]
    assert credited(NAME, [lucky, *fails], now=1) == []
    # Two of four: both of them, and with the window of the later round alone that one.
    both = credited(NAME, [lucky, *fails, *later], now=2, best_per_task=False)
    assert named(both) == names(lucky, *later)
    assert named(credited(NAME, [lucky, *fails, *later], now=2, window=1)) == names(*later)
    # The same failure three times is three tries.
    again = [won(2), *[lost(2, word=6)] * 3]
    assert credited(NAME, again, now=0) == []
    assert named(credited(NAME, [won(2), won(2), *again[1:3]], now=0)) == names(won(2))


def test_what_was_shown_does_not_wait():
    lucky = [won(1), lost(1, word=6), lost(1, word=7)]
    rows = credited(NAME, lucky, now=0, demonstrations=[shown(1, word=9), shown(5)])
    assert named(rows) == names(shown(1, word=9), shown(5))
    # A success that is what was shown is there as what was shown.
    rows = credited(NAME, lucky, now=0, demonstrations=[shown(1)])
    assert named(rows) == names(lucky[0])
