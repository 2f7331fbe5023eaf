"""An adapter in training stands beside 16-bit weights as it does in play: one product.

With s = α/r, and A and B rounded to the type of W for the products alone::

    y    = [W, s·B] · [x ; A·x]                              (``evolution/model/adapted.py``)
    ∂/∂x = Wᵀ·ȳ + Aᵀ·(s·Bᵀ·ȳ)      ∂/∂A = (s·Bᵀ·ȳ)·xᵀ      ∂/∂B = s·ȳ·(A·x)ᵀ

peft rounds W·x first and adds the adapter's part to it, where what is below half a step vanishes: a
small adapter then trains against a model that hardly feels it, and what the trainer says of a token
differs from what the engine said when it drew it.

Invariants:

1. A, B and their gradients are float32; gradients are summed in float32.
2. W gets no gradient, and none is computed for it.
3. The numbers are the engine's: the same products, up to the shapes in which they are computed.

Covered: peft's dense linear layers with one adapter, without dropout, in bfloat16; recomputed
activations, DDP and FSDP. Not covered: float32, where nothing is gained and peft's own layer stays;
gradients by hooks on the factors' layers, which are not called here (``dp.steps.grads`` then
refuses, and record-level privacy computes unit by unit in 16 bits), ``torch.func``.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch.nn.functional import linear

__all__ = ["TrainedBeside"]


class _Product(torch.autograd.Function):
    """y of the module, and its derivatives."""

    @staticmethod
    def forward(  # noqa: PLR0917  # torch passes them by place
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        scale: float,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        down = linear(x, A.to(weight.dtype))
        ctx.save_for_backward(x, weight, A, B, down)
        ctx.scale = scale
        both = torch.cat([weight, (scale * B).to(weight.dtype)], dim=1)
        return linear(torch.cat([x, down], dim=-1), both, bias)

    @staticmethod
    def backward(ctx: Any, *by_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, A, B, down = ctx.saved_tensors
        need_x, _, need_A, need_B, _, _ = ctx.needs_input_grad
        by_y_NO = by_outputs[0].reshape(-1, weight.shape[0])
        exact_NO = by_y_NO.float()
        by_down_NR = ctx.scale * (exact_NO @ B)
        by_x = by_A = by_B = None
        if need_x:
            beside_NI = by_down_NR.to(weight.dtype) @ A.to(weight.dtype)
            by_x = torch.addmm(beside_NI, by_y_NO, weight).view_as(x)
        if need_A:
            by_A = by_down_NR.T @ x.reshape(-1, x.shape[-1]).float()
        if need_B:
            by_B = ctx.scale * (exact_NO.T @ down.reshape(-1, down.shape[-1]).float())
        return by_x, None, by_A, by_B, None, None


class TrainedBeside(lora.Linear):  # type: ignore[misc]  # peft has no types
    """peft's layer with another forward pass; see the module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (…, inputs) to (…, outputs), in the type of the weights."""
        if self.disable_adapters or self.merged:
            # Then there is one product anyway.
            return super().forward(x)  # type: ignore[no-any-return]  # peft has no types
        base = self.get_base_layer()
        (name,) = self.active_adapters
        product: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]  # untyped in torch
            x.to(base.weight.dtype),
            base.weight,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
            base.bias,
        )
        return product
