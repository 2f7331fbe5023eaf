"""An evolver that always wants the same change: the work-horse of protocol tests. No torch.

The delta is a pattern that is easy to recognise and exact in float32: over the concatenation of
the trainable tensors in ascending order of their names, entry j is v·(1 + (j mod 8)/8). With
v a power of two of its own per silo, sums, permutations and lost silos are all visible.

Options: ``value`` (a number, or ``nan`` for a delta that is not finite), ``family``, ``episodes``
and ``successes`` (counts reported each round and each evaluation).

dp_compat: all units, because nothing depends on data.

Covered: any layout. Not covered: learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from silo_agent.evolve.evolver import (
    DP_MODES,
    Evaluation,
    EvaluationRow,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolverSetupError,
    Work,
)

__all__ = ["ConstantEvolver", "constant_pattern"]

_OPTIONS = frozenset({"value", "family", "episodes", "successes"})


def constant_pattern(value: float, size: int) -> np.ndarray:
    """The pattern over a flat vector.

    Args:
        value: v.
        size: Number of entries.

    Returns:
        Float32 entries v·(1 + (j mod 8)/8).
    """
    steps = 1.0 + np.arange(size, dtype=np.float64) % 8 / 8
    return np.asarray(value * steps, dtype=np.float32)


class ConstantEvolver(Evolver):
    """See the module."""

    name: ClassVar[str] = "constant"
    dp_compat: ClassVar[frozenset[str]] = DP_MODES

    def __init__(self, setup: EvolverSetup) -> None:
        unknown = set(setup.options) - _OPTIONS
        if unknown:
            raise EvolverSetupError(f"the constant evolver has no option {min(unknown)!r}")
        try:
            self._value = float(setup.options.get("value", 0.0))
            self._episodes = int(setup.options.get("episodes", 0))
            self._successes = int(setup.options.get("successes", 0))
        except ValueError as error:
            raise EvolverSetupError(f"an option is not a number: {error}") from error
        if not 0 <= self._successes <= self._episodes:
            raise EvolverSetupError("there must be as many episodes as successes, or more")
        self._family = str(setup.options.get("family", "constant"))
        self._rounds = 0

    def evolve(self, work: Work) -> Evolution:
        """Return the pattern.

        Args:
            work: Only the names and shapes of the trainable tensors matter.

        Returns:
            The same evolution every round.
        """
        names = sorted(work.trainable)
        flat = constant_pattern(self._value, sum(work.adapter[name].size for name in names))
        delta: dict[str, np.ndarray] = {}
        start = 0
        for name in names:
            shape, size = work.adapter[name].shape, work.adapter[name].size
            delta[name] = flat[start : start + size].reshape(shape)
            start += size
        self._rounds += 1
        return Evolution(
            delta=delta,
            episodes={self._family: self._episodes},
            successes={self._family: self._successes},
            metrics={},
            duration_s={},
        )

    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Return the configured counts.

        Args:
            work: Only the temperatures matter.

        Returns:
            One row per temperature.
        """
        return [
            EvaluationRow(
                environment=self._family,
                label="all",
                shard=0,
                temperature=temperature,
                episodes=self._episodes,
                successes=self._successes,
            )
            for temperature in work.temperatures
        ]

    def state_dict(self) -> dict[str, int]:
        """Rounds so far.

        Returns:
            One counter.
        """
        return {"rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue counting.

        Args:
            state: What ``state_dict`` returned.
        """
        self._rounds = int(state["rounds"])

    def metrics(self) -> dict[str, float]:
        """Rounds so far.

        Returns:
            One gauge.
        """
        return {"rounds": float(self._rounds)}

    def close(self) -> None:
        """Release nothing."""
