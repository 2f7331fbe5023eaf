"""Tasks are drawn by how much better their best try was than the mean."""

from collections import Counter

import pytest

from evolution.part import Part
from tests.kit.evolution.pools import draw, tried

PAST = [
    tried(2, (1, 1, 1, 1), round_index=1),
    tried(2, (1, 0, 0, 0), round_index=3),
    tried(4, (1, 1, 1, 0), round_index=2),
    tried(6, (0, 0, 0, 0), round_index=2),
    tried(8, (1, 1, 1, 1), round_index=2),
    # Two local epochs of one round, and an earlier round in which it was solved.
    tried(10, (1, 1), round_index=1),
    tried(10, (1, 0), round_index=2),
    tried(10, (0, 0), round_index=2),
    # Solved once, but not when it was tried last.
    tried(12, (1, 0), round_index=1),
    tried(12, (0, 0), round_index=2),
]


def regrets(groups, **options):
    return Part.own("regret", **options).make().regrets(groups)


def test_regret_is_the_best_minus_the_mean_of_the_last_round():
    assert regrets(PAST) == {2: 0.75, 4: 0.25, 6: 0.0, 8: 0.0, 10: 0.75, 12: 0.0}
    assert regrets(PAST[::-1]) == regrets(PAST)


def test_a_task_that_was_never_solved_has_none_whatever_its_returns():
    groups = [
        tried(2, (1, 0, 0), rewards=(1.0, 0.2, 0.0)),
        tried(4, (0, 0, 0), rewards=(0.9, 0.2, 0.0)),
    ]
    assert regrets(groups, reward="return") == {2: pytest.approx(0.6), 4: 0.0}
    assert regrets(groups) == {2: pytest.approx(2 / 3), 4: 0.0}


def test_tasks_are_drawn_by_their_regret():
    found = Counter(
        draw("regret", PAST, count=1, fresh=0.0, seed=seed)[0].task_id for seed in range(1400)
    )
    assert found.keys() == {2, 4, 10}
    # 3/7, 1/7, 3/7 of 1,400: ± 4 standard deviations.
    assert abs(found[4] - 200) < 53
    assert abs(found[2] - 600) < 75


def test_each_is_drawn_once_and_the_rest_is_fresh():
    drawn = draw("regret", PAST, count=8, fresh=0.0)
    assert {task.task_id for task in drawn[:3]} == {2, 4, 10}
    assert len({task.task_id for task in drawn}) == 8


def test_tries_that_begin_elsewhere_say_nothing():
    begun = [tried(20, (1, 0), prefix=("a",)), tried(20, (1, 0), variant="after 1")]
    assert draw("regret", [*PAST, *begun]) == draw("regret", PAST)
