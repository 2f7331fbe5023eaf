"""Which tasks are at the edge of what the agent can do, and what becomes of those beyond it."""

from collections import Counter

import pytest

from federation.errors import UnknownPartError
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, recipe_of
from tests.kit.evolution.pools import draw, part_of, pool_of, tried


def again(groups, part, **options):
    """Which tasks are drawn before fresh ones are, each with its variant; over many draws."""
    seen = {group.task.task_id for group in groups}
    drawn = [
        draw("failures", groups, pool_of(part), count=1, fresh=0.0, seed=seed, **options)[0]
        for seed in range(60)
    ]
    return {(one.task_id, one.variant) for one in drawn if one.task_id in seen}


@pytest.mark.parametrize(
    ("tries", "kept"),
    [
        # (s + 1)/(n + 2), from 0.05 to 0.75.
        ([(1, 0, 0, 0)], True),  # 2/6
        ([(1, 1, 1, 0)], True),  # 4/6
        ([(1, 1, 1, 1)], False),  # 5/6
        ([(1, 1)], True),  # 3/4
        ([(1, 1, 1)], False),  # 4/5
        ([(1,)], True),  # 2/3
        ([(1, 1, 1, 1), (0, 0, 0, 0)], True),  # 5/10, over two rounds
        ([(1, *[0] * 37)], True),  # 2/40
        ([(1, *[0] * 39)], False),  # 2/42
        ([(0, 0, 0, 0)], False),  # never solved, and there are no variants
    ],
)
def test_tasks_whose_estimated_success_lies_within_are_drawn_again(tries, kept):
    groups = [tried(7, one, round_index=number) for number, one in enumerate(tries, start=1)]
    part = part_of([7, *range(1000, 5000)])
    first = [draw("failures", groups, pool_of(part), fresh=0.0, seed=seed)[0] for seed in range(5)]
    assert all((task.task_id == 7) is kept for task in first)
    assert all(task.variant == "" for task in first)


def test_bounds_are_the_plans():
    groups = [tried(7, (1, 1, 1, 1)), tried(8, (1, 0, 0, 0))]
    part = part_of([7, 8, *range(1000, 5000)])
    assert again(groups, part, low=0.8, high=0.9) == {(7, "")}
    assert again(groups, part, low=0.05, high=0.9) == {(7, ""), (8, "")}
    with pytest.raises(UnknownPartError, match="low is at most high"):
        recipe_of(FED_SE, PartsSection(sampler=PartChoice(name="failures", low=0.5, high=0.4)))


def test_of_a_task_that_was_never_solved_its_variants_are_drawn():
    part = part_of(
        [1, 2, 3, *range(1000, 5000)],
        variants={1: ("after 1", "after 2"), 2: ("after 1",), 1000: ("after 1",)},
    )
    groups = [
        tried(1, (0, 0, 0, 0)),
        tried(2, (1, 0, 0, 0)),
        tried(3, (0, 0, 0, 0)),
    ]
    # The second was solved: it is drawn as it is. The third has no variants.
    assert again(groups, part) == {(1, "after 1"), (1, "after 2"), (2, "")}


def test_a_variant_is_left_once_it_is_mastered_or_hopeless():
    part = part_of([1, *range(1000, 5000)], variants=("easy", "middle", "hard", "new"))
    groups = [
        tried(1, (0, 0, 0, 0)),
        tried(1, (1, 1, 1, 1), variant="easy"),  # 5/6
        tried(1, (1, 0, 0, 0), variant="middle"),  # 2/6
        tried(1, [0] * 19, variant="hard"),  # 1/21
    ]
    assert again(groups, part) == {(1, "middle"), (1, "new")}
    # 1/20 after 18 tries is within.
    groups[-1] = tried(1, [0] * 18, variant="hard")
    assert again(groups, part) == {(1, "middle"), (1, "hard"), (1, "new")}
    # Solved as it is, it needs no variant.
    assert again([*groups, tried(1, (1, 0), round_index=2)], part) == {(1, "")}
    # Its own tries have left the window, and those at its variants are there.
    assert again(groups[1:], part) == {(1, "middle"), (1, "hard"), (1, "new")}


def test_many_variants_of_a_task_make_it_no_likelier():
    many = tuple(f"after {number}" for number in range(1, 10))
    part = part_of([1, 2, *range(1000, 5000)], variants={1: many, 2: ("after 1",)})
    groups = [tried(1, (0, 0)), tried(2, (0, 0))]
    first = Counter(
        draw("failures", groups, pool_of(part), count=1, fresh=0.0, seed=seed)[0].task_id
        for seed in range(400)
    )
    assert first.keys() == {1, 2}
    assert abs(first[1] - 200) < 41


def test_tries_from_prefixes_are_no_word_on_the_task():
    part = part_of([1, *range(1000, 5000)])
    assert again([tried(1, (1, 0), prefix=("a",))], part) == set()
