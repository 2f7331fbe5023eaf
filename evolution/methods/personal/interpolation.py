"""Between the shared adapter and the silo's own: θ_w = (1 − w)·θ + w·own, as changes of weights.

An adapter changes a layer by (α/r)·B·A, which is a product. The mean of two adapters' factors has
cross terms B_θ·A_own and B_own·A_θ that belong to neither, and half of each is not half of the
change. What is interpolated here is the change (model interpolation: arXiv 2002.10619, §4)::

    ΔW_w = (1 − w)·(α/r_θ)·B_θ·A_θ + w·(α/r_own)·B_own·A_own

    A the same in all layers    B_w = (1 − w)·B_θ + w·B_own at the same rank: it is linear
    B the same in all layers    A_w likewise
    else, at rank r_θ + r_own   A_w = [A_θ ; A_own],
                                B_w = (r_θ + r_own)·[(1 − w)·B_θ / r_θ , w·B_own / r_own]

Nothing is approximated: whoever plays scales by α over the rank that an adapter has, and the
factors of B take that up. Both adapters have one α, the plan's.

Invariants: w = 0 is the shared adapter and w = 1 the silo's own, bit for bit, and without a value
head, which says nothing. All layers of the result have one rank, as peft's form asks.

Covered: adapters of one layout, or of two ranks. Not covered: a server whose highest rank is below
the sum (vLLM's ``--max-lora-rank``), which refuses the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evolution.errors import AdapterMismatchError
from federation.adapter.layout import Layout, LoraPair
from federation.adapter.value_head import without_head
from federation.errors import LayoutError

__all__ = ["interpolated"]

Tensors = Mapping[str, np.ndarray]


def interpolated(shared: Tensors, own: Tensors, weight: float) -> dict[str, np.ndarray]:
    """``1 − weight`` of the shared adapter and ``weight`` of the silo's own.

    Raises:
        AdapterMismatchError: They are not factors of the same layers.
        ValueError: The weight is not from 0 to 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"a weight is from 0 to 1, not {weight}")
    shared, own = without_head(shared), without_head(own)
    pairs = _pairs(shared, own)
    if weight in {0.0, 1.0}:
        return dict(own if weight else shared)
    for fixed in (0, 1):
        if all(np.array_equal(shared[names[fixed]], own[names[fixed]]) for names in pairs):
            moved = [names[1 - fixed] for names in pairs]
            return {**shared, **{n: _mean(shared[n], own[n], weight) for n in moved}}
    found: dict[str, np.ndarray] = {}
    for a, b in pairs:
        ranks = shared[a].shape[0], own[a].shape[0]
        found[a] = np.concatenate([shared[a], own[a]], axis=0)
        found[b] = np.concatenate(
            [
                _scaled(shared[b], (1.0 - weight) * sum(ranks) / ranks[0]),
                _scaled(own[b], weight * sum(ranks) / ranks[1]),
            ],
            axis=1,
        )
    return found


def _pairs(shared: Tensors, own: Tensors) -> list[tuple[str, str]]:
    """The names of A and B of every layer; both adapters have all of them."""
    try:
        both = [Layout.from_tensors(dict(one)).pairs() for one in (shared, own)]
    except LayoutError as error:
        raise AdapterMismatchError(str(error)) from error
    if [_sides(pair) for pair in both[0]] != [_sides(pair) for pair in both[1]]:
        raise AdapterMismatchError("the shared adapter and the silo's own are of other layers")
    return [(pair.a.name, pair.b.name) for pair in both[0]]


def _sides(pair: LoraPair) -> tuple[str, int, int]:
    return pair.prefix, pair.a.shape[1], pair.b.shape[0]


def _mean(one: np.ndarray, other: np.ndarray, weight: float) -> np.ndarray:
    mean: np.ndarray = _scaled(one, 1.0 - weight) + _scaled(other, weight)
    return mean


def _scaled(factor: np.ndarray, by: float) -> np.ndarray:
    scaled: np.ndarray = factor * np.float32(by)
    return scaled
