"""A small federation with fixed keys, shared by the unit tests of secure aggregation."""

import hashlib
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import suite
from secagg.descriptor import (
    NOISE_DISCRETE_GAUSSIAN,
    AggregationId,
    Descriptor,
    MetricsLayout,
    SignedDescriptor,
    sign_descriptor,
)
from secagg.parameters import threshold
from secagg.roster import Roster, RosterEntry, SignedRoster, sign_roster


def signing_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


# What a descriptor of version 2 says beside the fields of version 1.
FAMILIES_OF_PLAN = ("craft", "maze")
HYBRID_FIELDS: dict[str, Any] = {
    "version": 2,
    "suite": 2,
    "families": FAMILIES_OF_PLAN,
    "task_sha256": bytes([6]) * 32,
    "digest_id": 1,
}
ROOT_KEY = signing_key("root")
COORDINATOR_KEY = signing_key("coordinator")


def silo_names(n: int) -> tuple[str, ...]:
    return tuple(f"silo-{number:03d}" for number in range(n))


def make_roster(n: int = 5, colluding: int = 1, epoch: int = 3) -> Roster:
    return Roster(
        federation="example",
        epoch=epoch,
        colluding=colluding,
        coordinator_key=suite.verification_key(COORDINATOR_KEY),
        entries=tuple(
            RosterEntry(
                silo_id=name,
                spiffe_uri=f"spiffe://example.org/silo/{name}",
                verification_key=suite.verification_key(signing_key(name)),
            )
            for name in silo_names(n)
        ),
    )


def signed_roster(roster: Roster) -> SignedRoster:
    return sign_roster(roster, ROOT_KEY)


def make_descriptor(roster: Roster, **changes: Any) -> Descriptor:
    n = len(roster.entries)
    descriptor = Descriptor(
        version=1,
        suite=1,
        identity=AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=0),
        roster_sha256=roster.sha256,
        roster_epoch=roster.epoch,
        cohort=roster.silo_ids,
        colluding=roster.colluding,
        threshold=threshold(n, roster.colluding),
        n_min=3,
        plan_sha256=bytes([1]) * 32,
        base_model_sha256=bytes([2]) * 32,
        adapter_sha256=bytes([3]) * 32,
        layout_sha256=bytes([4]) * 32,
        dimension=1000,
        unit_clip=1.0,
        vector_clip=1.0,
        max_units=1,
        scale=2.0**20,
        metrics=MetricsLayout(
            names=("episodes", "successes"), bounds=(64.0, 64.0), grid=4096, sigma=16.0
        ),
        ring_bits=32,
        noise_mechanism=NOISE_DISCRETE_GAUSSIAN,
        noise_sigma=1000.0,
        privacy_spec_sha256=bytes([5]) * 32,
        deadlines_unix_s=(1000, 1100, 1200, 1300, 1400),
    )
    return replace(descriptor, **changes)


def signed_descriptor(descriptor: Descriptor) -> SignedDescriptor:
    return sign_descriptor(descriptor, COORDINATOR_KEY)
