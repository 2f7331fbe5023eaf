"""An evolver that always wants the same change: the work-horse of protocol tests. No torch.

The delta is a pattern that is easy to recognise and exact in float32: over the concatenation of
the trainable tensors in ascending order of their names, entry j is v·(1 + (j mod 8)/8). With
v a power of two of its own per silo, sums, permutations and lost silos are all visible.

Options: ``value`` (a number, or ``nan`` for a delta that is not finite), ``family``, ``episodes``
and ``successes`` (counts reported each round and each evaluation), and ``units`` (the population of
``record_distributed``; every unit's gradient is the pattern).

Modes: all, because nothing depends on data. ``record_local`` is charged like any other
training, and the pattern is what it would have learned; in ``record_distributed`` a step samples,
clips and sums the units as the real methods do.

Covered: any layout. Not covered: learning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dp.config import Mode
from dp.noise.unit_sum import UnitSum
from dp.steps.sgd import unit_sum
from dp.steps.units import UnitId
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import (
    Evaluation,
    EvaluationRow,
    Evolution,
    Evolver,
    EvolverSetup,
    StepWork,
    Work,
)

__all__ = ["ConstantEvolver", "constant_pattern"]

_OPTIONS = frozenset({"value", "family", "episodes", "successes", "units"})


def constant_pattern(value: float, size: int) -> np.ndarray:
    """The pattern over a flat vector: float32 entries v·(1 + (j mod 8)/8)."""
    steps = 1.0 + np.arange(size, dtype=np.float64) % 8 / 8
    return np.asarray(value * steps, dtype=np.float32)


class _PatternGradients:
    """A gradient backend (``dp.steps.sgd.UnitGradients``) for which every row is the pattern."""

    def __init__(self, pattern: np.ndarray) -> None:
        self._pattern = pattern
        self.dimension: int = pattern.size

    def longest(self, rows: Sequence[None]) -> int:
        return len(rows)

    def unit_gradients(self, units: Sequence[Sequence[None]]) -> Iterator[np.ndarray]:
        return iter([self._pattern] * len(units))


class ConstantEvolver(Evolver):
    """See the module."""

    name = "constant"

    def __init__(self, setup: EvolverSetup) -> None:
        unknown = set(setup.options) - _OPTIONS
        if unknown:
            raise EvolverSetupError(f"the constant evolver has no option {min(unknown)!r}")
        try:
            self._value = float(setup.options.get("value", 0.0))
            self._episodes = int(setup.options.get("episodes", 0))
            self._successes = int(setup.options.get("successes", 0))
            units = int(setup.options.get("units", 0))
        except ValueError as error:
            raise EvolverSetupError(f"an option is not a number: {error}") from error
        if not 0 <= self._successes <= self._episodes:
            raise EvolverSetupError("there must be as many episodes as successes, or more")
        if units < 0:
            raise EvolverSetupError(f"there cannot be {units} units")
        self._units = tuple(UnitId(self.name, str(index)) for index in range(units))
        self._family = str(setup.options.get("family", "constant"))

    def evolve(self, work: Work) -> Evolution:
        """Return the pattern; zeros in ``record_distributed``, whose steps come one by one.

        Only the trainable tensors' names and shapes matter, and the privacy mode.
        """
        names = sorted(work.trainable)
        mode = None if work.privacy is None else work.privacy.spec.mode
        if work.privacy is not None and work.privacy.reserve is not None:
            work.privacy.reserve()
        value = 0.0 if mode is Mode.RECORD_DISTRIBUTED else self._value
        flat = constant_pattern(value, sum(work.adapter[name].size for name in names))
        delta: dict[str, np.ndarray] = {}
        start = 0
        for name in names:
            shape, size = work.adapter[name].shape, work.adapter[name].size
            delta[name] = flat[start : start + size].reshape(shape)
            start += size
        return Evolution(
            delta=delta,
            episodes={self._family: self._episodes},
            successes={self._family: self._successes},
            metrics={},
            duration_s={},
        )

    def unit_sum(self, work: StepWork) -> UnitSum:
        """Sample the configured units and add up their patterns.

        Only the names, the shapes and the spec matter.
        """
        dimension = sum(work.adapter[name].size for name in work.names)
        return unit_sum(
            self._units,
            dict.fromkeys(self._units, (None,)),
            spec=work.spec,
            dimension=dimension,
            backend=_PatternGradients(constant_pattern(self._value, dimension)),
        )

    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Return the configured counts; only the temperatures matter."""
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

    def close(self) -> None:
        """Release nothing."""
