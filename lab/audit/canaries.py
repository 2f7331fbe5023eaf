"""Canaries: units whose gradients are orthogonal, so that one release audits all of them.

Canary j is a unit whose clipped gradient is C·e_j. Coordinates of the noise are independent and so
are the coins of the sampling, hence coordinate j of a release is an experiment of its own on
whether canary j was there: d canaries make one release worth d single-unit releases. Half of them
are present, the other half absent, and the halves change place from run to run, so that every
coordinate is seen both ways.

Invariant: what is handed to the mechanism is only which canaries are present; what it hands back
is the whole vector it would release, in multiples of C.

Covered: planting canaries and sorting what was released by presence.
Not covered: mechanisms whose coordinates are not independent, which ``lab.audit.noise`` finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp.errors import SpecError

__all__ = ["Mechanism", "Observations", "observe"]

Floats = npt.NDArray[np.float64]


class Mechanism(Protocol):
    """A run of the mechanism under audit, made afresh for every run."""

    def __call__(self, present: npt.NDArray[np.bool_], step: int) -> npt.NDArray[np.floating]:
        """Release one step of this run, counted from 0, with these canaries present in the data.

        Returns the sum that is released in multiples of C, coordinate j along canary j; before any
        division by a batch size.
        """


class MakeMechanism(Protocol):
    """Starts a run."""

    def __call__(self) -> Mechanism:
        """Return a mechanism with all its steps ahead of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observations:
    """What was released along canaries that were there, and along those that were not."""

    present: Floats
    """Shape (experiments, steps)."""
    absent: Floats
    """Shape (experiments, steps)."""

    def split(self, first: float) -> tuple[Observations, Observations]:
        """The first part of the experiments, given as a fraction of them, and the rest."""
        p, a = int(len(self.present) * first), int(len(self.absent) * first)
        return (
            Observations(present=self.present[:p], absent=self.absent[:a]),
            Observations(present=self.present[p:], absent=self.absent[a:]),
        )


def observe(make: MakeMechanism, *, canaries: int, steps: int, runs: int) -> Observations:
    """Run the mechanism ``runs`` times with canaries planted.

    At least two canaries, so that each half holds one. Returns runs · canaries experiments, divided
    evenly for an even number of canaries.
    """
    if canaries < 2 or steps < 1 or runs < 1:
        raise SpecError("an audit needs two canaries, one step and one run at least")
    seen: tuple[list[Floats], list[Floats]] = ([], [])
    for run in range(runs):
        present = (np.arange(canaries) + run) % 2 == 0
        mechanism = make()
        released = np.empty((canaries, steps))
        for step in range(steps):
            vector = mechanism(present.copy(), step)
            if vector.shape != (canaries,):
                raise SpecError(f"expected {canaries} coordinates, got {vector.shape}")
            released[:, step] = vector
        seen[0].append(released[present])
        seen[1].append(released[~present])
    return Observations(present=np.concatenate(seen[0]), absent=np.concatenate(seen[1]))
