"""The moments of a server optimiser as arrays, and back: what a run that goes on needs of it.

Covered: the optimisers of ``federation.aggregate``; those without moments have no arrays. Not
covered: writing them down (``lab/experiment/state.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from federation.aggregate.moments import MomentOptimiser, Moments
from federation.aggregate.optimiser import Optimiser
from lab.aggregation.method import AggregationError, require_state

__all__ = ["moments_of", "take_up_moments"]

_PLACE: Final = "place"
"""Round, step and count of the newest release."""


def moments_of(optimiser: Optimiser) -> dict[str, np.ndarray]:
    """The state after the newest release, if there is one."""
    at = optimiser.newest if isinstance(optimiser, MomentOptimiser) else None
    if at is None:
        return {}
    place = np.array([at.round_number, at.step, at.count], dtype=np.int64)
    return {_PLACE: place, "first": np.asarray(at.first), "second": np.asarray(at.second)}


def take_up_moments(optimiser: Optimiser, state: Mapping[str, np.ndarray]) -> None:
    """Give a fresh optimiser the state that ``moments_of`` gave of another one of its kind.

    Raises:
        AggregationError: The optimiser has no such state.
    """
    if not state:
        return
    if not isinstance(optimiser, MomentOptimiser):
        raise AggregationError(f"server optimiser {optimiser.name!r} keeps no state")
    sizes = {name: (state[name].size,) for name in ("first", "second") if name in state}
    require_state(state, {_PLACE: (3,), "first": (0,), "second": (0,), **sizes})
    if state["first"].size != state["second"].size:
        raise AggregationError("the two moments have different lengths")
    number, step, count = (int(value) for value in state[_PLACE])
    optimiser.go_on_after(Moments(number, step, count, state["first"], state["second"]))
