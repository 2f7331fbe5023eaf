"""Imitation that is held to the round's adapter, more and more."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.objective import RowTensors, TokenOut
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from tests.kit.evolution.sft import ALPHA, EPISODES, NLL, PLAN, RANK, apart

HELD = {"first": 0.5, "last": 2.5}


def terms(progress, **options):
    now = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    before = torch.tensor([-1.5, -1.0], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    made = Part.own("anchored", **options).make()
    made.progress = progress
    row = RowTensors(torch.ones(2, dtype=torch.bool), weights, torch.zeros(2))
    found = made.terms(TokenOut(now, None, {"reference": before}), row)
    (gradient,) = torch.autograd.grad(found.sum(), now)
    return found.tolist(), gradient.tolist()


@pytest.mark.parametrize(("progress", "strength"), [(0.0, 0.5), (0.25, 1.0), (1.0, 2.5)])
def test_the_pull_goes_from_first_to_last_in_a_straight_line(progress, strength):
    # log π − log π_ref is ½ and −1: ½·¼ and ½·1.
    found, gradient = terms(progress, **HELD)
    assert found == pytest.approx([1.0 + strength * 0.125, 1.0 + strength * 0.5])
    assert gradient == pytest.approx([-1.0 + strength * 0.5, -0.5 - strength])


def test_by_default_a_training_begins_without_a_pull():
    assert terms(0.0)[1] == pytest.approx([-1.0, -0.5])
    assert terms(1.0)[1] == pytest.approx([-1.0 + 0.05, -0.5 - 0.1])


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def trained(base, adapter, objective, **changes):
    """The adapter after some steps, and how far the rows' log-probabilities moved."""
    trainer = SftTrainer(base, rank=RANK, alpha=ALPHA, dtype="float32")
    trainer.reset(adapter)
    rows = [Row.of(one) for one in EPISODES[:6]]
    before = np.concatenate(trainer.logprobs(rows))
    plan = replace(PLAN, **{"epochs": 4, **changes})
    report = trainer.train(rows, objective, plan, trainable=frozenset(adapter))
    moved = float(np.abs(np.concatenate(trainer.logprobs(rows)) - before).mean())
    return trainer.adapter(), moved, report


def test_the_more_it_is_held_the_less_it_moves(tiny_base, adapter):
    _, free, _ = trained(tiny_base, adapter, NLL)
    moved = [
        trained(tiny_base, adapter, Part.own("anchored", last=last))[1] for last in (0.0, 5.0, 50.0)
    ]
    assert moved[0] == pytest.approx(free)
    assert moved[2] < moved[1] < 0.9 * moved[0]


def test_its_first_step_is_that_of_nll_however_strong_the_pull(tiny_base, adapter):
    strong = Part.own("anchored", first=50.0, last=50.0)
    once = {"batch_size": 6, "epochs": 1}
    held, _, report = trained(tiny_base, adapter, strong, **once)
    free, _, _ = trained(tiny_base, adapter, NLL, **once)
    assert apart(held, free) < 1e-6
    assert report.figures["anchor_kl"] == pytest.approx(0.0, abs=1e-9)
    held, _, report = trained(tiny_base, adapter, strong, batch_size=6, epochs=2)
    free, _, _ = trained(tiny_base, adapter, NLL, batch_size=6, epochs=2)
    assert apart(held, free) > 1e-3
    assert report.figures["anchor_kl"] > 1e-3
