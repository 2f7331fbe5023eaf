"""The silo's side of the exchange of audit heads: what it keeps, refuses, and never waits for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.audit.head import COORDINATOR, sign_head, silo_writer
from federation.audit.lines import ChainHead
from secagg.suite import verification_key
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.audit_heads import HEAD_FILE, kept_head
from silo_agent.daemon.audited import open_audit
from silo_agent.errors import AuditLogError, TransportError
from silo_agent.metrics import SiloMetrics

COORDINATOR_KEY, SILO_KEY, NEW_KEY = (
    Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3)
)


class Site:
    """A silo's data directory and a coordinator that answers what a test says."""

    def __init__(self, directory):
        self.directory = directory
        self.open()
        self.coordinator_key = COORDINATOR_KEY
        self.received = []
        self.answer = self.head(5)
        self.round = 0

    def open(self):
        self.metrics = SiloMetrics()
        identity = SimpleNamespace(
            federation="oncology", silo_id="hospital-a", signing_key=SILO_KEY
        )
        self.audit = open_audit(self.directory, lambda: identity, self.metrics)

    def head(self, index, sha256="ab" * 32, *, key=COORDINATOR_KEY, **named):
        return sign_head(
            ChainHead(index=index, sha256=sha256),
            federation=named.get("federation", "oncology"),
            writer=named.get("writer", COORDINATOR),
            at_unix_s=1_800_000_000,
            key=key,
        )

    def exchange_audit_heads(self, ours):
        self.received.append(ours)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def adopt(self, round_number=None):
        """A round's record was adopted."""
        self.round = self.round + 1 if round_number is None else round_number
        record = SimpleNamespace(run_id="run-1", round=self.round)
        self.audit.exchange(
            self,
            SimpleNamespace(
                head=SimpleNamespace(record=record),
                coordinator_key=verification_key(self.coordinator_key),
            ),
        )

    def kept(self):
        head = kept_head(self.directory)
        return None if head is None else (head.index, head.sha256.hex())

    def conflicts(self):
        lines = (self.directory / AUDIT_FILE).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return (
            self.metrics.registry.get_sample_value("chorale_silo_audit_head_conflicts_total"),
            [record for record in records if record["event"] == "audit_head_conflict"],
        )


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_each_side_leaves_its_head_once_a_round(site):
    assert site.kept() is None
    for _ in range(3):
        site.adopt(1)
    (ours,) = site.received
    assert (ours.federation, ours.writer) == ("oncology", silo_writer("hospital-a"))
    ours.verify(verification_key(SILO_KEY))
    assert ours.chain_head() == site.audit.log.head()
    assert site.kept() == (5, "ab" * 32)
    site.answer = site.head(7, "cd" * 32)
    site.adopt(2)
    assert len(site.received) == 2
    assert site.kept() == (7, "cd" * 32)
    assert site.conflicts() == (0.0, [])


def test_before_a_chain_was_followed_there_is_nothing_to_say(site):
    site.audit.exchange(site, SimpleNamespace(head=None, coordinator_key=bytes(32)))
    record = SimpleNamespace(record=SimpleNamespace(run_id="run-1", round=1))
    site.audit.exchange(site, SimpleNamespace(head=record, coordinator_key=None))
    assert site.received == []


@pytest.mark.parametrize(("index", "sha256"), [(4, "cd" * 32), (4, "ab" * 32), (5, "cd" * 32)])
def test_a_log_that_went_back_or_forked_is_alerted_and_the_newest_kept(site, index, sha256):
    site.adopt()
    site.answer = site.head(index, sha256)
    for _ in range(3):
        site.adopt()
    counted, (record,) = site.conflicts()
    assert counted == 3.0
    newest, received = (
        json.loads(record["details"][k])["heads"][0] for k in ("newest", "received")
    )
    # The two signed statements themselves, for anybody to check.
    assert (newest["index"], received["index"], received["sha256"]) == (5, index, sha256)
    assert newest["signature"] != received["signature"]
    assert site.kept() == (5, "ab" * 32)
    site.open()
    site.adopt()
    assert site.conflicts()[0] == 1.0
    site.answer = site.head(6, "ef" * 32)
    site.adopt()
    assert site.kept() == (6, "ef" * 32)


@pytest.mark.parametrize(
    "named",
    [
        {"key": SILO_KEY},
        {"federation": "cardiology"},
        {"writer": silo_writer("hospital-b")},
    ],
)
def test_only_this_coordinators_signature_counts(site, named):
    site.answer = site.head(9, **named)
    site.adopt()
    assert site.kept() is None
    assert site.metrics.registry.get_sample_value(
        "chorale_silo_errors_total", {"kind": "AuditHeadError"}
    )


def test_a_coordinator_with_a_new_key_begins_a_new_log(site):
    site.adopt()
    site.coordinator_key = NEW_KEY
    site.answer = site.head(1, key=NEW_KEY)
    site.adopt()
    assert site.kept() == (1, "ab" * 32)


def test_a_coordinator_that_is_away_or_refuses_costs_nothing(site):
    site.answer = TransportError("UNAVAILABLE: away")
    site.adopt()
    assert site.conflicts() == (0.0, [])
    site.answer = TransportError("no", reason="audit_head_conflict", refused=True)
    site.adopt()
    # The coordinator says that this silo's own log went back: the operator has to know.
    assert site.conflicts() == (1.0, [])
    site.answer = site.head(5)
    site.adopt()
    assert site.kept() == (5, "ab" * 32)


def test_a_damaged_file_is_an_error_and_stays(site):
    site.adopt()
    (site.directory / HEAD_FILE).write_bytes(b"{}")
    site.adopt()
    assert (site.directory / HEAD_FILE).read_bytes() == b"{}"
    with pytest.raises(AuditLogError, match=HEAD_FILE):
        kept_head(site.directory)
    assert site.metrics.registry.get_sample_value(
        "chorale_silo_errors_total", {"kind": "AuditLogError"}
    )
