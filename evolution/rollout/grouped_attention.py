"""Attention where several heads of queries share one head of keys and values.

transformers copies keys and values once for each head of queries wherever a mask is given and there
is more than one query. torch's kernel on a CPU reads them where they are: the same bits, in about
half the time where queries are few and keys many, as when an observation is read after many turns.
On a GPU a mask and shared heads together leave torch without its fast kernels, so transformers' own
way stands there.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

__all__ = ["share_heads"]

_NAME = "shared_heads"
_SPECIAL = ("position_bias", "cache", "softcap", "output_attentions")
"""What some models ask of attention beyond the plain kind: left to transformers."""


def share_heads(model: Any) -> None:
    """Have a model that uses scaled-dot-product attention on a CPU read shared heads in place."""
    AttentionInterface.register(_NAME, _attend)
    model.set_attn_implementation(_NAME)


def _attend(  # noqa: PLR0917  # transformers gives them by place
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Queries of (batch, heads, W, width), keys and values of (batch, shared heads, S, width)."""
    special = any(more.get(name) is not None for name in _SPECIAL)
    if attention_mask is None or query.shape[2] == 1 or special:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return attended
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return found.transpose(1, 2).contiguous(), None
