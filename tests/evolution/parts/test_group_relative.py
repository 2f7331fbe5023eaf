"""What a try is worth beside the others at its task, against numbers worked out by hand."""

import dataclasses

import numpy as np
import pytest

from evolution.part import Part
from evolution.trajectory import Group
from tests.kit.evolution.trajectories import won


def group(*tries):
    return Group(task=tries[0].task, round=0, trajectories=tries)


def rows_of(groups, *, name="group-relative", **options):
    return Part.own(name, **options).make().credit(groups, None, None)


def worths(*solved, **changes):
    """A group of tries, solved or not, each with words of its own."""
    return group(*(won(success=bool(s), word=5 + i, **changes) for i, s in enumerate(solved)))


@pytest.mark.parametrize(
    ("options", "solved", "others"),
    [
        # One of four: 1 − 1/4 and −1/4; the sample's deviation is 1/2.
        ({}, 0.75, -0.25),
        ({"scale": "std"}, 0.75 / (0.5 + 1e-6), -0.25 / (0.5 + 1e-6)),
        ({"scale": "mean"}, 3.0, -1.0),
        # Against the mean of the three others: 1 − 0, and 0 − 1/3.
        ({"baseline": "others"}, 1.0, -1 / 3),
    ],
)
def test_advantages_of_one_success_in_four(options, solved, others):
    rows = rows_of([worths(1, 0, 0, 0)], **options)
    assert [row.weights[row.mask] for row in rows] == [
        pytest.approx([advantage] * 2, rel=1e-6) for advantage in (solved, *[others] * 3)
    ]
    # The agent's own tokens, and none of what it read.
    assert all(row.mask.tolist() == [False, False, False, True, True] for row in rows)


def test_groups_without_contrast_have_no_rows():
    assert not rows_of([worths(1, 1, 1), worths(0, 0), worths(1)])
    assert not rows_of([worths(0, 0, 0)], scale="std")
    assert len(rows_of([worths(1, 1), worths(1, 0)])) == 2


def test_scaled_by_the_mean_a_group_that_is_worth_nothing_on_average_has_no_credit():
    invalid = dataclasses.replace(won().steps[0], invalid=True)
    worse = dataclasses.replace(won(success=False, word=9), steps=(invalid,))
    lost = group(won(success=False), worse)
    assert rows_of([lost], scale="mean") == []
    assert len(rows_of([lost])) == 2


def test_actions_that_could_not_be_read_are_paid_for():
    step = won().steps[0]
    bad = dataclasses.replace(step, invalid=True, action_ids=(8, 4))
    tries = (won(), dataclasses.replace(won(), steps=(bad, bad, step)))
    one, other = rows_of([group(*tries)])
    assert one.weights[0] == pytest.approx(0.1)
    assert other.weights[0] == pytest.approx(-0.1)
    assert not rows_of([group(*tries)], invalid_penalty=0.0)


def test_the_return_counts_what_the_environment_gave():
    step = won().steps[0]
    some = dataclasses.replace(won(success=False), steps=(dataclasses.replace(step, reward=0.6),))
    none = won(success=False, word=9)
    one, other = rows_of([group(some, none)], reward="return")
    assert (one.weights[0], other.weights[0]) == (pytest.approx(0.3), pytest.approx(-0.3))


def test_an_answer_that_was_cut_off_has_no_loss_and_its_try_stays():
    step = won().steps[0]
    cut = dataclasses.replace(step, cut_off=True)
    lost = dataclasses.replace(won(success=False), steps=(step, cut), truncated=True)
    one, other = rows_of([group(won(word=9), lost)])
    assert other.mask.tolist() == [False, False, False, True, True] + [False] * 5
    assert other.weights[3] == pytest.approx(-0.5)
    whole = dataclasses.replace(lost, steps=(cut,))
    (alone,) = rows_of([group(won(word=9), whole)])
    assert alone.weights[0] == pytest.approx(0.5)
    assert one.weights[0] == pytest.approx(0.5)


def test_batch_scaled_is_over_the_deviation_of_the_round():
    groups = [worths(1, 0, 0, 0), worths(1, 1)]
    found = [float(row.weights[0]) for row in rows_of(groups, name="batch-scaled")]
    plain = np.array([0.75, -0.25, -0.25, -0.25, 0.0, 0.0])
    assert found == pytest.approx((plain / (plain.std(ddof=1) + 1e-6))[:4])
    # Which is why it is refused where units are protected: the other group decides the scale.
    alone = [float(row.weights[0]) for row in rows_of(groups[:1], name="batch-scaled")]
    assert alone != pytest.approx(found)
