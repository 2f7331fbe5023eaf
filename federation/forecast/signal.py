"""How much of the direction survives the noise in a plan, mode by mode, and what would help.

With d coordinates, n silos, k = max(t, n_min) − c and noise multiplier z, the noise over the signal
in the mean of a release is at best (signal: all contributions as long as their clip, and aligned)

    silo                  z·√(d/(n·k))            of deltas clipped to C
    record_distributed    (z/B̄)·√(d/(n·k))        of one optimiser step
    record_local          (z/B̄)·√(d/n)            of one optimiser step, averaged over the silos:
                                                  each of them adds the whole noise
    record_local + silo   both, squares added     the second with its own z, on the delta

With g groups n is that of the least group and the noise is multiplied by √V of the rule
(``federation.forecast.groups``). The predicted cosine is 1/√(1 + (noise/signal)²); see
``dp.accounting.snr``. A round of several steps adds signal in proportion to its steps and noise to
their root, if the direction stays.

Covered: upper bounds. Not covered: how far real contributions are shorter or differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dp.accounting.snr import least_count, predicted_cosine, threshold_divisor
from dp.config import Mode, PrivacySpec
from dp.errors import SpecError
from federation.aggregate.groups import variance_of_rule
from federation.plan.tables import GroupsSection


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """A privacy specification over a vector of a known size, for cohorts of any size."""

    spec: PrivacySpec
    """Mode, z, B̄."""
    dimension: int
    """d: coordinates of a release."""
    colluding: int
    """c, from the roster."""
    n_min: int
    """Least survivors of the plan."""
    groups: GroupsSection | None = None
    """Sums of groups instead of one; n silos are then n/g in each of g sums."""

    def cosine(self, silos: int) -> float:
        """Upper bound on the cosine between the noisy and the noiseless mean of n silos."""
        return self._cosine(silos, self._units)

    def silos_needed(self, min_cosine: float) -> int | None:
        """Least cohort whose predicted cosine reaches ``min_cosine``; None if there is none."""
        found = _least(self.cosine, min_cosine)
        if found is None:
            return None
        # Each group is a sum of its own.
        return max(found, self._count * max(self.n_min, self.colluding + 2))

    def units_needed(self, min_cosine: float, silos: int) -> int | None:
        """Least B̄ that reaches ``min_cosine`` with n silos, at the same z and sampling rate.

        The population has to grow with it. None in the modes without units, and if no B̄ does.
        """
        if self.spec.record is None:
            return None
        return _least(lambda units: self._cosine(silos, units), min_cosine)

    @property
    def _count(self) -> int:
        return 1 if self.groups is None else self.groups.count

    @property
    def _units(self) -> int:
        return 1 if self.spec.record is None else self.spec.record.expected_units

    def _cosine(self, silos: int, units: int) -> float:
        local = self.spec.mode is Mode.RECORD_LOCAL
        rest = 1.0
        if self.groups is not None:
            # The noise is that of one group's mean, and the rule takes off what is left of it.
            silos = max(silos // self._count, 1)
            rest = math.sqrt(variance_of_rule(self._count, self.groups.rule, self.groups.byzantine))
        divisor = max(
            threshold_divisor(silos, colluding=self.colluding), self.n_min - self.colluding
        )
        noises = [(self.spec.noise_multiplier, 1 if local else divisor, units)]
        if local and self.spec.release.noise_multiplier > 0.0:
            noises.append((self.spec.release.noise_multiplier, divisor, 1))
        cosines = [
            predicted_cosine(
                noise_multiplier=rest * z,
                dimension=self.dimension,
                silos=silos,
                divisor=share,
                expected_units=batch,
            )
            for z, share, batch in noises
        ]
        if len(cosines) == 1:
            return cosines[0]
        # (noise/signal)² = 1/cos² − 1, and independent noises add up in squares.
        return 1.0 / math.sqrt(1.0 + sum(1.0 / cosine**2 - 1.0 for cosine in cosines))


def _least(cosine: Callable[[int], float], min_cosine: float) -> int | None:
    if min_cosine == 0.0:
        return 1  # Any direction will do.
    try:
        return least_count(cosine, min_cosine, "contributions")
    except SpecError:
        return None
