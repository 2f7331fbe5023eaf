"""Advantages over a value and the value's loss: by hand, and against independent formulas."""

import math

import numpy as np
import pytest
import torch

from evolution.errors import EvolverSetupError
from evolution.part import Part
from evolution.parts.objectives.ppo import advantages
from evolution.train.objective import RowTensors, TokenOut, Watch

F64 = torch.float64


def estimate(rewards, values, mask=None, *, discount=1.0, decay=1.0):
    mask = [True] * len(rewards) if mask is None else mask
    found = advantages(
        torch.tensor(rewards, dtype=F64),
        torch.tensor(values, dtype=F64),
        torch.tensor(mask),
        discount=discount,
        decay=decay,
    )
    return [a for a, kept in zip(found.tolist(), mask, strict=True) if kept]


def by_definition(rewards, values, mask, discount, decay):
    """Eq. 11 to 16 of arXiv 1506.02438 as they stand there: sums over all that follows, O(L²)."""
    places = [t for t, kept in enumerate(mask) if kept]
    r = [rewards[t] for t in places]
    v = [*(values[t] for t in places), 0.0]
    delta = [r[t] + discount * v[t + 1] - v[t] for t in range(len(r))]
    return [
        sum((discount * decay) ** later * delta[t + later] for later in range(len(r) - t))
        for t in range(len(r))
    ]


def test_three_tokens_by_hand():
    # δ = (0 + 0.9·2 − 1, 0 + 0.9·3 − 2, 1 − 3) = (0.8, 0.7, −2), γλ = 0.45.
    found = estimate([0.0, 0.0, 1.0], [1.0, 2.0, 3.0], discount=0.9, decay=0.5)
    assert found == pytest.approx([0.8 + 0.45 * (0.7 - 0.9), 0.7 - 0.9, -2.0])


def test_with_both_at_one_it_is_what_came_after_less_what_was_expected():
    found = estimate([0.0, -0.1, 0.0, 1.0], [0.5, 0.25, 0.0, 2.0])
    assert found == pytest.approx([0.9 - 0.5, 0.9 - 0.25, 1.0, -1.0])


def test_with_lambda_zero_it_is_one_step():
    found = estimate([0.5, 1.0], [1.0, 3.0], discount=0.5, decay=0.0)
    assert found == pytest.approx([0.5 + 1.5 - 1.0, 1.0 - 3.0])


def test_what_the_agent_read_is_as_if_it_were_not_there():
    said = ([0.5, 0.0, 1.0], [1.0, 2.0, 3.0])
    apart = estimate(
        # Rewards and values of what was read mean nothing.
        [9.0, 0.5, 9.0, 9.0, 0.0, 1.0, 9.0],
        [7.0, 1.0, 7.0, -7.0, 2.0, 3.0, 7.0],
        [False, True, False, False, True, True, False],
        discount=0.9,
        decay=0.8,
    )
    assert apart == pytest.approx(estimate(*said, discount=0.9, decay=0.8), abs=0)


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.3])
@pytest.mark.parametrize("decay", [1.0, 0.95, 0.0])
def test_against_the_definition_on_ragged_rows(discount, decay):
    rng = np.random.default_rng(3)
    for length in (1, 2, 3, 7, 8, 9, 64, 130):
        rewards, values = rng.normal(size=(2, length)).tolist()
        mask = (rng.random(length) < 0.6).tolist()
        mask[int(rng.integers(length))] = True
        found = estimate(rewards, values, mask, discount=discount, decay=decay)
        expected = by_definition(rewards, values, mask, discount, decay)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_discount_that_vanishes_over_a_long_row_stays_a_number():
    found = estimate([1.0] * 5000, [0.0] * 5000, discount=0.5, decay=1.0)
    assert found[0] == pytest.approx(2.0)
    assert found[-1] == 1.0


def test_a_rows_advantages_are_the_same_under_vmap():
    rng = np.random.default_rng(5)
    rewards, values = torch.tensor(rng.normal(size=(2, 4, 9)))
    mask = torch.tensor(rng.random((4, 9)) < 0.5)
    together = torch.func.vmap(lambda *row: advantages(*row, discount=0.9, decay=0.7))(
        rewards, values, mask
    )
    for i in range(4):
        alone = advantages(rewards[i], values[i], mask[i], discount=0.9, decay=0.7)
        torch.testing.assert_close(together[i], alone, rtol=0.0, atol=0.0)


def terms(value, old, reward, *, watch=None, **options):
    """Terms of tokens that are all the agent's, at a policy that has not moved; and gradients."""
    now = torch.tensor(value, dtype=F64, requires_grad=True)
    logprob = torch.full_like(now, -1.0).detach().requires_grad_()
    row = RowTensors(
        torch.ones(len(value), dtype=torch.bool),
        torch.tensor(reward, dtype=F64),
        logprob.detach(),
    )
    out = TokenOut(
        logprob, torch.zeros(len(value), 4), {"old_value": torch.tensor(old, dtype=F64)}, now
    )
    objective = Part.own("ppo", **{"kl_beta": 0.0, "entropy": 0.0, **options}).make()
    objective.watch = watch
    found = objective.terms(out, row)
    by_value, by_policy = torch.autograd.grad(found.sum(), (now, logprob))
    return found.tolist(), by_value.tolist(), by_policy.tolist()


