"""PPO's formulas against TRL's own code, on the same tensors: advantages, returns, both losses.

``PPOTrainer`` of TRL 0.11.4 is the last whose formulas stand in methods of their own; later ones
have them inside a training loop, and then none at all. Its package does not import beside the
newest transformers, so its two methods are read out of its file, and what they call out of
``core.py``. TRL knows no observations within an answer: it is given the agent's tokens one after
another, and Chorale the same with other tokens in between.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from evolution.part import Part

WHERE = os.environ.get("CHORALE_TRL_PPO", "")
pytestmark = pytest.mark.skipif(
    not WHERE or importlib.util.find_spec("torch") is None, reason="run.sh without --model"
)
B, T, V = 6, 11, 13
LAM, GAMMA, CLIP, CLIP_VALUE = 0.93, 0.97, 0.2, 0.5


@pytest.fixture(scope="module")
def trainer():
    """What TRL's two methods are called on."""
    import torch

    package = Path(WHERE) / "trl"
    names = {"torch": torch, "warnings": warnings, "F": torch.nn.functional, "Mapping": Mapping}
    core = {
        "clip_by_value",
        "entropy_from_logits",
        "flatten_dict",
        "masked_mean",
        "masked_var",
        "masked_whiten",
    }
    found = _functions(package / "core.py", core)
    found += _functions(package / "trainer" / "ppo_trainer.py", {"compute_advantages", "loss"})
    assert {one.name for one in found} == core | {"compute_advantages", "loss"}
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module(body=[*future, *found], type_ignores=[])
    exec(compile(module, str(package), "exec"), names)  # noqa: S102  # what run.sh installed
    config = SimpleNamespace(
        whiten_rewards=False,
        gamma=GAMMA,
        lam=LAM,
        cliprange=CLIP,
        cliprange_value=CLIP_VALUE,
        vf_coef=0.7,
        ratio_threshold=1e9,
    )
    return SimpleNamespace(
        config=config,
        advantages=lambda *a: names["compute_advantages"](SimpleNamespace(config=config), *a),
        loss=lambda *a: names["loss"](SimpleNamespace(config=config), *a),
    )


def _functions(file, names):
    return [
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]


def tensors(seed):
    """What is known of B answers of the agent, ragged: all of it B×T but the logits."""
    import torch

    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    lengths = torch.randint(1, T + 1, (B, 1), generator=rng)
    mask = (torch.arange(T)[None] < lengths).double()
    logits = normal(B, T, V).requires_grad_()
    ids = torch.randint(0, V, (B, T), generator=rng)
    now = torch.log_softmax(logits, -1).gather(-1, ids[..., None])[..., 0]
    old = normal(B, T)
    return SimpleNamespace(
        mask=mask,
        logits=logits,
        ids=ids,
        now=now,
        behaviour=now.detach() + 0.4 * normal(B, T),
        rewards=normal(B, T) * mask,
        old=old,
        value=(old + 0.8 * normal(B, T)).requires_grad_(),
    )


def spread(made, i, seed):
    """Row i among tokens that the agent read, of which everything says nothing."""
    import torch

    from evolution.train.objective import RowTensors, TokenOut

    rng = torch.Generator().manual_seed(seed)
    own = int(made.mask[i].sum())
    total = own + int(torch.randint(0, 9, (), generator=rng))
    places = torch.randperm(total, generator=rng)[:own].sort().values
    mask = torch.zeros(total, dtype=torch.bool)
    mask[places] = True

    def put(values):
        other = torch.randn(total, *values.shape[1:], generator=rng, dtype=torch.float64)
        return other.index_put((places,), values[:own])

    out = TokenOut(
        put(made.now[i]), put(made.logits[i]), {"old_value": put(made.old[i])}, put(made.value[i])
    )
    return out, RowTensors(mask, put(made.rewards[i]), put(made.behaviour[i]))


@pytest.mark.parametrize("seed", range(6))
def test_advantages_and_returns(trainer, seed):
    import torch

    from evolution.parts.objectives.ppo import advantages

    made = tensors(seed)
    values, _whitened, returns = trainer.advantages(made.old, made.rewards, made.mask)
    for i in range(B):
        out, row = spread(made, i, seed)
        found = advantages(row.weights, out.old_value, row.mask, discount=GAMMA, decay=LAM)
        own = int(made.mask[i].sum())
        torch.testing.assert_close(
            found[row.mask], (returns - values)[i, :own], rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("seed", range(6))
def test_the_losses_and_their_gradients(trainer, seed):
    """Without its whitening, which couples a batch: with the very advantages that ours has."""
    import torch

    made = tensors(seed)
    values, _whitened, returns = trainer.advantages(made.old, made.rewards, made.mask)
    plain = (returns - values).detach()
    policy, value, _ = trainer.loss(
        made.behaviour,
        made.old,
        made.logits,
        made.value,
        made.now,
        made.mask,
        plain,
        returns.detach(),
    )
    theirs = policy + value
    objective = Part.own(
        "ppo",
        gamma=GAMMA,
        gae_lambda=LAM,
        clip_low=CLIP,
        clip_high=CLIP,
        dual_clip=0.0,
        value_clip=CLIP_VALUE,
        value_coefficient=trainer.config.vf_coef,
        kl_beta=0.0,
        entropy=0.0,
    ).make()
    ours = torch.zeros((), dtype=torch.float64)
    for i in range(B):
        out, row = spread(made, i, seed)
        ours = ours + torch.where(row.mask, objective.terms(out, row), 0.0).sum()
    ours = ours / made.mask.sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    inputs = (made.logits, made.value)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, retain_graph=True),
        torch.autograd.grad(theirs, inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
