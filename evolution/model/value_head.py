"""A critic's value head on a model with an adapter: a linear layer beside the output head.

What goes into the output head, h, goes into the value head too, in the same forward pass and at the
same positions: where only some logits are computed, only their values are. So a model's word on the
positions of a batch comes with the values as ``value`` of what it returns, N or B×T like the logits
without their last dimension.

The gradient of a value ends at h, unless ``trains_adapter`` is set: then it goes on into the
adapter. In float32 whatever the base is held in, and under autocast too, as the adapter's factors.

Invariants:

1. A model has a head exactly while the adapter that was written into it has one
   (``federation.adapter.value_head``); what was written is what is read, bit for bit.
2. With a head the model says the same of every token, bit for bit, as without.

Covered: models whose output embedding is called once in a forward pass. Not covered: a head of
several layers; fused losses that never call the output embedding.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from evolution.errors import EvolverSetupError
from federation.adapter.value_head import VALUE_HEAD

__all__ = ["ValueHead", "adapter_parameters", "head_on", "put_head", "take_head", "values_in"]

_NAME: Final = VALUE_HEAD.removesuffix(".weight")


class ValueHead(torch.nn.Linear):
    """See the module."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, 1, bias=False, dtype=torch.float32)
        torch.nn.init.zeros_(self.weight)
        self.trains_adapter = False
        """Whether gradients go on into the hidden state."""
        self._said: torch.Tensor | None = None
        self._handles: list[Any] = []

    @property
    def parameter(self) -> torch.nn.Parameter:
        """Its weight."""
        weight = self.weight
        if not isinstance(weight, torch.nn.Parameter):
            raise TypeError("a value head's weight is in use by a functional call")
        return weight

    def watch(self, model: torch.nn.Module, output_head: torch.nn.Module) -> None:
        """Say a value in every forward pass of the model from now on, until ``leave``."""
        self._handles = [
            output_head.register_forward_pre_hook(self._read),
            model.register_forward_hook(self._hand_out),
        ]

    def leave(self) -> None:
        """Say nothing more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _read(self, _head: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        hidden = inputs[0] if self.trains_adapter else inputs[0].detach()
        with torch.autocast(hidden.device.type, enabled=False):
            self._said = self(hidden.float()).squeeze(-1)

    def _hand_out(self, _model: torch.nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        # Kept no longer than the pass: it holds the pass's graph.
        output.value, self._said = self._said, None


def head_on(model: Any) -> ValueHead | None:
    """The head of a model, if it has one."""
    found = getattr(model, _NAME, None)
    return found if isinstance(found, ValueHead) else None


def put_head(model: Any, hidden: int) -> ValueHead:
    """Put a head of this width on a model that has an adapter; one that is there stays.

    Raises:
        EvolverSetupError: The model's hidden state has another width.
    """
    output_head = model.get_output_embeddings()
    width = int(output_head.weight.shape[-1])
    if width != hidden:
        raise EvolverSetupError(
            f"a value head for {hidden} numbers cannot stand on this base, whose hidden state has "
            f"{width}: the run's adapter is of another base model"
        )
    found = head_on(model)
    if found is None:
        found = ValueHead(hidden).to(output_head.weight.device)
        model.add_module(_NAME, found)
        found.watch(model, output_head)
    return found


def take_head(model: Any) -> None:
    """Take the head off a model, if it has one."""
    found = head_on(model)
    if found is not None:
        found.leave()
        delattr(model, _NAME)


def adapter_parameters(
    model: Any, factors: dict[str, torch.nn.Parameter]
) -> dict[str, torch.nn.Parameter]:
    """The factors of a model's adapter by name, and the weight of its value head if it has one."""
    found = head_on(model)
    return factors if found is None else {**factors, VALUE_HEAD: found.parameter}


def values_in(output: Any) -> torch.Tensor:
    """The values that came with a model's output.

    Raises:
        EvolverSetupError: None came.
    """
    value = getattr(output, "value", None)
    if not isinstance(value, torch.Tensor):
        raise EvolverSetupError(
            "the objective learns a value, and the adapter that the trainer was reset to has no "
            f"{VALUE_HEAD!r}"
        )
    return value
