"""Imitation with a tenth of the observations' own mean loss beside it."""

from dataclasses import replace

import numpy as np
import pytest

from dp.config import Mode
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.sft import SftTrainer
from federation.plan.methods import PARTS
from federation.plan.recipe import refusal
from tests.kit.evolution.sft import ALPHA, PLAN, RANK
from tests.kit.evolution.trajectories import credited, lost, named, names, shown, won

AGENT = [False, False, False, True, True]
TOLD = [True, True, True, False, False]
NONE = [False] * 5


def test_each_kind_is_divided_by_its_own_tokens():
    # Five tokens a step, two of them the agent's. Agent: the success's 4. Observations: the second
    # and later turns of all tries, 3 + 6. So N = 13: 13/4, and 0.1 · 13/9.
    solved, failed = won(1, steps=2), lost(2, steps=3, word=6)
    one, other = sorted(credited("echo", [solved, failed], now=0), key=len)
    assert one.mask.tolist() == AGENT + [True] * 5
    assert one.weights[3:5] == pytest.approx([13 / 4] * 2)
    assert one.weights[5:8] == pytest.approx([1.3 / 9] * 3)
    assert one.weights[8:] == pytest.approx([13 / 4] * 2)
    assert other.mask.tolist() == NONE + TOLD + TOLD
    assert other.weights[other.mask] == pytest.approx([1.3 / 9] * 6)


def test_what_was_solved_before_is_imitated_and_its_observations_are_not_the_rounds():
    before, now = won(1, round_index=1, steps=2), lost(2, round_index=2, steps=2, word=6)
    imitated, heard = sorted(
        credited("echo", [before, now], now=2), key=lambda row: -int(row.mask.sum())
    )
    assert imitated.mask.tolist() == AGENT * 2
    assert heard.mask.tolist() == NONE + TOLD
    assert named(credited("echo", [before, now], now=2, window=1)) == names(now)


def test_of_a_tasks_successes_the_shortest_is_imitated_and_all_are_heard():
    short, long = won(1), won(1, steps=2)
    rows = {row.name: row for row in credited("echo", [short, long, long], now=0)}
    assert rows[short.conversation_sha256].mask.tolist() == AGENT
    assert rows[long.conversation_sha256].mask.tolist() == NONE + TOLD


def test_with_one_kind_alone_it_has_its_own_mean():
    (row,) = credited("echo", [won(1)], now=0, demonstrations=[])
    assert row.weights[row.mask] == pytest.approx([1.0, 1.0])
    (row,) = credited("echo", [lost(1, steps=2)], now=0)
    assert row.weights[row.mask] == pytest.approx([0.1] * 3)
    assert credited("echo", [lost(1)], now=0) == []
    assert named(credited("echo", [lost(1)], now=0, demonstrations=[shown(4)])) == names(shown(4))


@pytest.mark.parametrize("coefficient", [0.1, 0.5])
def test_a_rounds_mean_loss_is_the_agents_and_a_part_of_the_observations(tiny_base, coefficient):
    tries = [won(1, steps=2), won(2, steps=3, word=6), lost(3, steps=4, word=7), lost(4, word=8)]
    rows = credited("echo", tries, now=0, coefficient=coefficient)
    adapter = initial_adapter(tiny_base, RANK, ALPHA, 0)
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    trainer.reset(adapter)
    said = {row.name: value for row, value in zip(rows, trainer.logprobs(rows), strict=True)}
    agent, told = [], []
    for one in tries:
        own = np.array(one.agent_mask)
        values = said.get(one.conversation_sha256, np.zeros(0))
        if not len(values):
            continue
        if one.success:
            agent += values[own].tolist()
        told += values[5:][~own[5:]].tolist()
    plan = replace(PLAN, epochs=1, batch_size=9)
    report = trainer.train(rows, Part.own("nll"), plan, trainable=frozenset(adapter))
    assert report.agent_tokens == len(agent) + len(told)
    assert report.first_loss == pytest.approx(
        -np.mean(agent) - coefficient * np.mean(told), rel=1e-5
    )


def test_it_is_refused_where_units_are_protected():
    for mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED):
        assert "credit 'echo' couples 'all'" in refusal(PARTS["echo"], mode, "task")
    assert refusal(PARTS["echo"], Mode.SILO, "task") is None
    # Why: what one task weighs depends on how much another was told.
    alone = credited("echo", [won(1, steps=2)], now=0)[0]
    beside = credited("echo", [won(1, steps=2), lost(2, steps=4)], now=0)
    assert alone not in beside
