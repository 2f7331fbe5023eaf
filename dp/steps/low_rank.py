"""A low-rank pair beside a frozen linear layer, in one step, with the gradient of every row.

LoRA (arXiv 2106.09685, §4.1) computes y = W·x + s·B·(A·x). peft's layer takes one operation after
the other, and goes four times more than the products need over arrays as wide as x and y: to scale
what B gives and to add it, and both again on the way back. Here every sum is part of a product.
With ȳ = ∂ℓ/∂y, for row b and its tokens t::

    ∂ℓ_b/∂A = Σ_t (s·Bᵀ·ȳ_bt)·x_btᵀ      ∂ℓ_b/∂B = s·Σ_t ȳ_bt·(A·x_bt)ᵀ
    ∂ℓ/∂x = Wᵀ·ȳ + Aᵀ·(s·Bᵀ·ȳ)

Covered: peft's dense layers in float32 with one adapter, plain LoRA without dropout or biases of
its own, of which A, B or both are trained. Not covered, and left to the layer itself: everything
else, and a layer whose adapter is switched off or merged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dp.errors import CouplingError

__all__ = ["LowRankPair", "add_per_row", "pairs_in"]


class LowRankPair:
    """The two factors of one layer."""

    def __init__(self, layer: Any, name: str) -> None:
        """Take a layer that ``pairs_in`` found, and the name of its adapter."""
        self._layer = layer
        self.A: torch.nn.Parameter = layer.lora_A[name].weight
        """Of (r, inputs)."""
        self.B: torch.nn.Parameter = layer.lora_B[name].weight
        """Of (outputs, r)."""
        self.W: torch.nn.Parameter = layer.base_layer.weight
        """Of (outputs, inputs)."""
        self._scale = float(layer.scaling[name])

    @contextmanager
    def watched(
        self, rows: int, into_A: torch.Tensor | None, into_B: torch.Tensor | None
    ) -> Iterator[None]:
        """While this lasts, forward passes are of so many rows, and backward adds what they give.

        Each is a matrix of rows × coordinates of the factor, or None where it is not trained. A
        pass of which backward is called later is one of this time as well.

        Raises:
            CouplingError: In a forward pass: the input has another number of rows.
        """
        layer, base = self._layer, self._layer.base_layer
        A, scaled_B = self.A.detach(), self._scale * self.B.detach()
        # Something to differentiate by, where the graph begins at this layer.
        start = torch.zeros((), requires_grad=True)

        def forward(x: torch.Tensor) -> Any:
            if layer.disable_adapters or layer.merged:
                return type(layer).forward(layer, x)
            if len(x) != rows:
                raise CouplingError("a layer does not keep the rows of a batch apart")
            return _Product.apply(  # type: ignore[no-untyped-call]  # untyped in torch
                x, start, (base.weight, base.bias), (A, scaled_B, self._scale), (into_A, into_B)
            )

        layer.forward = forward
        try:
            yield
        finally:
            del layer.forward


class _Product(torch.autograd.Function):
    """y of the module, and its derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        _start: torch.Tensor,
        base: tuple[torch.Tensor, torch.Tensor | None],
        pair: tuple[torch.Tensor, torch.Tensor, float],
        into: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> torch.Tensor:
        weight, bias = base
        A, scaled_B, ctx.scale = pair
        ctx.into_A, ctx.into_B = into
        down = torch.nn.functional.linear(x, A)
        y = torch.nn.functional.linear(x, weight, bias)
        y.view(-1, y.shape[-1]).addmm_(down.view(-1, down.shape[-1]), scaled_B.T)
        ctx.save_for_backward(x, weight, A, scaled_B, down)
        return y

    @staticmethod
    def backward(ctx: Any, *by_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, A, scaled_B, down = ctx.saved_tensors
        rows = len(x)
        by_y_NO = by_outputs[0].reshape(-1, len(weight))
        by_down_NR = by_y_NO @ scaled_B
        x_BTI, by_y_BTO = x.reshape(rows, -1, x.shape[-1]), by_y_NO.view(rows, -1, len(weight))
        if ctx.into_A is not None:
            add_per_row(ctx.into_A, by_down_NR.view(rows, -1, len(A)), x_BTI)
        if ctx.into_B is not None:
            add_per_row(ctx.into_B, by_y_BTO, down.reshape(rows, -1, len(A)), scale=ctx.scale)
        by_x = (by_y_NO @ weight).addmm_(by_down_NR, A) if ctx.needs_input_grad[0] else None
        return None if by_x is None else by_x.view_as(x), None, None, None, None


def pairs_in(
    model: torch.nn.Module, parameters: Collection[torch.nn.Parameter]
) -> list[LowRankPair]:
    """The layers that can be computed so, of which a factor is among the parameters, and not W."""
    wanted = {id(parameter) for parameter in parameters}
    found = []
    for layer in model.modules():
        name = _plain_adapter(layer)
        if name is not None:
            pair = LowRankPair(layer, name)
            if id(pair.W) not in wanted and wanted & {id(pair.A), id(pair.B)}:
                found.append(pair)
    return found


def _plain_adapter(layer: Any) -> str | None:
    """The name of a layer's one adapter, where it is of the kind that is covered."""
    base = getattr(layer, "base_layer", None)
    names = list(getattr(layer, "lora_A", ()))
    if type(base) is not torch.nn.Linear or base.weight.dtype != torch.float32 or len(names) != 1:
        return None
    (name,) = names
    factors = (layer.lora_A[name], layer.lora_B[name])
    plain = (
        list(layer.active_adapters) == names
        and not layer.lora_variant
        and isinstance(layer.lora_dropout[name], torch.nn.Identity)
        and all(type(one) is torch.nn.Linear and one.bias is None for one in factors)
        and all(one.weight.dtype == torch.float32 for one in factors)
    )
    return name if plain else None


def add_per_row(
    into: torch.Tensor, by_y_BTO: torch.Tensor, x_BTI: torch.Tensor, *, scale: float = 1.0
) -> None:
    """Add scale·Σ_t ȳ_bt·x_btᵀ to row b of a matrix of rows × (O·I)."""
    high, wide = by_y_BTO.shape[-1], x_BTI.shape[-1]
    # With the short side of a factor first, the product is five times as fast.
    if high <= wide:
        per_row_BOI = torch.bmm(by_y_BTO.mT, x_BTI)
    else:
        per_row_BOI = torch.bmm(x_BTI.mT, by_y_BTO).mT
    into.view(len(into), high, wide).add_(per_row_BOI, alpha=scale)
