"""Random histories of a ledger against privacy loss distributions that are composed beside it.

A history is a handful of runs in every mode, with task or user as the unit, with noise for the
silo on top or without, with failed attempts and repeated trainings. The ledger is the real one. The
other side knows nothing of the ledger's accounting: it says of each release, kind by kind, which
pair of distributions an observer has to tell apart, and ``dp_accounting`` composes those.

    the unit itself           its contribution or none at all        REPLACE_SPECIAL
    a unit inside it          two contributions, neither is none     REPLACE_ONE
    figures of a unit inside  two vectors of non-negative figures,   a Gaussian at distance √2
                              at right angles at worst
    silo noise on a delta     nothing new for the unit that the delta hides, and for those inside
    that hides its unit
    a larger unit, or none    no claim: the release has to be among those counted beside ε

Failure probabilities come off δ. Covered: what is charged to whom, and what is counted. Not
covered: whether a mechanism is what its charge says (the other audits).
"""

from __future__ import annotations

import dataclasses
import math
import random
from functools import cache
from pathlib import Path
from typing import Final

from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as pld

from dp.accounting.charge import attempt_charges
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Ledger, LedgerEntry
from lab.audit.bounds import AuditResult

DELTA: Final = 1e-5
_INTERVAL: Final = 5e-3
_OWN = privacy_accountant.NeighboringRelation.REPLACE_SPECIAL
_INSIDE = privacy_accountant.NeighboringRelation.REPLACE_ONE
_KINDS: Final = ("silo", "user", "task")
"""From the outside inwards."""
_SAMPLED: Final = ((0.05, 1.0), (0.1, 1.4), (0.02, 0.8), (1.0, 6.0))


def random_spec(draw: random.Random) -> PrivacySpec:
    """One plan's privacy part."""
    mode = draw.choice(list(Mode))
    bare = mode is Mode.NONE
    spec = PrivacySpec(
        mode=mode if mode in {Mode.NONE, Mode.SILO} else Mode.SILO,
        unit=draw.choice(["task", "user"]),
        clip_l2=1.0,
        noise_multiplier=0.0 if bare else draw.choice([2.0, 4.0, 10.0]),
        delta=DELTA,
        epsilon_cap=1e9,
        metrics_noise_multiplier=0.0 if bare else draw.choice([5.0, 12.0]),
    )
    if mode in {Mode.NONE, Mode.SILO}:
        return spec
    local = mode is Mode.RECORD_LOCAL
    q, z = draw.choice(_SAMPLED)
    record = RecordSpec(
        sampling_rate=q,
        # Few units overflow now and then, which takes a part of δ.
        expected_units=draw.choice([4, 64]),
        steps_per_round=draw.choice([2, 5]),
        delta_clip_l2=1.0 if local else None,
        silo_noise_multiplier=draw.choice([0.0, 3.0, 10.0]) if local else 0.0,
    )
    return dataclasses.replace(spec, mode=mode, noise_multiplier=z, record=record)


