"""How much memory a base model takes on one GPU: training an adapter on it, and playing with it.

::

    weights      bytes(dtype)·P; divided by the processes under FSDP, plus one gathered block
    adapter      16·P_LoRA: float32 weight, gradient and AdamW's two moments; in half precision
                 2·P_LoRA more for the copy that products use
    activations  T·(b_1 + b_block·L) without gradient checkpointing,
                 T·(bytes(dtype)·h·L + b_1 + b_block) with it: one block at a time
                 (Chen et al., arXiv 1604.06174)
    logits       T_agent·V·(bytes(dtype) + 8): as computed, in float32, and their gradient
    rollout      weights, in float32 those of the adapted layers twice, as they were and merged
                 + cache: 2·L·kv_heads·head_dim·bytes(dtype) for each token of a conversation;
                   twice, for storage grows by doubling (evolution/rollout/kv_cache.py), and one
                   layer's keys as they were before they grew; a server's, in pages, once
                 + one pass: what a block takes for a moment, for each of its tokens, of which a
                   pass has 16,384 at most, and the scores of each conversation's next token

T is the padded tokens of one forward pass. b_block is what one block keeps of one token for the
backward pass, counted tensor by tensor below, for attention that keeps no T×T scores
(arXiv 2205.14135) and for a frozen base, which keeps no input of W for its own gradient.

Covered: what grows with the model and the batch. Not covered: the framework's own gigabyte or two,
fragmentation, what a kernel borrows for a moment, CUDA graphs of a server, what reading a base in
another dtype takes meanwhile; leave a fifth free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from federation.adapter.shapes import ModelShape
from federation.adapter.target import ALL_LINEAR, Target

__all__ = [
    "DTYPE_BYTES",
    "MOST_PASS_TOKENS",
    "Rollout",
    "Training",
    "rollout_memory",
    "training_memory",
]

DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}
_ADAMW_BYTES: Final = 16
_LOGIT_BYTES: Final = 8
_DRAW_BYTES: Final = 28
"""Of each score when a token is drawn: in float32, its softmax, and that in doubles, summed up; and
the logarithm of the softmax."""
MOST_PASS_TOKENS: Final = 16_384
"""Of a forward pass while playing (``MOST_TOKENS`` of ``evolution/rollout/kv_cache.py``)."""


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
    pass_bytes: int
    """What one forward pass takes beside them."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.cache_bytes + self.pass_bytes


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
    paged: bool = False,
) -> Rollout:
    """Estimate playing so many conversations at once, the longest of ``tokens`` tokens.

    The target's layers carry an adapter. The dtype, of weights and cache, is a key of
    `DTYPE_BYTES`. ``paged`` is for a model server, which holds one copy of the weights and keys and
    values in pages.

    Raises:
        ValueError: A number out of range, or another dtype.
        TargetError: The target names a layer that there is not.
    """
    if min(conversations, tokens) < 1 or dtype not in DTYPE_BYTES:
        raise ValueError("conversations and tokens count from 1")
    size = DTYPE_BYTES[dtype]
    # In half precision factors stand beside the weights; see evolution/model/adapted.py.
    twice = size == 4 and not paged
    adapted = shape.adapted(target).values() if twice else ()
    merged = sum(out * width for out, width in adapted)
    kept = size * shape.kv_elements_per_token * conversations * tokens
    grown = 0 if paged else kept + kept // (2 * shape.layers)
    return Rollout(
        conversations=conversations,
        tokens=tokens,
        weights_bytes=size * (shape.parameters + merged),
        cache_bytes=kept + grown,
        pass_bytes=min(conversations * tokens, max(tokens, MOST_PASS_TOKENS))
        * _passing_bytes(shape, tokens, size)
        + conversations * shape.vocabulary * (size + _DRAW_BYTES),
    )


def _passing_bytes(shape: ModelShape, tokens: int, size: int) -> int:
    """What one block takes of one token for a moment, while nothing is kept for a backward pass."""
    # The residual, a norm in float32, its output, the attention's output, and the sum of both.
    states = shape.hidden * (4 * size + 4)
    # Query, and keys and values once for every head.
    attention = 3 * size * shape.heads * shape.head_dim
    # gate, up, SiLU(gate), and their product.
    mlp = 4 * size * shape.mlp
    # A query's row of the mask: as truth values, and as numbers to add.
    return states + attention + mlp + (1 + size) * tokens


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
