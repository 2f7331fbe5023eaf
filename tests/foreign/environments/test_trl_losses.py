"""GRPO's formulas against TRL's own code, on the same tensors: losses, gradients, advantages."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from evolution.part import Part
from evolution.trajectory import Group, Step, Task, Trajectory
from tests.kit.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="run.sh without --model"
)
MODEL = ROOT / "lab" / "base_model"
B, T, V = 6, 9, 13
LOW, HIGH = 0.2, 0.28


def tensors(seed, *, scale=0.5):
    """Logits, token ids, recorded and reference log-probabilities, advantages, a ragged mask."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, T, V, generator=rng, dtype=torch.float64).requires_grad_()
    ids = torch.randint(0, V, (B, T), generator=rng)
    now = torch.log_softmax(logits, -1).gather(-1, ids[..., None])[..., 0].detach()
    old = now + scale * torch.randn(B, T, generator=rng, dtype=torch.float64)
    reference = now + scale * torch.randn(B, T, generator=rng, dtype=torch.float64)
    advantages = torch.randn(B, generator=rng, dtype=torch.float64)
    lengths = torch.randint(1, T + 1, (B, 1), generator=rng)
    mask = (torch.arange(T)[None] < lengths).long()
    return logits, ids, old, reference, advantages, mask


def theirs(made, *, loss_type, beta=0.0, delta=None, high=HIGH, entropy=0.0, mask=None):
    """The loss that TRL computes, by its own method."""
    import torch
    from trl import GRPOTrainer

    logits, ids, old, reference, advantages, own = made
    mask = own if mask is None else mask
    logp = torch.log_softmax(logits, -1)
    values = logp.gather(-1, ids[..., None])[..., 0]
    entropies = -(logp.exp() * logp).sum(-1)
    one = SimpleNamespace(
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
        num_processes=1,
        sync_gradients=True,
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_a, **_k: (values, entropies, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=beta,
        loss_type=loss_type,
        epsilon_low=LOW,
        epsilon_high=high,
        max_completion_length=T,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        accelerator=one,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        _entropy_bonus_enabled=bool(entropy),
        use_adaptive_entropy=False,
        entropy_coef=entropy,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(B, 1, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, torch.autograd.grad(loss, logits)[0]


def ours(made, *, divisor, mask=None, **options):
    """The loss that Chorale computes of the same."""
    import torch

    from evolution.train.objective import RowTensors, TokenOut

    logits, ids, old, reference, advantages, own = made
    kept = (own if mask is None else mask).bool()
    objective = Part.own("clipped", **{"kl_beta": 0.0, **options}).make()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(B):
        logprob = torch.log_softmax(logits[i], -1).gather(-1, ids[i, :, None])[:, 0]
        out = TokenOut(logprob, logits[i], {"reference": reference[i]})
        row = RowTensors(kept[i], advantages[i].expand(T), old[i])
        total = total + torch.where(kept[i], objective.terms(out, row), 0.0).sum()
    loss = total / divisor
    return loss, torch.autograd.grad(loss, logits)[0]


def same(one, other):
    import torch

    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.01, 0.5, 2.0])
def test_dr_grpo_is_the_constant_normaliser(seed, scale):
    made = tensors(seed, scale=scale)
    for delta, dual in ((None, 0.0), (3.0, 3.0)):
        same(
            theirs(made, loss_type="dr_grpo", delta=delta),
            ours(made, divisor=B * T, dual_clip=dual),
        )


@pytest.mark.parametrize("seed", range(4))
def test_dapo_is_the_normaliser_of_a_batchs_tokens(seed):
    made = tensors(seed)
    tokens = float(made[-1].sum())
    same(theirs(made, loss_type="dapo"), ours(made, divisor=tokens, dual_clip=0.0))


@pytest.mark.parametrize("seed", range(4))
def test_cispo(seed):
    made = tensors(seed, scale=1.5)
    same(
        theirs(made, loss_type="cispo", high=5.0),
        ours(made, divisor=float(made[-1].sum()), surrogate="cispo", cispo_most=5.0),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_divergence_k3_and_the_symmetric_clip_of_fedagent(seed):
    made = tensors(seed)
    same(
        theirs(made, loss_type="dr_grpo", beta=0.01, high=0.2),
        ours(made, divisor=B * T, dual_clip=0.0, clip_high=0.2, kl="k3", kl_beta=0.01),
    )


def test_the_entropy_that_is_asked_for():
    made = tensors(5)
    tokens = float(made[-1].sum())
    same(
        theirs(made, loss_type="dapo", entropy=0.001),
        ours(made, divisor=tokens, dual_clip=0.0, entropy=0.001),
    )


def test_a_truncated_answer_has_no_loss():
    """TRL's ``mask_truncated_completions`` empties the mask; here the credit leaves it out."""
    made = tensors(6)
    mask = made[-1].clone()
    mask[2] = 0
    same(
        theirs(made, loss_type="dr_grpo", mask=mask),
        ours(made, divisor=B * T, dual_clip=0.0, mask=mask),
    )
    step = Step(
        observation="",
        action="",
        context_ids=(1,),
        action_ids=(2, 3),
        action_logprobs=(-1.0, -1.0),
        cut_off=True,
    )
    rows = credited([(True, step), (False, None), (False, None)])
    assert len(rows) == 2


def attempt(solved, number, step=None):
    whole = Step(
        observation="",
        action="",
        context_ids=(1,),
        action_ids=(2, 3 + number),
        action_logprobs=(-1.0, -1.0),
    )
    return Trajectory(
        task=Task(environment="e", task_id=1),
        steps=(step or whole,),
        final_observation="",
        success=solved,
        adapter_sha256="",
        round=0,
    )


def credited(tries, **options):
    made = tuple(attempt(solved, i, step) for i, (solved, step) in enumerate(tries))
    group = Group(task=made[0].task, round=0, trajectories=made)
    return Part.own("group-relative", **options).make().credit([group], None, None)


@pytest.mark.parametrize(("scaled", "scale"), [("none", "none"), ("group", "std")])
def test_advantages_are_those_of_a_training_step_of_trl(tmp_path, scaled, scale):
    """A real step of its trainer, with rewards that are known, tells the advantages it used."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    used = []

    class Told(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            used.append(inputs["advantages"].clone())
            return super()._compute_loss(model, inputs)

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = Told(
        model=AutoModelForCausalLM.from_pretrained(MODEL),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            max_steps=1,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=4,
            scale_rewards=scaled,
            report_to=[],
            shuffle_dataset=False,
        ),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: rewards[: len(completions)],
        train_dataset=Dataset.from_dict({"prompt": ["goal plank ."] * 8}),
    )
    trainer.train()
    (found,) = used
    assert sorted(found.tolist()) == pytest.approx(
        sorted(
            float(row.weights[0]) * _floor(rewards, scale)
            for row in credited([(bool(r), None) for r in rewards], scale=scale)
        ),
        abs=1e-6,
    )
    assert torch.isfinite(found).all()


def _floor(rewards, scale):
    """Their deviation has another floor: 1e-4, and ours verl's 1e-6."""
    deviation = float(np.std(rewards, ddof=1))
    return (deviation + 1e-6) / (deviation + 1e-4) if scale == "std" else 1.0
