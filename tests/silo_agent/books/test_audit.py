"""The silo's audit log: its chain, its failures, and that its length tells nothing private."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from dp.config import Mode
from federation.audit.lines import ChainHead
from federation.chain.record import Place
from federation.errors import AuditChainError
from ops.audit_log import verify_log
from silo_agent.attempt.spool import Spool
from silo_agent.books.audit import AUDIT_FILE, AuditLog, SiloEvent, read_log
from silo_agent.daemon.audited import open_audit
from silo_agent.errors import AuditLogError, LocalStoreError
from silo_agent.metrics import SiloMetrics
from tests.kit.silo_agent.session_round import DIMENSION, Round
from tests.kit.silo_agent.working_silo import task_of


def events(directory):
    return [json.loads(line)["event"] for line in (directory / AUDIT_FILE).read_text().splitlines()]


def test_a_log_begins_with_a_random_name_and_is_private(tmp_path):
    logs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log = AuditLog(tmp_path / name, clock=lambda: 1_800_000_000.5)
        log.append(SiloEvent.JOINED, federation="oncology", silo="hospital-a")
        logs.append(log)
    assert [head.head().index for head in logs] == [1, 1]
    # Same facts at the same moment, and yet nobody can tell by the heads that they are the same.
    assert logs[0].head().sha256 != logs[1].head().sha256
    assert verify_log(logs[0].path) == 2
    assert logs[0].path.stat().st_mode & 0o777 == 0o600
    assert json.loads(logs[0].tail(1)[0])["details"] == {
        "federation": "oncology",
        "silo": "hospital-a",
    }


def test_two_processes_write_one_chain(tmp_path):
    one, other = AuditLog(tmp_path), AuditLog(tmp_path)
    for _ in range(3):
        one.append(SiloEvent.DAEMON_STARTED)
        other.append(SiloEvent.APPROVAL_GIVEN, run="run-1")
    assert verify_log(one.path, [one.head(), other.head()]) == 7


def test_a_torn_line_is_cut_and_the_cut_recorded(tmp_path):
    AuditLog(tmp_path).append(SiloEvent.DAEMON_STARTED)
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(b'{"index"')
    with pytest.raises(AuditChainError, match="record 2 is half written"):
        verify_log(tmp_path / AUDIT_FILE)
    AuditLog(tmp_path)
    assert events(tmp_path) == ["log_begun", "daemon_started", "torn_write_cut"]
    assert verify_log(tmp_path / AUDIT_FILE) == 3


def test_a_log_that_was_only_torn_begins_again(tmp_path):
    (tmp_path / AUDIT_FILE).write_bytes(b'{"at"')
    AuditLog(tmp_path)
    assert events(tmp_path) == ["log_begun", "torn_write_cut"]


def test_an_unreadable_last_record_is_a_typed_error(tmp_path):
    (tmp_path / AUDIT_FILE).write_bytes(b"rubbish\n")
    with pytest.raises(AuditLogError, match="record 0 is unreadable"):
        AuditLog(tmp_path)
    with pytest.raises(AuditLogError, match="cannot read"):
        read_log(tmp_path / "absent")


def test_the_log_is_no_way_out_of_the_directory(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / AUDIT_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditLogError):
        AuditLog(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b""


@pytest.fixture
def full_disk(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    def fill():
        # This file alone: the ledger's disk still takes what it is given.
        monkeypatch.setattr(AuditLog, "_write", fail)

    return fill


def test_a_full_disk_is_an_error_or_counted(tmp_path, full_disk):
    metrics = SiloMetrics()
    audit = open_audit(tmp_path, lambda: None, metrics)
    full_disk()
    with pytest.raises(LocalStoreError):
        audit.log.append(SiloEvent.JOINED)
    audit.stopped()
    name = "chorale_silo_errors_total"
    assert metrics.registry.get_sample_value(name, {"kind": "AuditLogError"}) == 1.0


def test_a_policy_is_recorded_when_it_changes(tmp_path):
    policy = tmp_path / "policy.toml"
    for text in ("a", "a", "b", "b", "a"):
        policy.write_text(text)
        open_audit(tmp_path, lambda: None, SiloMetrics()).started(policy)
    assert events(tmp_path).count("policy_changed") == 3


def test_what_is_asked_for_again_adds_nothing(tmp_path):
    audit = open_audit(tmp_path, lambda: None, SiloMetrics())
    for _ in range(3):
        audit.accepted(task_of(1))
        audit.refused(("run-1", Place(2, 0)), "hours")
    audit.refused(("run-1", Place(2, 0)), "budget")
    audit.refused(None, "budget")
    assert events(tmp_path)[1:] == ["task_accepted", *["task_refused"] * 3]


# What a round leaves -----------------------------------------------------------------------------

ATTEMPT = ["attempt_charged", "attempt_uploaded", "survivors_signed"]


def of_a_round(directory, **options):
    """The kinds of records that one whole attempt leaves, and their details."""
    directory.mkdir()
    one = Round(directory, **options)
    one.finish()
    one.ledger.close()
    records = [json.loads(line) for line in (directory / AUDIT_FILE).read_text().splitlines()]
    return [record["event"] for record in records[1:]], [r["details"] for r in records[1:]]


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO])
def test_the_log_is_the_same_whatever_was_learned(tmp_path, mode):
    """Its length goes to the coordinator with each head."""
    deltas = {
        "something": np.full(DIMENSION, 0.25, np.float32),
        "nothing": np.zeros(DIMENSION, np.float32),
        "too-much": np.full(DIMENSION, 1e6, np.float32),
        "not-finite": np.full(DIMENSION, np.nan, np.float32),
    }
    found = {
        name: of_a_round(tmp_path / name, mode=mode, delta=delta) for name, delta in deltas.items()
    }
    identity = {"run": "run-1", "round": 4, "step": 0, "part": 0, "attempt": 1}
    for kinds, details in found.values():
        assert kinds == ATTEMPT
        assert details == [identity] * 3


def test_answers_that_got_lost_and_were_repeated_add_nothing(tmp_path):
    one = Round(tmp_path)
    one.loses_answers = True
    one.finish()
    one.ledger.close()
    assert events(tmp_path)[1:] == ATTEMPT


def test_nothing_is_uploaded_or_signed_that_is_not_on_disk_first(tmp_path, full_disk):
    one = Round(tmp_path)
    delivery = one.delivery()
    full_disk()
    with pytest.raises(AuditLogError):
        one.session.handle(delivery)
    assert "upload" not in [name for name, _ in one.wire.sent]
    # The charge stands: what was charged is never less than what was released.
    assert one.ledger.has_spent(one.identity())
    one.ledger.close()


def test_no_signature_leaves_before_its_record(tmp_path, full_disk):
    one = Round(tmp_path)
    survivors = one.survivors()
    full_disk()
    with pytest.raises(AuditLogError):
        one.session.handle(survivors)
    assert "check_consistency" not in [name for name, _ in one.wire.sent]
    one.ledger.close()


def test_a_charged_attempt_is_on_disk_before_the_first_byte(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        Spool, "write", lambda *_a, **_k: written.append(events(tmp_path)) or SimpleNamespace()
    )
    one = Round(tmp_path)
    delivery = one.delivery()
    with pytest.raises(AttributeError):
        one.session.handle(delivery)
    assert written == [["log_begun", "attempt_charged"]]
    one.ledger.close()


def test_a_log_that_was_cut_is_found_with_the_head_the_coordinator_kept(tmp_path):
    log = AuditLog(tmp_path)
    for number in range(3):
        log.append(SiloEvent.RECORD_ADOPTED, round=number)
    seen = [log.head()]
    os.truncate(log.path, len(b"".join(log.path.read_bytes().splitlines(keepends=True)[:2])))
    assert verify_log(log.path) == 2
    with pytest.raises(AuditChainError, match="record 2 is missing") as caught:
        verify_log(log.path, seen)
    assert caught.value.index == 2
    assert AuditLog(tmp_path).head() == ChainHead(index=1, sha256=log.head().sha256)
