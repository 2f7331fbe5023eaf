"""The value head of a critic: what it is called, and what tells it from the adapter's factors.

V(x_<t) = w·h, with h what goes into the output head at the position before token t: one weight for
each entry of h, 1 × hidden, and no bias. It begins at zero, so the first V is 0 everywhere.

Where a plan federates it, it is one more tensor of the adapter: in the layout, in the descriptor's
digest, in the masked sum and in the published bytes. It changes no token that the model says, so
whoever plays or serves an adapter leaves it out.

Covered: one head on one hidden state. Not covered: what trains it
(``evolution/model/value_head.py`` and the objective ``ppo``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from federation.adapter.layout import Layout, TensorSpec
from federation.errors import LayoutError

__all__ = [
    "VALUE_HEAD",
    "first_head",
    "head_of",
    "require_head",
    "with_head",
    "without_head",
]

VALUE_HEAD: Final = "value_head.weight"
"""Its name among an adapter's tensors; no layer of a model has such a name under peft's prefix."""
TensorT = TypeVar("TensorT")


def first_head(hidden: int) -> dict[str, npt.NDArray[np.float32]]:
    """The head that a critic starts from, by name, for a base of this width."""
    return {VALUE_HEAD: np.zeros((1, hidden), dtype=np.float32)}


def head_of(tensors: Mapping[str, TensorT]) -> dict[str, TensorT]:
    """The head alone, by name; empty where there is none."""
    return {name: tensor for name, tensor in tensors.items() if name == VALUE_HEAD}


def without_head(tensors: Mapping[str, TensorT]) -> dict[str, TensorT]:
    """The factors alone: what changes what the model says."""
    return {name: tensor for name, tensor in tensors.items() if name != VALUE_HEAD}


def with_head(layout: Layout, hidden: int) -> Layout:
    """A layout with a head for a base of this width."""
    return Layout((*layout.specs, TensorSpec(name=VALUE_HEAD, shape=(1, hidden))))


def require_head(names: Collection[str], *, shared: bool) -> None:
    """Check that an adapter of these tensors has a head exactly where its plan federates one.

    Raises:
        LayoutError: It has none, or one too many; the text says where a right one comes from.
    """
    if (VALUE_HEAD in names) == shared:
        return
    if shared:
        raise LayoutError(
            f"the plan federates its value head and the adapter has no {VALUE_HEAD!r}: begin with "
            "the adapter that chorale run start makes if none is given, or with one of "
            "chorale-lab adapter init --value-head"
        )
    raise LayoutError(
        f"the adapter has {VALUE_HEAD!r} and the plan federates no value head: begin with an "
        "exported adapter, which leaves the head out, or write value_head = 'federated' in the "
        "plan's objective"
    )
