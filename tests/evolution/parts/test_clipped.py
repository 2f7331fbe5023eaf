"""The clipped objective, token by token, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from evolution.part import Part
from evolution.train.objective import RowTensors, TokenOut

LOG2 = math.log(2.0)


def terms(ratios, credit, *, known=(), logprob=-1.0, logits=None, **options):
    """Terms of tokens whose probability is ``ratios`` times what was recorded, and gradients."""
    now = torch.full((len(ratios),), logprob, dtype=torch.float64, requires_grad=True)
    behaviour = now.detach() - torch.log(torch.tensor(ratios, dtype=torch.float64))
    weights = torch.tensor(credit, dtype=torch.float64)
    row = RowTensors(torch.ones(len(ratios), dtype=torch.bool), weights, behaviour)
    options = {"kl_beta": 0.0, **options}
    out = TokenOut(now, logits, {k: torch.tensor(v, dtype=torch.float64) for k, v in known})
    found = Part.own("clipped", **options).make().terms(out, row)
    (gradient,) = torch.autograd.grad(found.sum(), now)
    return found.tolist(), gradient.tolist()


@pytest.mark.parametrize(
    ("ratio", "credit", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 1.0, -1.2, -1.2),  # below 1 + 0.28: not cut
        (1.5, 1.0, -1.28, 0.0),  # cut, and nothing pulls further
        (0.5, 1.0, -0.5, -0.5),  # the lesser of both: a good token that became rare is pulled back
        (0.5, -1.0, 0.8, 0.0),  # cut below 1 − 0.2
        (2.0, -1.0, 2.0, 2.0),
        (5.0, -1.0, 3.0, 0.0),  # the dual clip: no more than 3
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_clip(ratio, credit, loss, gradient):
    assert terms([ratio], [credit]) == ([pytest.approx(loss)], [pytest.approx(gradient)])


def test_without_the_dual_clip_a_bad_token_that_became_likely_counts_whole():
    assert terms([5.0], [-1.0], dual_clip=0.0) == ([pytest.approx(5.0)], [pytest.approx(5.0)])


def test_dppo_lets_a_token_go_once_its_probability_has_moved_too_far():
    # π = e⁻¹ = 0.368 throughout; μ is that over the ratio.
    found, gradient = terms(
        [4.0, 1.2, 4.0, 0.5, 0.8], [1.0, 1.0, -1.0, -1.0, -1.0], surrogate="dppo"
    )
    # 0.368 − 0.092 = 0.276 > 0.2; then 0.061; up for a bad token is free; 0.736 − 0.368 > 0.2.
    assert found == pytest.approx([0.0, -1.2, 4.0, 0.0, 0.8])
    assert gradient == pytest.approx([0.0, -1.2, 4.0, 0.0, 0.8])


def test_cispo_weighs_the_log_probability_and_nothing_flows_through_the_ratio():
    found, gradient = terms([1.5, 9.0], [1.0, 1.0], surrogate="cispo")
    assert found == pytest.approx([1.5, 5.0])
    assert gradient == pytest.approx([-1.5, -5.0])


@pytest.mark.parametrize(("to", "name"), [("round", "reference"), ("base", "base")])
def test_the_two_divergences(to, name):
    # log π − log ref = log 2: k2 = ½ (log 2)², its gradient log 2; off policy times the ratio.
    known = {"known": [(name, [-1.0 - LOG2])], "kl_beta": 1.0, "kl_to": to}
    assert terms([1.0], [0.0], **known) == (
        [pytest.approx(0.5 * LOG2**2)],
        [pytest.approx(LOG2)],
    )
    assert terms([3.0], [0.0], **known)[1] == [pytest.approx(3.0 * LOG2)]
    # d = log ref − log π = −log 2: k3 = ½ + log 2 − 1, its gradient 1 − e^d = ½.
    assert terms([1.0], [0.0], kl="k3", **known) == (
        [pytest.approx(0.5 + LOG2 - 1.0)],
        [pytest.approx(0.5)],
    )


def test_tokens_of_which_the_trainer_thought_otherwise_have_no_part():
    first = np.log([0.49, 0.51, 4.9, 5.1])
    found, _ = terms(
        [1.0] * 4,
        [1.0] * 4,
        known=[("first", (-1.0 + first).tolist())],
        mask_mismatch=True,
    )
    assert found == [0.0, -1.0, -1.0, 0.0]


def test_entropy_is_asked_for():
    logits = torch.zeros(1, 8, dtype=torch.float64)
    found, _ = terms([1.0], [0.0], logits=logits, entropy=0.5)
    assert found == [pytest.approx(-0.5 * math.log(8))]


def test_a_ratio_beyond_all_measure_stays_a_number():
    found, gradient = terms([1e300, 1e-300], [1.0, -1.0], clip_high=100.0)
    assert np.isfinite([*found, *gradient]).all()


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, {"reference"}),
        ({"kl_to": "base"}, {"base"}),
        ({"kl_beta": 0.0}, set()),
        ({"kl_beta": 0.0, "mask_mismatch": True}, {"first"}),
    ],
)
def test_no_forward_pass_is_asked_for_without_a_use(options, needs):
    assert Part.own("clipped", **options).needs == needs
