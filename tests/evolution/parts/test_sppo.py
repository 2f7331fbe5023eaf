"""Shares of won pairs, and the squared distance to where they send a try's log-probability."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.parts.credits.win_share import win_shares
from evolution.train.loss import as_batch, row_sums
from evolution.train.objective import RowTensors, TokenOut
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from federation.plan.methods import Normaliser
from federation.plan.recipe import PartsSection, recipe_of
from tests.kit.evolution.sft import ALPHA, EPISODES, PLAN, RANK
from tests.kit.evolution.trajectories import group_of, lost, won


def rows_of(*tries, **options):
    return Part.own("win-share", **options).make().credit([group_of(*tries)], None, None)


def test_how_many_others_a_try_beats_and_ties_are_a_half():
    # Of three others each: all beaten; one beaten and one tied; none.
    assert win_shares([3.0, 1.0, 1.0, 0.0]) == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert win_shares([0.2, 0.2 + 1e-12]) == [0.5, 0.5]


def test_the_weight_is_the_share_less_a_half_on_every_token_of_the_agent():
    rows = rows_of(won(), *(lost(word=w) for w in (6, 7, 8)))
    # The success beats all three; each failure ties with two of three: ⅓ − ½.
    weights = [row.weights[row.mask].tolist() for row in rows]
    assert weights == [pytest.approx([value] * 2) for value in (0.5, *[-1 / 6] * 3)]


def test_without_contrast_there_are_no_rows_nor_for_a_try_in_the_middle():
    assert rows_of(won(), won(word=6)) == []
    assert rows_of(won()) == []
    step = won().steps[0]
    middle = replace(lost(word=6), steps=(replace(step, reward=0.5),))
    best = replace(lost(word=7), steps=(replace(step, reward=1.0),))
    tries = (best, middle, lost(word=8))
    assert [float(r.weights[3]) for r in rows_of(*tries, reward="return")] == [0.5, -0.5]


def terms(weights, *, eta=10.0, mask=(False, True, True, False)):
    now = torch.tensor([-9.0, -1.0, -2.0, -9.0], dtype=torch.float64, requires_grad=True)
    before = torch.tensor([5.0, -1.5, -2.5, 7.0], dtype=torch.float64)
    row = RowTensors(
        torch.tensor(mask),
        torch.tensor(weights, dtype=torch.float64),
        torch.zeros(4, dtype=torch.float64),
    )
    found = Part.own("sppo", eta=eta).make().terms(TokenOut(now, None, {"reference": before}), row)
    (gradient,) = torch.autograd.grad(found.sum(), now)
    return found.tolist(), gradient.tolist()


def test_the_whole_rows_loss_stands_on_its_first_token():
    # x = ½ + ½ = 1, η·w = 2.5: 1.5² / 20; the gradient −(0.25 − 0.1) on the mask alone.
    found, gradient = terms([9.0, 0.25, 0.25, 9.0])
    assert found == pytest.approx([0.0, 0.1125, 0.0, 0.0])
    assert gradient == pytest.approx([0.0, -0.15, -0.15, 0.0])
    # Where x is as far as it shall be there is nothing to do, and beyond it is drawn back.
    assert terms([0.0, 0.1, 0.1, 0.0]) == ([0.0] * 4, [0.0] * 4)
    assert terms([0.0, -0.1, -0.1, 0.0])[1] == pytest.approx([0.0, 0.2, 0.2, 0.0])
    assert terms([1.0] * 4, mask=(False,) * 4) == ([0.0] * 4, [0.0] * 4)


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def trainer_of(base, adapter):
    made = SftTrainer(base, rank=RANK, alpha=ALPHA, dtype="float32")
    made.reset(adapter)
    return made


def known(trainer, weights=(0.5, -0.25, 0.125)):
    rows = [Row.of(one, weight=w) for one, w in zip(EPISODES[:3], weights, strict=True)]
    return [
        row.knowing({"reference": said - np.float32(0.25)})
        for row, said in zip(rows, trainer.logprobs(rows), strict=True)
    ]


@pytest.mark.parametrize("keep", [False, True])
def test_tokens_outside_the_mask_have_no_part(tiny_base, adapter, keep):
    trainer = trainer_of(tiny_base, adapter)
    rows = known(trainer)
    made = Part.own("sppo", eta=2.0).make()
    sums = row_sums(trainer._model, as_batch(rows), made, keep=keep).tolist()
    moved = [0.25 * row.loss_tokens for row in rows]
    wanted = [2.0 * w for w in (0.5, -0.25, 0.125)]
    assert sums == pytest.approx(
        [(x - y) ** 2 / 4.0 for x, y in zip(moved, wanted, strict=True)], rel=1e-4
    )


@pytest.mark.parametrize("backend", ["hooks", "functorch"])
def test_a_units_gradient_is_the_same_row_by_row_and_all_at_once(tiny_base, adapter, backend):
    trainer, names = trainer_of(tiny_base, adapter), sorted(adapter)
    units = [[row] for row in known(trainer)] + [known(trainer)]
    objective = Part.own("sppo", eta=2.0)
    found = {
        name: list(trainer.gradients(names, objective, backend=name).unit_gradients(units))
        for name in ("loop", backend)
    }
    for one, other in zip(found["loop"], found[backend], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert np.abs(one).max() > 1e-3


def test_where_a_round_begins_the_gradient_is_that_of_the_weighted_log_probability(
    tiny_base, adapter
):
    zeros = {name: np.zeros_like(value) for name, value in adapter.items()}
    plan = replace(
        PLAN,
        epochs=1,
        batch_size=3,
        grad_clip_l2=1e9,
        normaliser=Normaliser.CONSTANT,
        constant=30.0,
    )
    rows = [Row.of(one, weight=w) for one, w in zip(EPISODES, (0.5, -0.5, 0.25), strict=False)]
    found = [
        trainer_of(tiny_base, adapter)
        .train(rows, Part.own(name), plan, trainable=frozenset(adapter), correction=zeros)
        .mean_gradient
        for name in ("sppo", "nll")
    ]
    for name in adapter:
        np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-6)
    assert max(float(np.abs(value).max()) for value in found[0].values()) > 1e-3


def test_its_recipe_divides_by_a_public_constant():
    made = recipe_of("sppo", PartsSection())
    assert made.normaliser is Normaliser.CONSTANT
    assert (made.tempered, made.least_tries) == (True, 2)
    assert made.parts["objective"].options.eta == 1000.0
