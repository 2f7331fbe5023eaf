"""Sums through the real secure aggregation, every phase of it, in one process.

Every silo is a ``secagg.client`` and the coordinator a ``secagg.server``: keys, encrypted shares,
masked vectors, one signature on the survivors, shares for unmasking (R0 to R4). The cohort, the
roster and the descriptor are made for the experiment; the coordinator's states see masked vectors.

Invariants:
    1. Each sum has an identity of its own, newer than the one before.
    2. The vector that is added to the accumulator is the masked one; ``Unmasking.apply`` alone
       takes the masks off.
    3. Keys and masks come from the operating system: two runs never share one. They cancel exactly,
       so results do not depend on them.

Covered: nobody drops out. Not covered: protobuf, transport, disk, ledger
(``tests/adversary/simulation``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.noise.grid import Grid
from lab.experiment.sums import RingMean, RingVector
from lab.experiment.tables import NoiseTable
from secagg import client, server, suite
from secagg.descriptor import (
    BASE_VERSION,
    NOISE_DISCRETE_GAUSSIAN,
    NOISE_NONE,
    RING_BITS,
    AggregationId,
    Descriptor,
    MetricsLayout,
    SignedDescriptor,
    sign_descriptor,
)
from secagg.parameters import threshold
from secagg.roster import Roster, RosterEntry, SignedRoster, sign_roster

__all__ = ["MaskedSum"]

_RUN_ID = "lab"
_COLLUDING = 1


class MaskedSum(RingMean):
    """See the module."""

    def __init__(self, noise: NoiseTable, *, silos: int, key: Sequence[str | int]) -> None:
        super().__init__(noise, silos=silos, key=key)
        self._cohort = _found(silos)

    def _total(
        self, shares: list[RingVector], *, grid: Grid, sigma: float, what: str
    ) -> RingVector:
        """Run R0 to R4 over the silos' vectors."""
        identity = _identity(self._sums)
        newest = _identity(self._sums - 1) if self._sums > 1 else None
        descriptor = self._cohort.descriptor(identity, grid=grid, sigma=sigma, what=what)
        return _aggregate(self._cohort, descriptor, shares, newest=newest)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cohort:
    """Who takes part."""

    roster: SignedRoster
    coordinator_key: Ed25519PrivateKey
    signing_keys: Mapping[str, Ed25519PrivateKey]

    def descriptor(
        self, identity: AggregationId, *, grid: Grid, sigma: float, what: str
    ) -> SignedDescriptor:
        roster = self.roster.roster
        n = len(roster.entries)
        digest = hashlib.sha256(f"chorale/lab/{what}".encode()).digest()
        descriptor = Descriptor(
            version=BASE_VERSION,
            suite=suite.SUITE,
            identity=identity,
            roster_sha256=roster.sha256,
            roster_epoch=roster.epoch,
            cohort=roster.silo_ids,
            colluding=_COLLUDING,
            threshold=threshold(n, _COLLUDING),
            n_min=n,
            plan_sha256=digest,
            base_model_sha256=digest,
            adapter_sha256=digest,
            layout_sha256=digest,
            dimension=grid.dimension,
            unit_clip=grid.clip_l2,
            vector_clip=grid.clip_l2,
            max_units=1,
            scale=grid.scale,
            metrics=MetricsLayout(names=(), bounds=(), grid=0, sigma=0.0),
            ring_bits=RING_BITS,
            noise_mechanism=NOISE_DISCRETE_GAUSSIAN if sigma else NOISE_NONE,
            noise_sigma=sigma,
            privacy_spec_sha256=digest,
            deadlines_unix_s=(1, 2, 3, 4, 5),
        )
        return sign_descriptor(descriptor, self.coordinator_key)


def _identity(number: int) -> AggregationId:
    """Of the sum of this number, counted from 1."""
    return AggregationId(run_id=_RUN_ID, round=number, step=0, part=0, attempt=0)


def _found(silos: int) -> _Cohort:
    """Make keys and a roster for so many silos."""
    root, coordinator = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    keys = {f"silo-{number:03d}": Ed25519PrivateKey.generate() for number in range(silos)}
    roster = Roster(
        federation="lab",
        epoch=1,
        colluding=_COLLUDING,
        coordinator_key=suite.verification_key(coordinator),
        entries=tuple(
            RosterEntry(
                silo_id=name,
                spiffe_uri=f"spiffe://lab.invalid/silo/{name}",
                verification_key=suite.verification_key(key),
            )
            for name, key in keys.items()
        ),
    )
    return _Cohort(roster=sign_roster(roster, root), coordinator_key=coordinator, signing_keys=keys)


def _aggregate(
    cohort: _Cohort,
    signed: SignedDescriptor,
    shares: list[RingVector],
    *,
    newest: AggregationId | None,
) -> RingVector:
    """One aggregation, step by step; the sum without masks."""
    descriptor = signed.descriptor
    names = descriptor.cohort
    # The states of the two machines follow one another; each call returns the next one.
    collecting: Any = server.open(signed, cohort.roster)
    silos: dict[str, Any] = {}
    for name in names:
        setup = client.ClientSetup(
            silo_id=name,
            signing_key=cohort.signing_keys[name],
            roster=cohort.roster,
            descriptor=signed,
            ledger_head=client.LedgerHead(seq=0, sha256=bytes(32)),
            newest_identity=newest,
            base_model_sha256=descriptor.base_model_sha256,
            adapter_sha256=descriptor.adapter_sha256,
            families=(),
            entropy=os.urandom,
            suites=frozenset({1}),
        )
        silos[name], bundle = client.begin(setup)
        collecting.receive(bundle)
    collecting, bundles = collecting.close()
    for name in names:
        silos[name], boxes = silos[name].handle(bundles)
        collecting.receive(boxes)
    collecting, deliveries = collecting.close()
    total = np.zeros(descriptor.words, dtype="<u4")
    for name, share in zip(names, shares, strict=True):
        silos[name], _ = silos[name].handle(deliveries[name])
        silos[name], header = silos[name].mask(share)
        collecting.expect(header)
        collecting.completed(name, hashlib.sha256(share.tobytes()).digest())
        np.add(total, share, out=total)
    collecting, survivors = collecting.close()
    for name in names:
        silos[name], signature = silos[name].handle(survivors)
        collecting.receive(signature)
    collecting, signatures = collecting.close()
    for name in names:
        silos[name], unmasking = silos[name].handle(signatures)
        collecting.receive(unmasking)
    collecting.finish().apply(total)
    return total
