"""Audit heads over mutual TLS between a real silo's transport and the coordinator's real services,
and the commands that find a cut log with what the other side kept."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from federation.audit.head import sign_head, silo_writer
from secagg.suite import verification_key
from server.audit import AuditEvent
from server.cli.audit import app as chorale_audit
from silo_agent.books.audit import AUDIT_FILE, AuditLog, SiloEvent
from silo_agent.books.audit_heads import AuditHeadExchange, kept_head
from silo_agent.cli.audit import audit_app
from silo_agent.errors import TransportError
from silo_agent.identity.join import join
from silo_agent.line.transport import Coordinator as Line
from silo_agent.metrics import SiloMetrics
from tests.kit.processes.server_harness import Coordinator

pytestmark = pytest.mark.xdist_group("audit_heads")


@pytest.fixture
def coordinator(tmp_path):
    running = Coordinator(tmp_path / "coordinator")
    yield running
    running.close()


class Silo:
    def __init__(self, coordinator, directory, silo_id="hospital-a"):
        self.directory = directory
        self.identity = join(coordinator.invite(silo_id), directory)
        self.log = AuditLog(directory)
        self.metrics = SiloMetrics()
        self.line = Line(
            address=coordinator.config.dial_coordinator,
            credentials=self.identity.channel_credentials(),
            patience_s=5.0,
        )
        self.heads = AuditHeadExchange(
            data_dir=directory,
            audit=self.log,
            identity=lambda: self.identity,
            metrics=self.metrics,
        )
        self.coordinator_key = verification_key(coordinator.signing_key)

    def exchange(self):
        self.heads.exchange(self.line, self.coordinator_key)

    def conflicts(self):
        return self.metrics.registry.get_sample_value("chorale_silo_audit_head_conflicts_total")


@pytest.fixture
def silo(coordinator, tmp_path):
    made = Silo(coordinator, tmp_path / "silo")
    yield made
    made.line.close()


def run(app, *arguments):
    """One command, in this process: starting another takes longer than what it does."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    envelope = json.loads(done.stdout)
    assert (envelope["status"] == "ok") == (done.exit_code == 0), done.stderr
    return done.exit_code, envelope


def cut(path, lines):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def test_each_side_finds_the_others_cut_log_by_the_heads_it_kept(coordinator, silo, tmp_path):
    chorale = lambda *a: run(chorale_audit, *a, "--data", coordinator.data_dir)  # noqa: E731
    site = lambda *a: run(audit_app, *a, "--data", silo.directory)  # noqa: E731
    absent = site("heads", "--out", tmp_path / "none.json")
    assert (absent[0], absent[1]["error_code"]) == (4, "audit_head_absent")
    assert chorale("heads", "--out", tmp_path / "none.json")[1]["error_code"] == "audit_head_absent"
    for number in range(3):
        silo.log.append(SiloEvent.RECORD_ADOPTED, run="run-1", round=number)
        coordinator.audit.append(AuditEvent.ROUND_FINISHED, run="run-1", round=number)
    silo.exchange()
    assert silo.conflicts() == 0
    assert kept_head(silo.directory).chain_head() == coordinator.audit.head()

    # Whole logs pass with the other side's heads.
    seen, mine = tmp_path / "coordinator-heads.json", tmp_path / "silo-heads.json"
    assert site("heads", "--out", seen)[0] == 0
    assert chorale("heads", "--silo", "hospital-a", "--out", mine)[0] == 0
    assert chorale("verify", "--heads", seen)[1]["data"]["heads"] == 1
    assert site("verify", "--heads", mine)[1]["data"] == {"records": 4, "heads": 1}
    # The other side's heads are not about this log.
    assert chorale("verify", "--heads", mine)[1]["error_code"] == "audit_head_refused"
    assert site("verify", "--heads", seen)[1]["error_code"] == "audit_head"

    # A cut of whole records is a chain in order, and only the heads give it away.
    cut(coordinator.config.paths.audit, 2)
    left = chorale("verify")[1]["data"]["records"]
    code, found = chorale("verify", "--heads", seen)
    assert (code, found["error_code"]) == (1, "audit_broken")
    assert found["data"] == {"first_bad_record": left}
    cut(silo.directory / AUDIT_FILE, 1)
    assert site("verify")[1]["data"]["records"] == 3
    code, found = site("verify", "--heads", mine)
    assert (code, found["error_code"]) == (1, "audit_chain")
    assert found["data"] == {"first_bad_record": 3}


