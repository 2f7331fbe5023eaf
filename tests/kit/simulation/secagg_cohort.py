"""A whole aggregation in one process, step by step, with silos that drop wherever a test says.

Silo k uploads 2^k in every coordinate of its delta, with the sign alternating by coordinate, so
that a sum tells exactly which silos are in it. Every message goes through its protobuf bytes. Suite
v1 is used unless a test says ``suite=2``.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chorale.v1 import secagg_pb2 as pb
from secagg import client, hybrid, server, wire
from secagg.decode import split_sum
from secagg.descriptor import AggregationId, Descriptor, MetricsLayout
from secagg.digest_tree import TreeHasher
from secagg.messages import (
    DebitHead,
    KeyBundles,
    LeafDelivery,
    MaskedInputHeader,
    ShareLeaves,
    Survivors,
)
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    make_descriptor,
    make_roster,
    signed_descriptor,
    signed_roster,
    signing_key,
)

STEPS = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")
FAMILIES = ("craft", "maze")
# The record at which every silo's ledger stands in R0.
LEDGER_SEQ = 7
NO_DROPS: Mapping[str, Collection[str]] = {}


def deterministic_entropy(seed: str) -> Callable[[int], bytes]:
    """An entropy source that repeats itself from run to run, for tests alone."""
    counter = 0

    def draw(size: int) -> bytes:
        nonlocal counter
        counter += 1
        return hashlib.shake_256(f"{seed}/{counter}".encode()).digest(size)

    return draw


def carried(message: Any, name: str, proto: Any) -> Any:
    """Send a message through its protobuf bytes."""
    sent = getattr(wire, f"{name}_to_proto")(message).SerializeToString()
    return getattr(wire, f"{name}_from_proto")(proto.FromString(sent))


def carried_r1(message: Any) -> Any:
    """Send a silo's R1 through its protobuf bytes, whichever suite it is of."""
    if isinstance(message, ShareLeaves):
        return carried(message, "share_leaves", pb.ShareLeaves)
    return carried(message, "share_boxes", pb.ShareBoxes)


def carried_delivery(message: Any) -> Any:
    """Send what a silo is told after R1 through its protobuf bytes."""
    if isinstance(message, LeafDelivery):
        return carried(message, "leaf_delivery", pb.LeafDelivery)
    return carried(message, "box_delivery", pb.BoxDelivery)


def uploaded_digest(descriptor: Descriptor, content: bytes | np.ndarray) -> bytes:
    """What the coordinator makes of the bytes that arrived."""
    content = bytes(content)
    if not descriptor.is_hybrid:
        return hashlib.sha256(content).digest()
    hasher = TreeHasher(len(content), descriptor.digest_id)
    hasher.update(content)
    return hasher.root()


@dataclass
class Outcome:
    survivors: tuple[str, ...]
    delta: np.ndarray
    metrics: np.ndarray
    unmasking: server.Unmasking


