"""The same plan in the other modes: what each of them would cost and leave of the signal.

For every mode the noise multiplier is the least one with which the run, its spare attempts
included, spends the plan's ``epsilon_cap`` at the plan's δ on the unit of that mode. To compare
like with like, the figures get the same part of it everywhere: the metrics block alone would cost
a tenth of the cap.

A plan without ``[privacy.record]`` says nothing about sampling, so the record-level rows take from
it what its training does: B̄ = ``batch_size``, q = B̄ over the most tasks a silo can have, and the
steps of its ``epochs``, S = ⌈epochs/q⌉.

Covered: four rows, and why one cannot be had. Not covered: the clip that suits a mode, which
changes no figure here; evolvers that cannot run in a mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp.accounting.charge import UnitKind
from dp.accounting.rdp import charged_attempts
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import PrivacyError, SpecError
from federation.forecast.calibration import calibrated
from federation.forecast.signal import Signal
from federation.plan.charges import epsilon_of_releases, epsilon_of_round, units_of
from federation.plan.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One mode, calibrated to the plan's ``epsilon_cap``."""

    mode: str
    """The mode."""
    unit: UnitKind | None = None
    """Whose ε it is; None where nobody is protected."""
    reason: str = ""
    """Why there are no figures; empty if there are."""
    sampling_rate: float | None = None
    """q; record level only."""
    expected_units: int | None = None
    """B̄; record level only."""
    steps_per_round: int | None = None
    """S; record level only."""
    releases: int = 0
    """Aggregations of the run."""
    noise_multiplier: float = 0.0
    """z."""
    metrics_noise_multiplier: float = 0.0
    """z of the metrics block."""
    epsilon_round: float = math.inf
    """ε of a round without a failed attempt."""
    epsilon_total: float = math.inf
    """ε of the run with its spare attempts: the cap, or just below."""
    predicted_cosine: float = 0.0
    """Upper bound on the cosine between the noisy and the noiseless mean of one step."""
    silos_for_min_cosine: int | None = None
    """Least n that reaches the plan's ``min_cosine``."""
    units_for_min_cosine: int | None = None
    """Least B̄ that does, at the same q; record level only."""


def alternatives(
    plan: Plan, *, silos: int, colluding: int, dimension: int
) -> tuple[Alternative, ...]:
    """The plan in each of the four modes, in the order of ``dp.config.Mode``."""
    asked = plan.asked_of(silos)
    found = []
    for mode in Mode:
        try:
            found.append(_alternative(plan, mode, asked, colluding, dimension))
        except PrivacyError as error:
            found.append(Alternative(mode=mode.value, reason=str(error)))
    return tuple(found)


def _alternative(plan: Plan, mode: Mode, silos: int, colluding: int, dimension: int) -> Alternative:
    shape = _shape(plan, mode)
    releases = plan.rounds.count * shape.sums_per_round
    charged = charged_attempts(releases, plan.rounds.spare_attempts)
    spec = shape if mode is Mode.NONE else calibrated(shape, charged, plan.first_steps)
    (unit,) = units_of(spec)
    signal = Signal(
        spec=spec,
        dimension=dimension,
        colluding=colluding,
        n_min=plan.secure_aggregation.n_min,
        groups=plan.aggregation.groups,
    )
    least = plan.privacy.min_cosine
    record = spec.record
    return Alternative(
        mode=mode.value,
        unit=None if mode is Mode.NONE else unit,
        sampling_rate=None if record is None else record.sampling_rate,
        expected_units=None if record is None else record.expected_units,
        steps_per_round=None if record is None else record.steps_per_round,
        releases=releases,
        noise_multiplier=spec.noise_multiplier,
        metrics_noise_multiplier=spec.metrics_noise_multiplier,
        epsilon_round=epsilon_of_round(spec)[unit].epsilon,
        epsilon_total=epsilon_of_releases(spec, releases=charged, first_steps=plan.first_steps)[
            unit
        ].epsilon,
        predicted_cosine=signal.cosine(silos),
        silos_for_min_cosine=signal.silos_needed(least),
        units_for_min_cosine=signal.units_needed(least, silos),
    )


def _shape(plan: Plan, mode: Mode) -> PrivacySpec:
    """The plan's specification in another mode, with any noise at all."""
    own, noise = plan.spec, 0.0 if mode is Mode.NONE else 1.0
    return replace(
        own,
        mode=mode,
        noise_multiplier=noise,
        metrics_noise_multiplier=noise,
        record=_record(plan, mode, own),
    )


def _record(plan: Plan, mode: Mode, own: PrivacySpec) -> RecordSpec | None:
    if mode in {Mode.NONE, Mode.SILO}:
        return None
    if own.record is not None:
        record = replace(own.record, silo_noise_multiplier=0.0)
    else:
        population = plan.population_cap
        if population < 1:
            raise SpecError("nothing is explored, so there are no units to sample")
        units = min(plan.evolve.batch_size, population)
        record = RecordSpec(
            sampling_rate=units / population,
            expected_units=units,
            steps_per_round=math.ceil(plan.evolve.epochs * population / units),
        )
    clip = (record.delta_clip_l2 or own.clip_l2) if mode is Mode.RECORD_LOCAL else None
    return replace(record, delta_clip_l2=clip)
