"""ε of a run as everyone can compute it, from the plan and from counts that are public.

Invariants:
    1. Every unit kind that the plan speaks of has a figure: the silo in ``none`` and ``silo``, the
       plan's unit at record level, and both where ``record_local`` is composed with ``silo``.
    2. Without noise ε is infinite as soon as anything is released; so is a figure that cannot be
       computed.

Covered: the run. Not covered: what one silo's ledger was charged, also by other runs.
"""

from __future__ import annotations

import math

from dp.accounting.charge import UnitKind, epsilon_of, run_charges
from dp.config import RECORD_MODES, PrivacySpec


def units_of(spec: PrivacySpec) -> tuple[UnitKind, ...]:
    """The unit kinds whose ε a plan states."""
    if spec.mode not in RECORD_MODES:
        return ("silo",)
    composed = spec.record is not None and spec.record.silo_noise_multiplier > 0.0
    return ("silo", spec.unit) if composed else (spec.unit,)


def epsilon_of_releases(
    spec: PrivacySpec, *, releases: int, first_steps: int, trainings: int | None = None
) -> dict[UnitKind, float]:
    """ε at the spec's δ of so many attempts that reached the upload, and of local trainings.

    Args:
        spec: The plan's.
        releases: Attempts, the failed ones included.
        first_steps: How many of them were of a round's step 0.
        trainings: Under ``record_local``, of one silo; as many as releases when not given.

    Raises:
        SpecError: If there are more first steps than releases.
    """
    charges = run_charges(spec, releases=releases, first_steps=first_steps, trainings=trainings)
    known = epsilon_of(charges, spec.delta)
    unknown = math.inf if releases else 0.0
    return {unit: known.get(unit, unknown) for unit in units_of(spec)}
