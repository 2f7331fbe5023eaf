"""Replayed successes: how much they are worth, how old they may be, and which plan has any."""

import dataclasses

import pytest

from evolution.part import Part
from evolution.parts.credits.self_imitation import share_solved
from federation.plan.recipe import PartsSection, recipe_of, require_fitting
from tests.kit.evolution.trajectories import credited, group_of, lost, named, names, won

NAME = "self-imitation"
WIN = won(1, round_index=3)
# Half of round 3 was solved, nothing of round 5: p = ½·½ + ½·0 = ¼.
HARD = [WIN, lost(1, round_index=3, word=6), *(lost(1, round_index=5, word=w) for w in (7, 8))]


def test_an_earlier_success_is_worth_what_the_task_still_fails():
    (row,) = credited(NAME, HARD, now=5)
    assert row.name == WIN.conversation_sha256
    assert row.weights[row.mask] == pytest.approx([0.75, 0.75])
    assert row.mask.tolist() == [False] * 3 + [True] * 2
    # What bounds how far today's policy learns from it: the probabilities of then.
    assert row.logprobs.tolist() == pytest.approx([0.0, 0.0, 0.0, -0.1, -1 / 3])


@pytest.mark.parametrize(
    ("options", "worth"),
    [
        ({"replay_weight": 0.2}, 0.15),
        ({"decay": 0.0}, 1.0),
        ({"decay": 0.9}, 1 - 0.45),
        ({"least": 0.7}, 0.75),
        ({"least": 0.75}, None),
        ({"replay_weight": 0.2, "least": 0.16}, None),
        ({"max_age": 2}, 0.75),
        ({"max_age": 1}, None),
    ],
)
def test_its_options(options, worth):
    rows = credited(NAME, HARD, now=5, **options)
    assert [float(row.weights[3]) for row in rows] == (
        [] if worth is None else [pytest.approx(worth)]
    )


def test_what_is_mastered_is_not_replayed():
    sure = [won(1, round_index=number, word=w) for number in (3, 4, 5) for w in (5, 6)]
    assert credited(NAME, sure, now=5) == []


def test_tries_of_the_round_have_the_credit_of_group_relative():
    fresh = [won(2, round_index=5, word=6), *(lost(2, round_index=5, word=w) for w in (7, 8, 9))]
    alone = Part.own("group-relative").make().credit([group_of(*fresh)], None, None)
    both = credited(NAME, [*HARD, *fresh], now=5)
    assert sorted(both[:-1], key=lambda row: row.name) == sorted(alone, key=lambda row: row.name)
    assert both[-1].name == WIN.conversation_sha256
    scaled = credited(NAME, fresh, now=5, scale="mean")
    assert sorted(float(row.weights[3]) for row in scaled) == pytest.approx([-1, -1, -1, 3])


def test_the_rounds_own_successes_are_not_replayed_as_well():
    assert credited(NAME, [won(1, round_index=5), won(1, round_index=5, word=6)], now=5) == []


def test_a_conversation_that_was_had_twice_is_replayed_once_as_it_was_last_played():
    step = dataclasses.replace(WIN.steps[0], action_logprobs=(-0.5, -0.25))
    again = dataclasses.replace(WIN, steps=(step,), round=4)
    rows = credited(NAME, [*HARD, again], now=5)
    assert named(rows) == names(again)
    assert rows[0].logprobs[3:].tolist() == [-0.5, -0.25]


def test_a_rounds_share_is_over_all_its_tries_whoever_played_them():
    # Rounds of ½ over two adapters, and of 0: ½·½ + ½·0.
    first = group_of(won(1, round_index=3), lost(1, round_index=3))
    by_another = dataclasses.replace(
        group_of(won(1, round_index=3, word=8), lost(1, round_index=3, word=9)),
    )
    last = group_of(lost(1, round_index=5))
    assert share_solved([first, by_another, last], decay=0.5) == pytest.approx(0.25)
    # A round of which no try came to its end says nothing.
    none = dataclasses.replace(last, trajectories=(), dropped=2, round=6)
    assert share_solved([first, last, none], decay=0.5) == pytest.approx(0.25)
    assert share_solved([none], decay=0.5) == 0.0


def test_no_part_of_one_task_depends_on_another():
    other = [
        won(7, round_index=4, word=9),
        *(lost(7, round_index=4, word=w) for w in (5, 6)),
        lost(7, round_index=5),
    ]
    alone, both = credited(NAME, HARD, now=5), credited(NAME, [*HARD, *other], now=5)
    assert [row for row in both if row.unit == alone[0].unit] == alone
    # Of the other task a third of round 4 was solved: 1 − ½·⅓, and its own success replayed.
    (theirs,) = (row for row in both if row.unit != alone[0].unit)
    assert float(theirs.weights[3]) == pytest.approx(5 / 6)


def test_a_plan_whose_window_has_no_earlier_round_is_refused():
    def fitting(window, method="spear"):
        require_fitting(
            recipe_of(method, PartsSection()),
            nominal_tokens=9,
            temperature=1.0,
            tries_per_task=4,
            window=window,
        )

    fitting(0)
    fitting(2)
    fitting(1, "grpo")
    with pytest.raises(ValueError, match=r"a window of 1 has none: set window to at least 2, or"):
        fitting(1)