class Observer:
    """What one kind of unit has to fear, written down release by release."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.gaussians: dict[tuple[object, float], int] = {}
        self.sampled: dict[tuple[object, float, float], int] = {}
        self.failure = 0.0
        self.partial = 0

    def _inside(self, unit: str) -> bool | None:
        """Whether this kind lies inside a unit (True), is it (False), or is larger (None)."""
        here, there = _KINDS.index(self.kind), _KINDS.index(unit)
        return None if here < there else here > there

    def _vector(self, unit: str, z: float) -> None:
        key = (_INSIDE if self._inside(unit) else _OWN, z)
        self.gaussians[key] = self.gaussians.get(key, 0) + 1

    def _figures(self, unit: str, z: float) -> None:
        key = (_OWN, z / math.sqrt(2.0) if self._inside(unit) else z)
        self.gaussians[key] = self.gaussians.get(key, 0) + 1

    def steps(self, spec: PrivacySpec, count: int) -> None:
        """Steps of a training, or one aggregation of ``record_distributed``."""
        record = spec.record
        if record is None or self._inside(spec.unit) is None:
            return
        relation = _INSIDE if self._inside(spec.unit) else _OWN
        key = (relation, record.sampling_rate, spec.noise_multiplier)
        self.sampled[key] = self.sampled.get(key, 0) + count
        self.failure += record.overflow_delta * count

    def release(self, spec: PrivacySpec, *, step: int) -> None:
        """One attempt that reached the upload."""
        z_metrics = spec.metrics_noise_multiplier
        if spec.mode is Mode.NONE:
            return
        if spec.mode is Mode.SILO:
            self._vector("silo", spec.noise_multiplier)
            self._figures("silo", z_metrics)
            return
        hidden = self._inside(spec.unit) is not None
        if spec.mode is Mode.RECORD_DISTRIBUTED:
            self.steps(spec, 1)
            if hidden and step == 0:
                self._figures(spec.unit, z_metrics)
            self.partial += not hidden
            return
        z_silo = spec.release.noise_multiplier
        if hidden:
            self._figures(spec.unit, z_metrics)
        elif z_silo > 0.0:
            self._vector("silo", z_silo)
            self._figures("silo", z_metrics)
        else:
            self.partial += 1

    def epsilon(self) -> float:
        """ε of all of it, by privacy loss distributions."""
        parts = [_gaussian(*key, count) for key, count in sorted(self.gaussians.items(), key=str)]
        parts += [_steps(*key, count) for key, count in sorted(self.sampled.items(), key=str)]
        if not parts:
            return 0.0
        total = parts[0]
        for part in parts[1:]:
            total = total.compose(part)
        left = DELTA - self.failure
        return float(total.get_epsilon_for_delta(left)) if left > 0.0 else math.inf


@cache
def _gaussian(relation: object, z: float, count: int) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        standard_deviation=z / math.sqrt(count),
        value_discretization_interval=_INTERVAL,
        neighboring_relation=relation,
    )


@cache
def _steps(relation: object, q: float, z: float, count: int) -> pld.PrivacyLossDistribution:
    if q == 1.0:
        return _gaussian(relation, z, count)
    return pld.from_gaussian_mechanism(
        standard_deviation=z,
        value_discretization_interval=_INTERVAL,
        sampling_prob=q,
        neighboring_relation=relation,
    ).self_compose(count)


def play(path: Path, draw: random.Random) -> tuple[Ledger, dict[str, Observer], int]:
    """One random history: the open ledger, what each kind saw, and uploads without noise."""
    ledger = Ledger.open(path, delta=DELTA, caps=dict.fromkeys(_KINDS, 1e12))
    observers = {kind: Observer(kind) for kind in _KINDS}
    bare = 0
    for run in range(draw.randint(1, 5)):
        spec = random_spec(draw)
        for number in range(1, draw.randint(1, 3) + 1):
            for _ in range(draw.choice([1, 1, 2]) if spec.mode is Mode.RECORD_LOCAL else 0):
                ledger.reserve_training(
                    run=f"run-{run}", round=number, spec=spec, adapter_sha256=bytes(32)
                )
                for observer in observers.values():
                    observer.steps(spec, spec.record.steps_per_round)
            uploads = [
                (step, attempt)
                for step in range(spec.sums_per_round)
                for attempt in range(1, draw.choice([1, 1, 2]) + 1)
            ]
            # A training may be lost before its first upload.
            for step, attempt in uploads if draw.random() < 0.9 else ():
                ledger.reserve(
                    LedgerEntry(
                        run=f"run-{run}",
                        round=number,
                        attempt=attempt,
                        step=step,
                        part=0,
                        mode=spec.mode,
                        charges=attempt_charges(spec, step=step),
                        dimension=10,
                        descriptor_sha256=bytes(32),
                    )
                )
                bare += spec.mode is Mode.NONE
                for observer in observers.values():
                    observer.release(spec, step=step)
    return ledger, observers, bare


def audit_histories(directory: Path, *, histories: int, seed: int) -> tuple[AuditResult, ...]:
    """For each kind, the history in which the shown ε is least above the composed one.

    A count beside ε that is less than what ε leaves out makes the shown figure worth nothing.
    """
    draw = random.Random(seed)  # noqa: S311 - a history that can be drawn again, no secret
    closest: dict[str, tuple[float, float]] = dict.fromkeys(_KINDS, (math.inf, 0.0))
    for number in range(histories):
        path = directory / f"history-{number}.ledger"
        ledger, observers, bare = play(path, draw)
        with ledger:
            shown = ledger.epsilons()
        path.unlink()
        for kind, observer in observers.items():
            found, true = shown[kind], observer.epsilon()
            if found.partial_releases < observer.partial or found.unprotected_releases < bare:
                true = math.inf
            claimed, measured = closest[kind]
            # The largest share of the claim; where nothing is claimed, anything at all is too much.
            if true > 0.0 and true / max(found.epsilon, 1e-12) > measured / claimed:
                closest[kind] = (found.epsilon, true)
    return tuple(
        AuditResult(
            audit=f"histories, {kind}",
            quantity=f"epsilon at delta {DELTA:g}, closest",
            claimed=claimed,
            measured=measured,
            estimate=measured,
            releases=histories,
        )
        for kind, (claimed, measured) in closest.items()
    )
