"""What a plan's base model takes of a GPU, for ``chorale run plan``.

Covered: base models of `federation.adapter.shapes`, and those whose ``config.json`` is given. Not
covered: what a silo has; `[rollout]` and `[training]` of its ``silo.toml`` say how it fits the work
to it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ops.cli.envelope import Format, show_result

if TYPE_CHECKING:
    from federation.adapter.memory import Rollout, Training
    from federation.adapter.shapes import ModelShape
    from federation.plan.plan import Plan

__all__ = ["describe_memory", "memory_figures"]

_CONVERSATIONS: Final = 64
"""Those of ``[rollout] max_in_flight`` if a silo says nothing."""
_MANY: Final = 8
_GIB: Final = 1 << 30


def memory_figures(plan: Plan, shape: ModelShape | None) -> dict[str, Any] | None:
    """For the envelope; None if the base model is not known.

    Args:
        plan: Whose base, rank, dtype and longest sequence count.
        shape: Of the base model.
    """
    if shape is None:
        return None
    A, B = shape.lora_parameters(plan.model.lora_rank)
    training, rollout = _estimates(plan, shape)
    return {
        "base": plan.model.base,
        "parameters": shape.parameters,
        "lora_a_parameters": A,
        "lora_b_parameters": B,
        "kv_bytes_per_token": rollout.cache_bytes // (rollout.conversations * rollout.tokens),
        "training": [{**asdict(row), "total_bytes": row.total_bytes} for row in training],
        "rollout": {**asdict(rollout), "total_bytes": rollout.total_bytes},
    }


def describe_memory(output: Format, plan: Plan, shape: ModelShape | None) -> None:
    """Say the same to people.

    Args:
        output: What stdout carries.
        plan: As for :func:`memory_figures`.
        shape: Of the base model.
    """
    if shape is None:
        show_result(
            output,
            f"memory of a GPU: not estimated, the shape of {plan.model.base!r} is not known here",
        )
        return
    A, B = shape.lora_parameters(plan.model.lora_rank)
    training, rollout = _estimates(plan, shape)
    show_result(
        output,
        f"{plan.model.base}: {shape.parameters / 1e9:.2f} billion parameters; adapter at "
        f"r = {plan.model.lora_rank}: A {A / 1e6:.2f}, B {B / 1e6:.2f} million, "
        f"{_mib(A + B):.1f} MiB in float32 (B alone {_mib(B):.1f})",
    )
    show_result(
        output,
        f"memory of a GPU, estimated, in GiB, {training[0].tokens} tokens in a forward pass; leave "
        "a fifth free for the framework:",
    )
    for row in training:
        show_result(
            output,
            f"  training, {_gpus(row)}, gradient checkpointing "
            f"{'on ' if row.gradient_checkpointing else 'off'}: {_gib(row.total_bytes)} = "
            f"{_gib(row.weights_bytes)} weights + {_gib(row.adapter_bytes)} adapter + "
            f"{_gib(row.activations_bytes)} activations + {_gib(row.logits_bytes)} logits",
        )
    show_result(
        output,
        f"  rollouts: {_gib(rollout.total_bytes)} = {_gib(rollout.weights_bytes)} weights + "
        f"{_gib(rollout.cache_bytes)} for {rollout.conversations} conversations of "
        f"{rollout.tokens} tokens",
    )


def _estimates(plan: Plan, shape: ModelShape) -> tuple[list[Training], Rollout]:
    from federation.adapter.memory import rollout_memory, training_memory

    tokens, dtype = plan.evolve.max_sequence_tokens, plan.model.dtype
    training = [
        training_memory(
            shape,
            rank=plan.model.lora_rank,
            tokens=tokens,
            dtype=dtype,
            gradient_checkpointing=checkpointing,
            processes=processes,
            sharding="ddp" if processes == 1 else "fsdp",
        )
        for processes, checkpointing in ((1, False), (1, True), (_MANY, True))
    ]
    rollout = rollout_memory(shape, conversations=_CONVERSATIONS, tokens=tokens, dtype=dtype)
    return training, rollout


def _gpus(row: Training) -> str:
    return "one GPU" if row.processes == 1 else f"each of {row.processes} GPUs with {row.sharding}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f}"


def _mib(parameters: int) -> float:
    return 4 * parameters / (1 << 20)
