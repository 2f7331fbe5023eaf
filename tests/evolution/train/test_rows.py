"""How a batch is divided: nothing lost, nothing repeated, no pass over its limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolution.train.rows import Row, cut, deal, in_order, micro_batches
from evolution.train.trainer import TrainerSpec
from evolution.trajectory import Step, Task, Trajectory

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=20).map(sorted)


def row(length: int, agent: int = 1) -> Row:
    mask = np.zeros(length, dtype=np.bool_)
    mask[length - min(agent, length) :] = True
    return of(np.arange(length), mask)


def of(token_ids: np.ndarray, mask: np.ndarray) -> Row:
    ones = np.ones(len(token_ids), dtype=np.float32)
    return Row(token_ids=token_ids, mask=mask, weights=ones, logprobs=0 * ones)


def episode(*, action: int, context: int = 3, task_id: int = 0) -> Trajectory:
    step = Step(
        observation="o",
        action="a",
        context_ids=tuple(range(context)),
        action_ids=tuple(range(action)),
        action_logprobs=(0.0,) * action,
    )
    return Trajectory(
        task=Task(environment="e", task_id=task_id),
        steps=(step,),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=0,
    )


@given(lengths, st.integers(0, 120))
def test_passes_are_the_rows_within_the_limit(sizes, most):
    rows = [row(size) for size in sizes]
    passes = micro_batches(rows, most)
    assert [id(r) for p in passes for r in p] == [id(r) for r in rows]
    if most == 0:
        assert len(passes) == 1
    else:
        assert all(len(p) == 1 or len(p) * max(map(len, p)) <= most for p in passes)
        # No two neighbours would have fitted into one pass.
        for one, two in itertools.pairwise(passes):
            assert (len(one) + 1) * len(two[0]) > most


@given(lengths, st.integers(1, 5), st.integers(0, 120))
def test_processes_share_a_batch_in_equally_many_passes(sizes, processes, most):
    rows = [row(size) for size in sizes]
    dealt = deal(rows, processes=processes, most_tokens=most)
    assert len(dealt) == processes
    assert len({len(passes) for passes in dealt}) == 1
    found = [id(r) for passes in dealt for p in passes for r in p]
    assert sorted(found) == sorted(map(id, rows))


def test_rows_are_sorted_by_length_whatever_the_order():
    # Two of one length, told apart by what was said.
    episodes = [
        episode(action=2 + size, context=3 + shift)
        for size, shift in ((4, 0), (1, 1), (9, 0), (2, 0))
    ]
    rows = in_order(map(Row.of, episodes))
    assert [len(r) for r in rows] == [7, 7, 9, 14]
    assert sorted(r.loss_tokens for r in rows[:2]) == [3, 4]
    assert [r.loss_tokens for r in rows[2:]] == [6, 11]
    assert in_order(map(Row.of, episodes[::-1])) == rows


def test_a_batch_without_a_token_to_learn_is_no_step():
    """A first token has nothing before it, so the model never predicts it."""
    rows = [of(np.array([1]), np.array([True])), row(5, agent=0), row(6, agent=2)]
    assert [len(batch) for batch in cut(rows, 2)] == [1]
    assert cut(rows[:2], 2) == []
    assert [len(batch) for batch in cut(rows, 3)] == [3]


@pytest.mark.parametrize(
    "wrong",
    [{"device": "tpu"}, {"micro_batch_tokens": -1}, {"processes": 0}, {"sharding": "zero"}],
)
def test_a_spec_says_what_is_wrong_with_it(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainerSpec(**wrong)
