"""Tasks that were won by luck are tried again first."""

import pytest

from evolution.part import Part
from federation.errors import UnknownPartError
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, recipe_of
from tests.kit.evolution.pools import draw, tried


@pytest.mark.parametrize(
    ("tries", "lucky"),
    [
        ([(1, 0, 0, 0)], True),
        ([(0, 1, 0)], True),
        ([(1, 1, 0, 0)], False),
        ([(1, 0)], False),
        ([(1,)], False),
        ([(0, 0, 0, 0)], False),
        ([(1, 0, 0, 0), (1, 0, 0, 0)], True),  # 2 of 8
        ([(1, 0, 0, 0), (1, 1, 1, 0)], False),  # 4 of 8: it reproduces
        ([(1, 0, 0, 0), (0, 0, 0, 0), (0,)], False),  # 1 of 9: it had its chances
    ],
)
def test_a_lucky_win_is_less_than_half_of_at_most_eight_tries(tries, lucky):
    groups = [tried(7, one, round_index=number) for number, one in enumerate(tries, start=1)]
    assert Part.own("rerun").make().lucky(groups) == ([7] if lucky else [])


def test_the_most_tries_are_the_plans():
    groups = [tried(7, (1, 0, 0, 0))]
    assert Part.own("rerun", most_tries=3).make().lucky(groups) == []
    with pytest.raises(UnknownPartError, match="greater than or equal to 3"):
        recipe_of(FED_SE, PartsSection(sampler=PartChoice(name="rerun", most_tries=2)))


def test_lucky_wins_come_before_fresh_tasks_each_once_and_as_likely():
    groups = [tried(n, (1, 0, 0, 0)) for n in (3, 5)] + [tried(8, (1, 1, 1, 0))]
    drawn = draw("rerun", groups, count=6)
    assert {task.task_id for task in drawn[:2]} == {3, 5}
    assert len({task.task_id for task in drawn}) == 6
    first = [draw("rerun", groups, count=1, seed=seed)[0].task_id for seed in range(400)]
    assert set(first) == {3, 5}
    assert abs(first.count(3) - 200) < 41


def test_tries_that_begin_elsewhere_do_not_count():
    begun = [tried(7, (1, 0, 0), prefix=("a",)), tried(7, (1, 0, 0), variant="after 1")]
    assert draw("rerun", begun) == draw("rerun")
