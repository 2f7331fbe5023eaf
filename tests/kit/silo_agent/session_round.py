"""One attempt around one real session: its peers and the coordinator are real states too."""

import hashlib
import math
import os
from contextlib import suppress

import numpy as np

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Identity, Ledger
from secagg import client, hybrid, server
from secagg.decode import split_sum
from secagg.descriptor import NOISE_NONE, AggregationId, MetricsLayout
from secagg.digest_tree import SHA256, root_of
from secagg.messages import (
    NO_DEBIT,
    BoxDelivery,
    ConsistencySignatures,
    DebitHead,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from silo_agent.attempt.session import Session
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.errors import TransportError
from silo_agent.metrics import SiloMetrics
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    make_descriptor,
    make_roster,
    signed_descriptor,
    signed_roster,
    signing_key,
    silo_names,
)
from tests.kit.silo_agent.silo_contribution import contribution

NAMES = silo_names(4)
ME = NAMES[0]
DIMENSION, CLIP, GRID = 40, 4.0, 2**20
CAPS = {"silo": 1e9, "task": 1e9}
FAMILIES = ("craft",)
FIGURE = "episodes/craft"
METRICS = MetricsLayout(names=(FIGURE,), bounds=(64.0,), grid=4096, sigma=0.0)
NOISY_METRICS = MetricsLayout(names=(FIGURE,), bounds=(64.0,), grid=2**16, sigma=2000.0)
ANSWERS = {
    KeyBundles: "share_keys",
    BoxDelivery: "upload",
    LeafDelivery: "upload",
    Survivors: "check_consistency",
    ConsistencySignatures: "unmask",
}


RECORDS = {
    Mode.RECORD_LOCAL: RecordSpec(
        sampling_rate=0.5, expected_units=4, steps_per_round=3, delta_clip_l2=CLIP
    ),
    Mode.RECORD_DISTRIBUTED: RecordSpec(sampling_rate=0.5, expected_units=4, steps_per_round=3),
}


def spec_of(mode):
    z = 0.0 if mode is Mode.NONE else 1.0
    return PrivacySpec(
        mode=mode,
        record=RECORDS.get(mode),
        unit="task",
        clip_l2=CLIP,
        noise_multiplier=z,
        metrics_noise_multiplier=z,
        delta=1e-5,
        epsilon_cap=1e9,
        grid=GRID,
    )