def test_exports_are_the_logs_and_say_so_when_they_are_broken(coordinator, silo, tmp_path):
    for number in range(2):
        silo.log.append(SiloEvent.RECORD_ADOPTED, run="run-1", round=number)
    both = (
        (chorale_audit, coordinator.data_dir, coordinator.config.paths.audit, "audit_broken"),
        (audit_app, silo.directory, silo.log.path, "audit_chain"),
    )
    for app, data, log, error in both:
        where = ("--data", data, "--out", tmp_path / "copy.jsonl")
        assert run(app, "export", *where)[1]["data"]["records"] >= 3
        assert (tmp_path / "copy.jsonl").read_bytes() == log.read_bytes()
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(lines[0] + b"".join(lines[2:]))
        code, found = run(app, "export", *where)
        assert (code, found["error_code"]) == (1, error)
        assert found["data"] == {"first_bad_record": 1}
        assert (tmp_path / "copy.jsonl").read_bytes() == log.read_bytes()
    code, tail = run(audit_app, "tail", "-n", "1", "--data", silo.directory)
    assert [record["details"]["round"] for record in tail["data"]["records"]] == [1]


def test_a_silo_whose_log_went_back_is_refused_and_both_sides_alert(coordinator, silo):
    silo.log.append(SiloEvent.DAEMON_STARTED)
    silo.exchange()
    cut(silo.log.path, 1)
    silo.exchange()
    assert silo.conflicts() == 1
    assert coordinator.counted("chorale_audit_head_conflicts_total") == 1
    refused = coordinator.counted("chorale_rejected_messages_total", reason="audit_head_conflict")
    assert refused == 1
    assert json.loads(coordinator.audit.tail(1)[0])["event"] == "audit_head_conflict"


def test_a_coordinator_whose_log_went_back_is_caught_by_the_silo(coordinator, silo):
    for _ in range(2):
        coordinator.audit.append(AuditEvent.COORDINATOR_STARTED)
    silo.exchange()
    newest = kept_head(silo.directory)
    cut(coordinator.config.paths.audit, 1)
    silo.exchange()
    assert silo.conflicts() == 1
    assert kept_head(silo.directory) == newest
    assert json.loads(silo.log.tail(1)[0])["event"] == "audit_head_conflict"


def test_one_silo_cannot_leave_a_head_for_another(coordinator, silo, tmp_path):
    other = Silo(coordinator, tmp_path / "other", "hospital-b")
    for writer, key in (
        (silo_writer("hospital-a"), silo.identity.signing_key),
        (silo_writer("hospital-b"), silo.identity.signing_key),
        (silo_writer("hospital-a"), other.identity.signing_key),
    ):
        forged = sign_head(
            silo.log.head(), federation="oncology", writer=writer, at_unix_s=1, key=key
        )
        with pytest.raises(TransportError) as caught:
            other.line.exchange_audit_heads(forged)
        assert caught.value.reason == "audit_head_refused"
    assert coordinator.store.audit_heads.list() == ()
    other.line.close()


def test_a_coordinator_that_is_gone_costs_one_attempt(coordinator, silo):
    silo.line.close()
    silo.line = Line(
        address="localhost:1", credentials=silo.identity.channel_credentials(), patience_s=300.0
    )
    silo.exchange()
    assert silo.conflicts() == 0
    name, labels = "chorale_silo_errors_total", {"kind": "TransportError"}
    assert silo.metrics.registry.get_sample_value(name, labels) == 1
