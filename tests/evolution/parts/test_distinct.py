"""Ways to succeed: each imitated once, and what a group with several of them is worth."""

import dataclasses

import pytest

from evolution.part import Part
from tests.kit.evolution.trajectories import (
    credited,
    doing,
    group_of,
    lost,
    named,
    names,
    shown,
    won,
)

SHORT = doing(won(1), "walk")
SAME = doing(won(1, word=6, round_index=1), "walk")
TWO = doing(won(1, steps=2), "look", "walk")
THREE = doing(won(1, steps=3), "look", "look", "walk")
TRIES = [SHORT, SAME, TWO, THREE, doing(lost(1, word=9), "stay")]


def test_a_way_to_succeed_is_imitated_once_by_its_shortest_try():
    longer = dataclasses.replace(won(2, word=8), steps=(*won(2, word=8).steps,))
    longer = dataclasses.replace(
        longer, steps=(dataclasses.replace(longer.steps[0], action_ids=(8, 8, 4),
                                           action_logprobs=(-1.0,) * 3),)
    )  # fmt: skip
    brief = won(2, word=9)
    rows = credited("distinct", [*TRIES, longer, brief], now=1)
    first = min((SHORT, SAME), key=lambda one: one.conversation_sha256)
    assert named(rows) == names(first, TWO, THREE, brief)
    assert all((row.weights == 1.0).all() for row in rows)


@pytest.mark.parametrize(("copies", "kept"), [(1, 1), (2, 2), (4, 3)])
def test_no_more_of_a_task_than_the_plan_says_the_shortest_first(copies, kept):
    rows = credited("distinct", [SHORT, TWO, THREE], now=0, copies=copies)
    assert named(rows) == names(*(SHORT, TWO, THREE)[:kept])


def test_what_was_shown_need_not_be_found_again_and_is_outside_the_number():
    example = doing(shown(1, word=7), "walk")
    rows = credited("distinct", TRIES, now=1, demonstrations=[example], copies=1)
    assert named(rows) == names(example, TWO)


def weights(*tries):
    made = Part.own("set-diversity").make()
    return [float(row.weights[row.mask][0]) for row in made.credit([group_of(*tries)], None, None)]


def test_a_group_whose_successes_are_of_one_kind_counts_less():
    fails = [doing(lost(1, word=w), "stay") for w in (8, 9)]
    walks = [doing(won(1, word=w), "walk") for w in (5, 6)]
    # Half of four succeed: ±½; and of the two successes there is one way.
    assert weights(*walks, *fails) == pytest.approx([0.25, 0.25, -0.25, -0.25])
    swims = doing(won(1, word=7), "swim")
    assert weights(walks[0], swims, *fails) == pytest.approx([0.5, 0.5, -0.5, -0.5])
    # Three successes of two ways, one failure: ⅔ · ¼ and ⅔ · −¾.
    assert weights(*walks, swims, fails[0]) == pytest.approx([1 / 6, 1 / 6, 1 / 6, -0.5])


def test_without_a_success_or_a_contrast_there_is_nothing_to_learn():
    invalid = dataclasses.replace(lost().steps[0], invalid=True)
    worse = dataclasses.replace(lost(word=9), steps=(invalid,))
    assert weights(lost(), worse) == []
    assert weights(doing(won(), "walk"), doing(won(word=6), "swim")) == []
    assert weights(won()) == []
