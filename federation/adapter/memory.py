"""How much memory a base model takes on one GPU: training an adapter on it, and playing with it.

::

    weights      bytes(dtype)·P; divided by the processes under FSDP, plus one gathered block
    adapter      16·P_LoRA: float32 weight, gradient and AdamW's two moments; in half precision
                 2·P_LoRA more for the copy that products use
    activations  T·(b_1 + b_block·L) without gradient checkpointing,
                 T·(bytes(dtype)·h·L + b_1 + b_block) with it: one block at a time
                 (Chen et al., arXiv 1604.06174)
    logits       T_agent·V·(bytes(dtype) + 8): as computed, in float32, and their gradient
    rollout      weights + 2·L·kv_heads·head_dim·bytes(dtype) for each token of a conversation; in
                 float32 the adapted layers' weights twice, as they were and merged

T is the padded tokens of one forward pass. b_block is what one block keeps of one token for the
backward pass, counted tensor by tensor below, for attention that keeps no T×T scores
(arXiv 2205.14135) and for a frozen base, which keeps no input of W for its own gradient.

Covered: what grows with the model and the batch. Not covered: the framework's own gigabyte or two,
fragmentation, what a kernel borrows for a moment, CUDA graphs of a server; leave a fifth free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from federation.adapter.shapes import ModelShape
from federation.adapter.target import ALL_LINEAR, Target

__all__ = ["DTYPE_BYTES", "Rollout", "Training", "rollout_memory", "training_memory"]

DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}
_ADAMW_BYTES: Final = 16
_LOGIT_BYTES: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Bytes on one GPU while the adapter is trained."""

    processes: int
    """GPUs."""
    sharding: Literal["ddp", "fsdp"]
    """What is divided between them."""
    gradient_checkpointing: bool
    """Activations are recomputed."""
    tokens: int
    """T, in one forward pass of one GPU."""
    weights_bytes: int
    adapter_bytes: int
    activations_bytes: int
    logits_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.adapter_bytes + self.activations_bytes + self.logits_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Bytes on one GPU while episodes are played."""

    conversations: int
    """At once."""
    tokens: int
    """Longest conversation."""
    weights_bytes: int
    cache_bytes: int
    """Keys and values, if every conversation is as long as it may be."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.cache_bytes


def training_memory(
    shape: ModelShape,
    *,
    rank: int,
    target: Target = ALL_LINEAR,
    tokens: int,
    dtype: str,
    gradient_checkpointing: bool,
    processes: int = 1,
    sharding: Literal["ddp", "fsdp"] = "ddp",
    agent_share: float = 1.0,
) -> Training:
    """Estimate training.

    Args:
        shape: The base model.
        rank: LoRA r.
        target: The layers that carry an adapter.
        tokens: T, padded, in one forward pass of one GPU.
        dtype: Of the base weights and of products: a key of `DTYPE_BYTES`.
        gradient_checkpointing: Keep each block's input only.
        processes: GPUs.
        sharding: ``fsdp`` divides the base, ``ddp`` copies it.
        agent_share: Of tokens that have a loss; logits of the others are not computed.

    Raises:
        ValueError: A number out of range, or another dtype.
        TargetError: The target names a layer that there is not.
    """
    if min(rank, tokens, processes) < 1 or not 0 < agent_share <= 1 or dtype not in DTYPE_BYTES:
        raise ValueError("rank, tokens and processes count from 1, agent_share lies in (0, 1]")
    size = DTYPE_BYTES[dtype]
    weights = size * shape.parameters
    if sharding == "fsdp" and processes > 1:
        weights = -(-weights // processes) + size * shape.block_parameters
    block = _block_bytes(shape, rank, size)
    ends = shape.hidden * (2 * size + 4)
    kept = (
        shape.layers * size * shape.hidden + block
        if gradient_checkpointing
        else shape.layers * block
    )
    return Training(
        processes=processes,
        sharding=sharding,
        gradient_checkpointing=gradient_checkpointing,
        tokens=tokens,
        weights_bytes=weights,
        adapter_bytes=(_ADAMW_BYTES + size % 4) * sum(shape.lora_parameters(rank, target)),
        activations_bytes=tokens * (kept + ends),
        logits_bytes=int(tokens * agent_share) * shape.vocabulary * (size + _LOGIT_BYTES),
    )


def rollout_memory(
    shape: ModelShape,
    *,
    target: Target = ALL_LINEAR,
    conversations: int,
    tokens: int,
    dtype: str,
) -> Rollout:
    """Estimate playing so many conversations at once, the longest of ``tokens`` tokens.

    The target's layers carry an adapter. The dtype, of weights and cache, is a key of
    `DTYPE_BYTES`.

    Raises:
        ValueError: A number out of range, or another dtype.
        TargetError: The target names a layer that there is not.
    """
    if min(conversations, tokens) < 1 or dtype not in DTYPE_BYTES:
        raise ValueError("conversations and tokens count from 1")
    size = DTYPE_BYTES[dtype]
    # In half precision factors stand beside the weights; see evolution/model/adapted.py.
    adapted = shape.adapted(target).values() if size == 4 else ()
    merged = sum(out * width for out, width in adapted)
    return Rollout(
        conversations=conversations,
        tokens=tokens,
        weights_bytes=size * (shape.parameters + merged),
        cache_bytes=size * shape.kv_elements_per_token * conversations * tokens,
    )


def _block_bytes(shape: ModelShape, rank: int, size: int) -> int:
    """What one block keeps of one token for the backward pass."""
    h, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Each of two RMSNorms keeps its input in float32, what it normalised, and its output, which is
    # the input of A; one more copy is what o_proj returned.
    norms = h * (2 * (4 + 2 * size) + size)
    # Query, key and value after rotation; the attention's output, and the same with heads joined,
    # the input of o_proj's A.
    attention = size * (3 * query + 2 * kv)
    # gate, up, SiLU(gate), and their product, the input of down_proj's A.
    mlp = size * 4 * shape.mlp
    # Seven products A·x, inputs of B; fewer where a target names fewer layers, as what A alone
    # keeps of its input is less: an upper bound there.
    lora = size * 7 * rank
    # Qwen3 normalises queries and keys head by head.
    per_head = (query + kv) * (4 + size) if shape.qk_norm else 0
    return norms + attention + mlp + lora + per_head
