"""Episodes begin where earlier tries went through, by how open their end is."""

from collections import Counter

import pytest

from evolution.parts.samplers.prefixes import success_of_prefixes
from evolution.parts.seam import MOST_START
from tests.kit.evolution.pools import draw, part_of, pool_of, tried, unreplayable

PAST = [
    tried(1, (1,), actions="abc"),
    tried(1, (0,), actions="abd"),
    tried(1, (0,), actions="aef"),
    # Begun at two actions: it says nothing of the first alone.
    tried(1, (1,), prefix="ab", actions="c"),
    # Begun at the first action, and went on by itself.
    tried(1, (1,), prefix="a", actions="egh"),
]


def test_success_of_the_tries_that_went_through_a_prefix():
    # (s + 1)/(n + 2), in the order in which tries came by
    assert list(success_of_prefixes(PAST).items()) == [
        ((1, ("a",)), pytest.approx(3 / 6)),  # 2 of 4
        ((1, ("a", "b")), pytest.approx(3 / 5)),  # 2 of 3
        ((1, ("a", "e")), pytest.approx(2 / 4)),  # 1 of 2
        ((1, ("a", "e", "g")), pytest.approx(2 / 3)),  # 1 of 1
    ]


def test_no_prefix_is_a_whole_try_and_none_is_empty():
    assert success_of_prefixes([tried(1, (1, 0), actions="a")]) == {}
    assert success_of_prefixes([tried(1, (1,), prefix="ab", actions="c")]).keys() == {
        (1, ("a", "b"))
    }


def test_variants_and_what_is_too_long_to_keep_are_no_candidates():
    long = "x" * (MOST_START - 2)
    groups = [
        tried(1, (1, 0), variant="after 1", actions="abc"),
        tried(2, (1, 0), actions=("a", long, "b", "c")),
    ]
    assert success_of_prefixes(groups).keys() == {(2, ("a",))}


def test_prefixes_are_drawn_by_twice_p_times_one_minus_p():
    groups = [tried(1, (1, 0), actions="ab"), tried(2, [1] * 8, actions="ab")]
    # p is 2/4 and 9/10, so they weigh 0.5 and 0.18.
    found = Counter()
    for seed in range(1000):
        (task,) = draw("prefixes", groups, count=1, fresh=0.0, seed=seed)
        assert task.prefix == ("a",)
        assert task.subject == f"user {task.task_id}"
        found[task.task_id] += 1
    assert abs(found[1] - 735) < 56


def test_a_task_may_begin_in_several_places_and_in_each_once():
    drawn = draw("prefixes", PAST, count=8, fresh=0.0)
    assert {task.prefix for task in drawn[:4]} == {
        ("a",), ("a", "b"), ("a", "e"), ("a", "e", "g")
    }  # fmt: skip
    assert all(task.task_id == 1 for task in drawn[:4])
    # The rest is fresh: other tasks, from their beginning.
    assert {task.prefix for task in drawn[4:]} == {()}
    assert len({task.task_id for task in drawn[4:]} - {1}) == 4


def test_an_environment_that_cannot_be_replayed_has_fresh_tasks_alone():
    drawn = draw("prefixes", PAST, pool_of(unreplayable(part_of())), fresh=0.0)
    assert {task.prefix for task in drawn} == {()}
