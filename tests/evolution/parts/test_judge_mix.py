"""Outcomes as questions: who is asked about, what is answered, and what is never imitated."""

from __future__ import annotations

import numpy as np
import pytest

from evolution.errors import PartError
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.rollout.conversation import ChatFormat
from evolution.trajectory import Group
from tests.kit.evolution.plays import task, tried
from tests.kit.evolution.scripted_engine import tokenizer

CHAT = ChatFormat.from_tokenizer(tokenizer())


def rows_of(*tries, **options):
    group = Group(task=task(1), round=2, trajectories=tries)
    view = MemoryView(
        successes=lambda _shortest: [one for one in tries if one.success], groups=lambda: [group]
    )
    work = PartWork(
        round=2,
        tries_per_task=4,
        best_per_task=True,
        temperature=1.0,
        rng=np.random.default_rng(0),
        rendered=CHAT.render,
    )
    with view.opened():
        return Part.own("judge-mix", **options).make().credit([group], view, work)


def text(row, mask=None):
    ids = row.token_ids if mask is None else row.token_ids[mask]
    return CHAT._tokenizer.decode(ids.tolist())


def won(word):
    return tried(task(1), "open", word, solved=True)


def lost(word):
    return tried(task(1), "look", word)


def test_as_many_solved_tries_as_failed_ones_are_asked_about():
    acting, *asked = rows_of(won("a"), lost("b"), lost("c"), won("d"), won("e"), each=2)[2:]
    # Three successes are imitated; two of each kind are questions.
    assert acting.weights[acting.mask].tolist() == [1.0] * int(acting.mask.sum())
    assert [text(row, row.mask) for row in asked] == ["yes<|im_end|>"] * 2 + ["no<|im_end|>"] * 2
    assert [sum(f"> {word}" in text(row) for row in asked) for word in "adbce"] == [1, 1, 1, 1, 0]


def test_a_task_that_only_failed_teaches_judging_and_no_acting():
    (row,) = rows_of(lost("a"), lost("b"))
    assert text(row, row.mask) == "no<|im_end|>"
    assert row.weights[row.mask] == pytest.approx(0.15)
    # What was done is in the question, and what came of it is not.
    assert "> look" in text(row)
    assert "the end" not in text(row)


def test_questions_are_the_tasks_own():
    rows = rows_of(won("a"), lost("b"))
    assert len(rows) == 3
    assert {row.unit for row in rows} == {rows[0].unit}
    assert len({row.name for row in rows}) == 3


def test_where_nothing_can_be_written_it_says_so():
    work = PartWork(
        round=1,
        tries_per_task=1,
        best_per_task=True,
        temperature=1.0,
        rng=np.random.default_rng(0),
    )
    with pytest.raises(PartError, match="tokenizer"):
        work.rendered("a", ["b"], ["c"])
