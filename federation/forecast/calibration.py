"""The least noise with which a run stays within its ε.

Invariant: the run that is charged has its spare attempts in it, and its figures have their part of
the ε first; what a ledger would charge for it is at or below the cap.

Covered: z of what a mode protects, and z_m of the figures. Not covered: whether anything is learned
under that noise (``federation.forecast.signal``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dp.accounting.rdp import calibrate
from dp.config import PrivacySpec
from dp.errors import SpecError
from federation.plan.charges import epsilon_of_releases, units_of

__all__ = ["METRICS_SHARE", "calibrated"]

METRICS_SHARE: Final = 0.1
"""Part of ε that the metrics block would cost alone."""
_TOLERANCE: Final = 1e-3
_MAX_NOISE_MULTIPLIER: Final = 1e6


def calibrated(shape: PrivacySpec, charged: int, first_steps: int) -> PrivacySpec:
    """The specification with the least z, to a thousandth from above, that stays within its cap.

    ``shape`` has any noise at all, in any mode with noise; ``charged`` attempts are paid for, of
    which ``first_steps`` are of a round's step 0.

    Raises:
        SpecError: No noise stays within it.
    """
    cap, (unit,) = shape.epsilon_cap, units_of(shape)
    shape = replace(
        shape,
        metrics_noise_multiplier=calibrate(
            target_epsilon=METRICS_SHARE * cap, delta=shape.delta, steps=first_steps
        ),
    )

    def reaches(z: float) -> bool:
        spent = epsilon_of_releases(
            replace(shape, noise_multiplier=z), releases=charged, first_steps=first_steps
        )
        return spent[unit].epsilon <= cap

    high = 1.0
    while not reaches(high):
        high *= 2.0
        if high > _MAX_NOISE_MULTIPLIER:
            raise SpecError(
                f"no noise reaches epsilon {cap:g} at delta {shape.delta:g}: raise one of them, or "
                "expected_units"
            )
    low = high / 2.0
    while low > 1.0 / _MAX_NOISE_MULTIPLIER and reaches(low):
        low, high = low / 2.0, low
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2.0
        if reaches(middle):
            high = middle
        else:
            low = middle
    return replace(shape, noise_multiplier=high)
