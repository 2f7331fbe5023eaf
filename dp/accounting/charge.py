"""What a release costs, unit kind by unit kind, as a function of the spec alone.

One aggregation or one local training may cost several units' budgets at once, and one unit's for
several reasons; all charges of a release are debited together.

    mode                 before a local training       per attempt that reaches the upload
    none                 –                             –
    silo                 –                             silo: z and z_m
    record_local         unit: (q, z) × S              unit: z_m; and silo: z_s and z_m, if z_s > 0
    record_distributed   –                             unit: (q, z) × 1; in step 0 also unit: z_m

z_m is the metrics block's, in a charge of its own. The delta of ``record_local`` is protected
before it is masked, so masking it again costs the unit nothing but another metrics block. In
``record_distributed`` only step 0 carries figures.

A charge names the unit that the noise was made for. What it costs the units inside that unit
(``Charge.rdp_inside``) differs by block, because the two bound a contribution differently:

    vector    any direction, norm at most C: two contributions lie up to 2C apart
    metrics   every coordinate in [0, bound], norm at most the grid: ‖m − m′‖² ≤ ‖m‖² + ‖m′‖², so
              two lie up to √2 grids apart, and the block counts at z_m/√2

Covered: one table for the ledger, the guardian, the forecast and the coordinator.
Not covered: which unit lies in which, and sums (``dp.accounting.compose``); amplification by
choosing silos, shuffling or hiding iterates: none is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, get_args

from dp.accounting.rdp import Divergences, epsilon, rdp_replaced, rdp_subsampled
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import SpecError

UnitKind = Literal["silo", "task", "user"]
"""Whose contribution a charge is about."""

UNIT_KINDS: Final[tuple[UnitKind, ...]] = get_args(UnitKind)
Block = Literal["vector", "metrics"]
"""Which part of a release a charge is for."""

BLOCKS: Final[tuple[Block, ...]] = get_args(Block)
MAX_STEPS: Final = 1 << 40
"""Most releases that one charge may stand for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """``steps`` releases with noise multiplier z, each on a Poisson sample of rate q."""

    unit: UnitKind
    """Whose budget it comes from."""
    q: float
    """Sampling rate; 1 for none."""
    z: float
    """Noise multiplier."""
    steps: int
    """Releases."""
    delta: float = 0.0
    """Probability of a failure that is added to δ as it is."""
    block: Block = "vector"
    """What is released; a charge for both at once counts as the vector, which costs more."""

    def __post_init__(self) -> None:
        """Refuse what cannot be charged."""
        if self.unit not in UNIT_KINDS:
            raise SpecError(f"unit must be one of {', '.join(UNIT_KINDS)}, got {self.unit!r}")
        if not (math.isfinite(self.delta) and 0.0 <= self.delta < 1.0):
            raise SpecError(f"a charge's delta must lie in [0, 1), got {self.delta!r}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int):
            raise SpecError(f"a charge has a number of steps, got {self.steps!r}")
        if not 1 <= self.steps <= MAX_STEPS:
            raise SpecError(f"a charge has between 1 and 2^40 steps, got {self.steps}")
        if not (0.0 < self.q <= 1.0 and math.isfinite(self.z) and self.z > 0.0):
            raise SpecError(f"a charge needs q in (0, 1] and z > 0, got {self.q!r}, {self.z!r}")
        if self.block not in BLOCKS:
            raise SpecError(f"block must be one of {', '.join(BLOCKS)}, got {self.block!r}")
        if self.block == "metrics" and self.q != 1.0:
            raise SpecError("a metrics block is released without sampling")

    @property
    def rdp(self) -> Divergences:
        """What it costs its unit: divergences at ``dp.accounting.rdp.ORDERS``, read-only."""
        return _divergences(self.q, self.z, self.steps)

    @property
    def rdp_inside(self) -> Divergences:
        """What it costs each unit inside its own: divergences at ``ORDERS``, read-only."""
        if self.block == "metrics":
            return _divergences(1.0, self.z / math.sqrt(2.0), self.steps)
        return _divergences_inside(self.q, self.z, self.steps)


# A ledger is replayed with the same charge thousands of times.
@lru_cache(maxsize=256)
def _divergences(q: float, z: float, steps: int) -> Divergences:
    found = rdp_subsampled(q, z, steps)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def _divergences_inside(q: float, z: float, steps: int) -> Divergences:
    found = rdp_replaced(q, z, steps)
    found.flags.writeable = False
    return found


def training_charges(spec: PrivacySpec) -> tuple[Charge, ...]:
    """What one local training costs before it starts."""
    if spec.mode is not Mode.RECORD_LOCAL or spec.record is None:
        return ()
    return (_steps(spec, spec.record, spec.record.steps_per_round),)


def attempt_charges(spec: PrivacySpec, *, step: int) -> tuple[Charge, ...]:
    """What one attempt at an aggregation costs when it reaches the upload; steps count from 0."""
    metrics = spec.metrics_noise_multiplier
    match spec.mode:
        case Mode.NONE:
            return ()
        case Mode.SILO:
            return _silo(spec.noise_multiplier, metrics)
        case Mode.RECORD_LOCAL:
            charges: tuple[Charge, ...] = (_metrics(spec.unit, metrics),)
            z_silo = spec.release.noise_multiplier
            return charges + _silo(z_silo, metrics) if z_silo > 0.0 else charges
        case Mode.RECORD_DISTRIBUTED:
            if spec.record is None:
                raise SpecError("mode 'record_distributed' needs its record settings")
            charges = (_steps(spec, spec.record, 1),)
            return (*charges, _metrics(spec.unit, metrics)) if step == 0 else charges


def run_charges(
    spec: PrivacySpec,
    *,
    releases: int,
    first_steps: int | None = None,
    trainings: int | None = None,
) -> tuple[Charge, ...]:
    """What a whole run costs at most.

    ``releases`` are the attempts that reach the upload, spare ones included, of which
    ``first_steps`` are of step 0; all when not given. Local trainings are as many as releases when
    not given, for each of them may have needed one of its own.
    """
    firsts = releases if first_steps is None else first_steps
    if not 0 <= firsts <= releases:
        raise SpecError(f"{firsts} of {releases} releases cannot be first steps")
    begun = releases if trainings is None else trainings
    if begun < 0:
        raise SpecError(f"there cannot be {begun} trainings")
    return (
        *_times(training_charges(spec), begun),
        *_times(attempt_charges(spec, step=0), firsts),
        *_times(attempt_charges(spec, step=1), releases - firsts),
    )


def _times(charges: tuple[Charge, ...], count: int) -> tuple[Charge, ...]:
    if count == 0:
        return ()
    return tuple(
        replace(
            charge,
            steps=charge.steps * count,
            delta=min(charge.delta * count, math.nextafter(1.0, 0.0)),
        )
        for charge in charges
    )


def epsilon_after(rdp: Divergences, delta: float, failure: float) -> float:
    """ε at δ of which ``failure`` is already used up by events without any guarantee."""
    left = delta - failure
    return epsilon(rdp, left) if left > 0.0 else math.inf


def _silo(z: float, z_metrics: float) -> tuple[Charge, ...]:
    return Charge(unit="silo", q=1.0, z=z, steps=1), _metrics("silo", z_metrics)


def _metrics(unit: UnitKind, z: float) -> Charge:
    return Charge(unit=unit, q=1.0, z=z, steps=1, block="metrics")


def _steps(spec: PrivacySpec, record: RecordSpec, steps: int) -> Charge:
    return Charge(
        unit=spec.unit,
        q=record.sampling_rate,
        z=spec.noise_multiplier,
        steps=steps,
        delta=min(record.overflow_delta * steps, math.nextafter(1.0, 0.0)),
    )