class Cohort:
    """The clients and the coordinator of one aggregation."""

    def __init__(
        self,
        n,
        c=1,
        *,
        dimension=17,
        seed="seed",
        identity=None,
        figures=("episodes/craft",),
        families=None,
        suite=1,
        setups=None,
        plan_families=None,
        **changes,
    ):
        self.roster = signed_roster(make_roster(n, c))
        # What each silo declares where it is not FAMILIES.
        self.families: Mapping[str, tuple[str, ...]] = families or {}
        # Silos that have nothing to add, and so upload zeros.
        self.silent: Collection[str] = ()
        # What a silo brings that is not what an honest one would, by field of its setup.
        self.setups: Mapping[str, Mapping[str, Any]] = setups or {}
        layout = MetricsLayout(names=figures, bounds=(64.0,) * len(figures), grid=4096, sigma=0.0)
        later = HYBRID_FIELDS if suite == hybrid.SUITE else {}
        if plan_families is not None:
            later = {**later, "families": plan_families}
        descriptor = make_descriptor(
            self.roster.roster,
            dimension=dimension,
            metrics=layout,
            noise_mechanism="none",
            noise_sigma=0.0,
            scale=2.0**20,
            **{**later, **changes},
        )
        if identity is not None:
            descriptor = replace(descriptor, identity=AggregationId(**identity))
        self.descriptor = carried(signed_descriptor(descriptor), "descriptor", pb.Descriptor)
        self.seed = seed
        self.names = descriptor.cohort
        self.states: dict[str, Any] = {}
        self.server: Any = server.open(self.descriptor, self.roster)
        self.sent: dict[str, Any] = {}
        self.vectors: dict[str, np.ndarray] = {}
        self.accumulator = np.zeros(descriptor.words, dtype="<u4")
        # What the coordinator saw and fixed.
        self.ctx = b""
        self.announced: Any = None
        self.dealt: dict[str, Any] = {}
        self.members: Any = None
        self.alive: tuple[str, ...] = ()

    def setup(self, name: str) -> client.ClientSetup:
        descriptor = self.descriptor.descriptor
        honest = client.ClientSetup(
            silo_id=name,
            signing_key=signing_key(name),
            roster=self.roster,
            descriptor=self.descriptor,
            ledger_head=client.LedgerHead(seq=LEDGER_SEQ, sha256=bytes(32)),
            newest_identity=None,
            base_model_sha256=descriptor.base_model_sha256,
            adapter_sha256=descriptor.adapter_sha256,
            families=self.families.get(name, FAMILIES),
            entropy=deterministic_entropy(f"{self.seed}/{name}"),
            suites=frozenset({1, 2}),
            debit_head=DebitHead(seq=3, sha256=bytes([8]) * 32),
            task_sha256=descriptor.task_sha256,
            families_of_plan=descriptor.families,
        )
        return replace(honest, **self.setups.get(name, {}))

    def debit(self, name: str) -> DebitHead | None:
        """The charge of this attempt, which follows the ledger's head of R0."""
        return DebitHead(seq=LEDGER_SEQ + 1, sha256=bytes([9]) * 32) if self.hybrid else None

    @property
    def hybrid(self) -> bool:
        return self.descriptor.descriptor.is_hybrid

    def plain(self, name: str) -> np.ndarray:
        """The silo's vector as integers: its power of two, then one metric."""
        words = self.descriptor.descriptor.words
        size = 0 if name in self.silent else 2 ** self.names.index(name)
        vector = np.full(words, size, dtype=np.int64)
        vector[1:-1:2] *= -1
        return vector

    def bundles_of_all(self) -> KeyBundles:
        """The bundles as a coordinator hands them out that makes no check of its own."""
        bundles = []
        for name in self.names:
            self.states[name], bundle = client.begin(self.setup(name))
            bundles.append(bundle)
        return KeyBundles(bundles=tuple(bundles))

    def advertise(self, dropped=()):
        for name in self.names:
            self.states[name], bundle = client.begin(self.setup(name))
            if name not in dropped:
                self.server.receive(carried(bundle, "key_bundle", pb.KeyBundle))
        return self.announce()

    def announce(self) -> KeyBundles:
        """Have the coordinator fix U1."""
        self.server, bundles = self.server.close()
        self.ctx = self.server.ctx
        self.announced = carried(bundles, "key_bundles", pb.KeyBundles)
        return self.announced

    def share(self, bundles, dropped=()):
        for name in sorted(self.server.pending):
            self.states[name], boxes = self.states[name].handle(bundles)
            self.dealt[name] = carried_r1(boxes)
            if name not in dropped:
                self.server.receive(self.dealt[name])
        return self.deliver()

    def deliver(self) -> dict[str, Any]:
        """Have the coordinator fix U2, and give each silo of it what was dealt to it."""
        self.server, deliveries = self.server.close()
        self.members = self.server.members
        return {name: carried_delivery(delivery) for name, delivery in deliveries.items()}

    def upload(self, deliveries, dropped=()):
        for name in sorted(self.server.pending):
            self.states[name], _ = self.states[name].handle(deliveries[name])
            header = self.masked(name)
            if name not in dropped:
                self.take(header)
        return self.declare()

    def masked(self, name: str) -> MaskedInputHeader:
        """Have a silo that has opened its boxes mask its vector."""
        vector = (self.plain(name) % 2**32).astype("<u4")
        self.states[name], header = self.states[name].mask(vector, self.debit(name))
        self.vectors[name] = vector
        return header

    def take(self, header: MaskedInputHeader) -> None:
        """Have the coordinator take a header and the bytes that its silo masked."""
        name = header.silo_id
        self.server.expect(carried(header, "masked_input_header", pb.MaskedInputHeader))
        digest = uploaded_digest(self.descriptor.descriptor, self.vectors[name].tobytes())
        self.server.completed(name, digest)

    def declare(self) -> Survivors:
        """Have the coordinator declare the survivors and add up what they uploaded."""
        self.server, survivors = self.server.close()
        self.alive = tuple(header.silo_id for header in survivors.headers)
        for header in survivors.headers:
            self.accumulator += self.vectors[header.silo_id]
        return carried(survivors, "survivors", pb.Survivors)

    def agree(self, survivors, dropped=()):
        for name in sorted(self.server.pending):
            if name in dropped:
                continue
            self.states[name], signature = self.states[name].handle(survivors)
            self.server.receive(
                carried(signature, "consistency_signature", pb.ConsistencySignature)
            )
        self.server, signatures = self.server.close()
        return carried(signatures, "consistency_signatures", pb.ConsistencySignatures)

    def unmask(self, signatures, dropped=()):
        for name in sorted(self.server.pending):
            # A silo that dropped before it signed survivors has nothing to release.
            if name in dropped or not isinstance(self.states[name], client.Unmask):
                continue
            self.states[name], shares = self.states[name].handle(signatures)
            self.sent[name] = carried(shares, "unmasking_shares", pb.UnmaskingShares)
            self.server.receive(self.sent[name])
        return self.server.finish()

    def until(self, step: str, drops=NO_DROPS):
        """Run up to the message that opens a step for the silos, and return that message."""
        message = self.advertise(drops.get("advertise_keys", ()))
        for name, act in (
            ("share_keys", self.share),
            ("masked_input", self.upload),
            ("consistency_check", self.agree),
        ):
            if step == name:
                return message
            message = act(message, drops.get(name, ()))
        return message

    def run(self, drops=NO_DROPS) -> Outcome:
        unmasking = self.unmask(self.until("unmask", drops), drops.get("unmask", ()))
        unmasking.apply(self.accumulator)
        decoded = split_sum(self.accumulator, self.descriptor.descriptor)
        return Outcome(
            survivors=unmasking.survivors,
            delta=decoded.delta.astype(np.int64),
            metrics=decoded.metrics.astype(np.int64),
            unmasking=unmasking,
        )

    def expected(self, survivors) -> np.ndarray:
        return sum(self.plain(name) for name in survivors)