@pytest.mark.parametrize(
    ("value", "old", "reward", "loss", "gradient"),
    [
        # ½ (V − R)²; the reward is the return of a lone token.
        (0.2, 0.0, 1.0, 0.5 * 0.8**2, -0.8),
        # Further from V° than ½ on the way to R: the cut value is further off, and nothing pulls.
        (0.8, 0.0, 1.0, 0.5 * 0.5**2, 0.0),
        # Further than ½ the wrong way: the value itself is further off, and is pulled back.
        (-0.8, 0.0, 1.0, 0.5 * 1.8**2, -1.8),
        # Beyond R, with V° far behind: the cut value is the further one.
        (3.0, 0.0, 1.0, 0.5 * 2.0**2, 2.0),
    ],
)
def test_the_clip_of_the_value_by_hand(value, old, reward, loss, gradient):
    found, by_value, by_policy = terms([value], [old], [reward], value_clip=0.5)
    # The policy's term at ratio 1 is −A, and A = R − V°.
    assert found == [pytest.approx(loss - (reward - old))]
    assert by_value == [pytest.approx(gradient)]
    assert by_policy == [pytest.approx(-(reward - old))]


def test_without_a_clip_the_loss_is_the_square_and_the_coefficient_is_on_the_value_alone():
    found, by_value, by_policy = terms([0.8], [0.0], [1.0], value_clip=0.0, value_coefficient=10.0)
    assert found == [pytest.approx(10.0 * 0.5 * 0.04 - 1.0)]
    assert (by_value, by_policy) == ([pytest.approx(-2.0)], [pytest.approx(-1.0)])


def test_the_policys_term_is_that_of_the_clipped_objective_with_advantages_for_credit():
    rng = np.random.default_rng(7)
    length = 12
    logits = torch.tensor(rng.normal(size=(length, 5)), requires_grad=True)
    logprob = torch.log_softmax(logits, -1)[:, 0]
    mask = torch.tensor(rng.random(length) < 0.7)
    rewards, old, value, behaviour, base = torch.tensor(rng.normal(size=(5, length)))
    behaviour = logprob.detach() + 0.5 * behaviour
    same = {"clip_high": 0.2, "kl": "k3", "kl_beta": 0.01, "kl_to": "base", "entropy": 0.001}
    known = {"old_value": old, "base": base}
    out = TokenOut(logprob, logits, known, value)
    found = Part.own("ppo", **same, gae_lambda=0.9, gamma=0.99).make()
    mine = found.terms(out, RowTensors(mask, rewards, behaviour))
    credit = advantages(rewards, old, mask, discount=0.99, decay=0.9)
    clipped = Part.own("clipped", **same).make().terms(out, RowTensors(mask, credit, behaviour))
    returns = credit + old
    cut = value.clamp(old - 0.5, old + 0.5)
    squares = torch.maximum((value - returns) ** 2, (cut - returns) ** 2)
    torch.testing.assert_close(mine, clipped + 0.5 * squares)


def test_what_is_watched_says_how_much_of_the_returns_the_values_explained():
    objective = Part.own("ppo").make()
    watch = Watch(objective.watches)
    rewards, old = [0.0, 0.0, 0.0, 1.0, 0.5], [0.9, 1.2, 1.0, 0.5, 0.5]
    found, _, _ = terms(old, old, rewards, watch=watch, value_clip=0.0)
    said = objective.concluded(watch.figures(lambda x: x, lambda x: x))
    returns = np.array([1.5, 1.5, 1.5, 1.5, 0.5])
    errors = returns - old
    assert said["return_mean"] == pytest.approx(returns.mean())
    assert said["value_loss"] == pytest.approx((0.5 * errors**2).mean())
    assert said["explained_variance"] == pytest.approx(1.0 - errors.var() / returns.var())
    assert {"clip_low", "clip_high", "entropy", "mismatch"} <= said.keys()
    assert not {"return_square", "value_error_mean", "value_error_square"} & said.keys()
    assert math.isfinite(sum(found))
    # Of a training without a row nothing is said.
    assert objective.concluded({}) == {}


def test_a_value_is_asked_for_and_a_model_without_one_is_told():
    assert Part.own("ppo", kl_beta=0.0).needs == {"value", "old_value"}
    assert Part.own("ppo").needs == {"value", "old_value", "reference"}
    out = TokenOut(torch.zeros(1), torch.zeros(1, 4), {"old_value": torch.zeros(1)})
    with pytest.raises(EvolverSetupError, match="no value head"):
        _ = out.value
