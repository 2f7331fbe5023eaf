"""The coordinator's side of the exchange of audit heads: what it keeps, refuses and answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import membership_pb2 as pb
from federation.audit.head import COORDINATOR, sign_head, silo_writer
from federation.audit.lines import ChainHead
from federation.errors import AuditChainError, AuditHeadConflictError, AuditHeadError
from federation.wire import audit_head_from_proto, audit_head_to_proto
from ops.audit_log import verify_log
from secagg.suite import verification_key
from server.audit import AuditEvent, AuditLog
from server.members.audit_heads import AuditHeadExchange
from server.metrics import CoordinatorMetrics
from server.store import Store
from server.store.federation import FederationRow
from tests.kit.server.store_samples import silo_row

SILO = "hospital-a"
COORDINATOR_KEY, SILO_KEY, NEW_KEY = (
    Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3)
)
NOW = 1_800_000_000


class Desk:
    """One coordinator's exchange with what it stands on."""

    def __init__(self, directory):
        self.url = f"sqlite:///{directory / 'coordinator.db'}"
        self.path = directory / "audit.jsonl"
        self.store = Store(self.url, create=True)
        self.store.federation.create(FederationRow(name="oncology"))
        self.enrol(SILO_KEY)
        self.open()

    def open(self):
        self.audit = AuditLog(self.path)
        self.metrics = CoordinatorMetrics()
        self.exchange = AuditHeadExchange(
            store=self.store,
            audit=self.audit,
            metrics=self.metrics,
            signing_key=COORDINATOR_KEY,
            clock=lambda: NOW,
        )

    def enrol(self, key, silo_id=SILO):
        self.store.silos.enrol(
            silo_row(
                silo_id,
                verification_key=verification_key(key),
                certificate_expiry_unix_s=NOW,
                enrolled_unix_s=0,
            )
        )

    def leave(self, index, sha256="ab" * 32, *, key=SILO_KEY, silo_id=SILO, **named):
        head = sign_head(
            ChainHead(index=index, sha256=sha256),
            federation=named.get("federation", "oncology"),
            writer=named.get("writer", silo_writer(silo_id)),
            at_unix_s=NOW,
            key=key,
        )
        answer = self.exchange.exchange(silo_id, audit_head_to_proto(head))
        return audit_head_from_proto(answer, federation="oncology", writer=COORDINATOR)

    def kept(self):
        row = self.store.audit_heads.get(SILO)
        return None if row is None else (row.index, row.sha256.hex())

    def conflicts(self):
        counted = self.metrics.registry.get_sample_value("chorale_audit_head_conflicts_total")
        lines = [json.loads(line) for line in self.audit.tail(100)]
        return counted, [line for line in lines if line["event"] == "audit_head_conflict"]


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    made.audit.append(AuditEvent.GENESIS)
    yield made
    made.store.close()


def test_each_side_leaves_its_head_with_the_other(desk):
    answer = desk.leave(4)
    answer.verify(verification_key(COORDINATOR_KEY))
    assert (
        answer.chain_head() == desk.audit.head() == ChainHead(index=0, sha256=answer.sha256.hex())
    )
    assert desk.kept() == (4, "ab" * 32)
    desk.audit.append(AuditEvent.RUN_STARTED, run="run-1")
    assert desk.leave(4).index == 1
    desk.leave(9, "cd" * 32)
    assert desk.kept() == (9, "cd" * 32)
    # An exchange is no event, or heads would always be behind the log.
    assert desk.audit.head().index == 1
    assert desk.conflicts() == (0.0, [])


def test_what_another_process_wrote_is_in_the_head(desk):
    AuditLog(desk.path).append(AuditEvent.ADMIN_CERTIFICATE_ISSUED, admin="x")
    assert desk.leave(0).index == 1


@pytest.mark.parametrize(("index", "sha256"), [(3, "ab" * 32), (4, "cd" * 32)])
def test_a_log_that_went_back_or_forked_is_refused_counted_and_audited(desk, index, sha256):
    desk.leave(4)
    for _ in range(3):
        with pytest.raises(AuditHeadConflictError):
            desk.leave(index, sha256)
    counted, (record,) = desk.conflicts()
    assert counted == 3.0
    assert record["details"]["silo"] == SILO
    # Both signed statements are there, so anybody can check the conflict.
    assert record["details"]["newest"][0] == "index 4"
    assert record["details"]["received"][:2] == [f"index {index}", f"sha256 {sha256}"]
    assert len({*record["details"]["newest"], *record["details"]["received"]}) >= 6
    # Nothing was forgotten, and an honest head is taken again; a new conflict is a new record.
    assert desk.kept() == (4, "ab" * 32)
    desk.leave(5, "ef" * 32)
    with pytest.raises(AuditHeadConflictError):
        desk.leave(4)
    assert len(desk.conflicts()[1]) == 2


def test_a_restart_remembers(desk):
    desk.leave(4)
    desk.store.close()
    desk.store = Store(desk.url)
    desk.open()
    with pytest.raises(AuditHeadConflictError):
        desk.leave(3)


@pytest.mark.parametrize(
    "named",
    [
        {"key": NEW_KEY},
        {"key": COORDINATOR_KEY},
        {"federation": "cardiology"},
        {"writer": COORDINATOR},
        {"writer": silo_writer("hospital-b")},
    ],
)
def test_only_the_silos_own_signature_counts(desk, named):
    with pytest.raises(AuditHeadError, match="not signed by"):
        desk.leave(4, **named)
    assert desk.kept() is None


def test_a_stranger_and_an_absent_head_are_refused(desk):
    with pytest.raises(AuditHeadError, match="not enrolled"):
        desk.leave(4, silo_id="hospital-z")
    with pytest.raises(AuditHeadError):
        desk.exchange.exchange(SILO, pb.ExchangeAuditHeadsRequest().silo)
    with pytest.raises(AuditHeadError):
        desk.exchange.exchange(
            SILO, pb.AuditHead(index=2**64 - 1, sha256=bytes(32), signature=bytes(64))
        )


def test_a_silo_with_a_new_key_begins_a_new_log(desk):
    desk.leave(40)
    desk.enrol(NEW_KEY)
    desk.leave(1, key=NEW_KEY)
    assert desk.kept() == (1, "ab" * 32)


def test_one_silos_head_is_not_anothers(desk):
    desk.enrol(NEW_KEY, "hospital-b")
    desk.leave(9)
    desk.leave(2, key=NEW_KEY, silo_id="hospital-b")
    assert [(row.silo_id, row.index) for row in desk.store.audit_heads.list()] == [
        ("hospital-a", 9),
        ("hospital-b", 2),
    ]


def test_a_log_cut_at_its_end_is_found_with_the_head_a_silo_kept(desk):
    for number in range(3):
        desk.audit.append(AuditEvent.ROUND_FINISHED, round=number)
    kept = desk.leave(0)
    lines = desk.path.read_bytes().splitlines(keepends=True)
    desk.path.write_bytes(b"".join(lines[:-2]))
    assert verify_log(desk.path) == 2
    with pytest.raises(AuditChainError, match="record 2 is missing") as caught:
        verify_log(desk.path, [kept.chain_head()])
    assert caught.value.index == 2
    # And the next head that is signed gives it away at once.
    desk.open()
    assert replace(kept, index=1).index == desk.leave(0).index
