"""On which token stands what an action earned."""

import dataclasses

import pytest

from evolution.part import Part
from evolution.trajectory import Group
from tests.kit.evolution.trajectories import won


def rows_of(*tries, **options):
    group = Group(task=tries[0].task, round=0, trajectories=tries)
    return Part.own("token-rewards", **options).make().credit([group], None, None)


def with_steps(one, *changes):
    """A try whose steps, of three tokens read and two said, differ in these ways."""
    step = won().steps[0]
    return dataclasses.replace(one, steps=tuple(dataclasses.replace(step, **c) for c in changes))


def test_success_stands_on_the_last_token_and_failures_are_rows_as_well():
    solved, failed = rows_of(won(steps=2), won(steps=2, success=False, word=9))
    assert (
        solved.mask.tolist()
        == failed.mask.tolist()
        == [False] * 3 + [True] * 2 + [False] * 3 + [True] * 2
    )
    assert solved.weights.tolist() == [0.0] * 9 + [1.0]
    assert failed.weights.tolist() == [0.0] * 10


def test_a_lone_try_is_worth_a_row():
    assert len(rows_of(won())) == 1


def test_an_action_that_could_not_be_read_is_paid_for_where_it_ended():
    (row,) = rows_of(with_steps(won(), {"invalid": True}, {}))
    assert row.weights.tolist() == pytest.approx([0.0] * 4 + [-0.1] + [0.0] * 4 + [1.0])
    (free,) = rows_of(with_steps(won(), {"invalid": True}, {}), invalid_penalty=0.0)
    assert free.weights[4] == 0.0


def test_the_environments_rewards_stand_where_their_actions_ended():
    tries = with_steps(won(), {"reward": 0.25}, {"reward": -2.0, "invalid": True})
    (row,) = rows_of(tries, reward="return", invalid_penalty=0.5)
    assert row.weights.tolist() == [0.0] * 4 + [0.25] + [0.0] * 4 + [-2.5]


def test_an_answer_that_was_cut_off_has_no_loss_and_what_it_earned_stands_before_it():
    lost = with_steps(won(success=False), {}, {"cut_off": True, "invalid": True})
    (row,) = rows_of(lost)
    assert row.mask.tolist() == [False] * 3 + [True] * 2 + [False] * 5
    assert row.weights.tolist() == pytest.approx([0.0] * 4 + [-0.1] + [0.0] * 5)
    # It was solved all the same: by the action before, as far as there is one.
    (solved,) = rows_of(with_steps(won(), {}, {"cut_off": True}))
    assert solved.weights.tolist() == [0.0] * 4 + [1.0] + [0.0] * 5
    assert not rows_of(with_steps(won(), {"cut_off": True}))