class Wire:
    """The transport of one session: notes what is sent, and fails where a test says."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.sent = []
        self.fails_at = ""
        # Whether it fails because the coordinator will not have the message.
        self.refuses = False
        self.ledger_at = {}
        self.uploaded = None

    def _send(self, name, message):
        self.ledger_at[name] = self.ledger.head()[0]
        if self.fails_at == name:
            raise TransportError(f"{name} failed", refused=self.refuses)
        self.sent.append((name, message))

    def advertise_keys(self, identity, bundle):
        self._send("advertise_keys", bundle)

    def share_keys(self, identity, dealt):
        self._send("share_keys", dealt)

    def upload(self, identity, header, spool):
        self._send("upload", header)
        self.uploaded = np.frombuffer(b"".join(spool.chunks()), dtype="<u4")
        digest = hashlib.sha256(self.uploaded.tobytes()).digest()
        if spool.leaves:
            digest = root_of(spool.leaves, header.length_bytes, SHA256)
        assert digest == header.masked_sha256

    def check_consistency(self, identity, message):
        self._send("check_consistency", message)

    def unmask(self, identity, shares):
        self._send("unmask", shares)


class Round:
    """The session under test, three peers and the coordinator's states."""

    def __init__(
        self,
        directory,
        *,
        mode=Mode.NONE,
        delta=None,
        identity=None,
        ledger=None,
        dimension=DIMENSION,
        suite=hybrid.SUITE,
    ):
        self.directory = directory
        self.roster = signed_roster(make_roster(4))
        self.spec = spec_of(mode)
        noise = {"noise_sigma": GRID / math.sqrt(2)}
        if not self.spec.release.noise_multiplier:
            noise = {"noise_sigma": 0.0, "noise_mechanism": NOISE_NONE}
        descriptor = make_descriptor(
            self.roster.roster,
            identity=identity or AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=1),
            dimension=dimension,
            unit_clip=CLIP,
            vector_clip=self.spec.release.vector_clip_l2,
            max_units=self.spec.release.max_units,
            scale=GRID / CLIP,
            metrics=METRICS if mode is Mode.NONE else NOISY_METRICS,
            **noise,
            **(HYBRID_FIELDS if suite == hybrid.SUITE else {}),
        )
        self.signed = signed_descriptor(descriptor)
        self.descriptor = descriptor
        self.ledger = ledger or Ledger.open(directory / "ledger", delta=1e-5, caps=CAPS)
        self.store = LocalStore(directory)
        self.known = self.store.peer_heads()
        # Who lets the cohorts of sums without noise vary.
        self.may_vary = set()
        self.audit = AuditLog(directory)
        self.wire = Wire(self.ledger)
        self.metrics = SiloMetrics()
        self.delta = np.full(dimension, 0.25, np.float32) if delta is None else delta
        self.server = server.open(self.signed, self.roster)
        self.peers = {}
        # Called with every message before the silo answers it.
        self.heard = lambda _message: None
        # Every answer is lost on its way once.
        self.loses_answers = False
        self.sum = np.zeros(descriptor.words, dtype="<u4")

    def tell(self, message):
        """Show the silo a message; if its answer is lost, show it again."""
        self.heard(message)
        if self.loses_answers:
            self.wire.fails_at = ANSWERS[type(message)]
            with suppress(TransportError):
                self.session.handle(message)
            self.wire.fails_at = ""
        self.session.handle(message)

    def peer_head(self, name):
        """Where a peer's ledger stands: where this silo saw it before the round."""
        known = self.known.get(name)
        return client.LedgerHead(
            seq=0 if known is None else known.seq,
            sha256=bytes(32) if known is None else known.sha256,
        )

    def peer_debit(self, name):
        """What a peer's upload was charged by."""
        if not self.descriptor.is_hybrid:
            return None
        return DebitHead(seq=self.peer_head(name).seq + 1, sha256=bytes(32))

    def open(self, silo_id=ME, **options):
        return Session(
            silo_id=silo_id,
            signing_key=signing_key(silo_id),
            roster=self.roster,
            descriptor=self.signed,
            base_model_sha256=self.descriptor.base_model_sha256,
            adapter_sha256=self.descriptor.adapter_sha256,
            families=FAMILIES,
            spec=self.spec,
            contribution=contribution(self.delta, {FIGURE: 32.0}),
            ledger=self.ledger,
            peers=PeerHeads(self.store),
            spool_directory=self.directory / "spool",
            coordinator=self.wire,
            metrics=self.metrics,
            audit=self.audit,
            **{
                "suites": frozenset({1, 2}),
                "plan_families": self.descriptor.families,
                "task_sha256": self.descriptor.task_sha256,
                "cohort_may_vary": silo_id in self.may_vary,
                **options,
            },
        )

    def setup(self, name):
        return client.ClientSetup(
            silo_id=name,
            signing_key=signing_key(name),
            roster=self.roster,
            descriptor=self.signed,
            ledger_head=self.peer_head(name),
            debit_head=self.known[name].debit if name in self.known else NO_DEBIT,
            newest_identity=None,
            base_model_sha256=self.descriptor.base_model_sha256,
            adapter_sha256=self.descriptor.adapter_sha256,
            families=FAMILIES,
            entropy=os.urandom,
            suites=frozenset({1, 2}),
            cohort_may_vary=name in self.may_vary,
            task_sha256=self.descriptor.task_sha256,
            families_of_plan=self.descriptor.families,
        )

    def bundles(self):
        self.session = self.open()
        self.server.receive(self.wire.sent[-1][1])
        for name in NAMES[1:]:
            self.peers[name], bundle = client.begin(self.setup(name))
            self.server.receive(bundle)
        self.server, message = self.server.close()
        return message

    def delivery(self):
        message = self.bundles()
        self.tell(message)
        self.server.receive(self.wire.sent[-1][1])
        for name in NAMES[1:]:
            self.peers[name], boxes = self.peers[name].handle(message)
            self.server.receive(boxes)
        self.server, deliveries = self.server.close()
        self.deliveries = deliveries
        return deliveries[ME]

    def survivors(self):
        message = self.delivery()
        self.tell(message)
        header = self.wire.sent[-1][1]
        self.server.expect(header)
        self.server.completed(ME, header.masked_sha256)
        self.sum += self.wire.uploaded
        for name in NAMES[1:]:
            self.peers[name], _ = self.peers[name].handle(self.deliveries[name])
            vector = np.zeros(self.descriptor.words, dtype="<u4")
            self.peers[name], header = self.peers[name].mask(vector, self.peer_debit(name))
            self.server.expect(header)
            self.server.completed(name, header.masked_sha256)
            self.sum += vector
        self.server, message = self.server.close()
        return message

    def signatures(self):
        message = self.survivors()
        self.tell(message)
        self.server.receive(self.wire.sent[-1][1])
        for name in NAMES[1:]:
            self.peers[name], signature = self.peers[name].handle(message)
            self.server.receive(signature)
        self.server, message = self.server.close()
        return message

    def finish(self):
        message = self.signatures()
        self.tell(message)
        self.server.receive(self.wire.sent[-1][1])
        for name in NAMES[1:]:
            self.peers[name], shares = self.peers[name].handle(message)
            self.server.receive(shares)
        self.server.finish().apply(self.sum)
        return split_sum(self.sum, self.descriptor)

    def identity(self):
        fields = self.descriptor.identity
        return Identity(fields.run_id, fields.round, fields.step, fields.part, fields.attempt)

    def spools(self):
        return sorted((self.directory / "spool").glob("*")) if self.session else []

    def nonfinite(self):
        return self.value("chorale_silo_nonfinite_deltas_total")

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels)
