"""``chorale doctor``: every failure is caused for real, found by its own step, and has a fix."""

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from lab.loopback import LoopbackFederation, free_port
from ops.doctor.checkup import Outcome
from server.audit import AuditLog
from server.cli.doctor import call_once
from server.cli.main import main
from server.pki.trust import Trust
from server.site.doctor.doctor import examine_coordinator
from server.store.served import RECORD
from tests.kit.processes import doctor_servers as servers

pytestmark = pytest.mark.xdist_group("doctor")
DATABASE = "coordinator.db"


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with LoopbackFederation(directory=tmp_path_factory.mktemp("doctor")) as running:
        running.found()
        running.start_coordinator()
        yield running


@pytest.fixture
def data_dir(loopback, tmp_path):
    """A copy of the running coordinator's directory: same keys, same ports."""
    return shutil.copytree(loopback.data_dir, tmp_path / "data")


def examined(data_dir):
    told = []
    found = examine_coordinator(data_dir, call=lambda: call_once(data_dir), told=told.append)
    assert tuple(told) == found.findings
    return found


def step(found, name):
    (finding,) = [finding for finding in found.findings if finding.name == name]
    return finding


def assert_failed(data_dir, name, *words, skipped=()):
    found = examined(data_dir)
    finding = step(found, name)
    assert finding.outcome is Outcome.FAILED, finding
    assert finding.fix
    for word in words:
        assert word in finding.found + finding.fix, finding
    assert found.first_failed == finding
    for later in skipped:
        assert step(found, later).outcome is Outcome.SKIPPED
    return found


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_sound_coordinator_has_no_failure_and_no_warning(data_dir):
    found = examined(data_dir)
    assert {f.outcome for f in found.findings} == {Outcome.OK}, found.findings
    assert step(found, "call").found.endswith("0 silos are enrolled or invited")
    assert "opens while somebody is invited" in step(found, "ports").found


def test_the_enrolment_port_is_examined_while_it_is_open(loopback, data_dir):
    loopback.chorale(
        "invite", loopback.federation, "hospital-a", "--ttl", "60s", "--data", str(data_dir)
    )
    found = examined(data_dir)
    assert {f.outcome for f in found.findings} == {Outcome.OK}, found.findings
    for name in ("ports", "tcp", "tls"):
        assert f":{loopback.enrol_port}" in step(found, name).found
    assert "opens while" not in step(found, "ports").found


def test_the_command_prints_every_step_and_exits_by_the_worst(data_dir):
    def doctor(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "server.cli.main", "doctor", "--data", data_dir, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    sound = doctor("--format", "json")
    assert sound.returncode == 0, sound.stderr
    envelope = json.loads(sound.stdout)
    assert envelope["status"] == "ok"
    assert envelope["data"]["counts"]["ok"] == len(envelope["data"]["steps"])
    shown = doctor()
    assert len(shown.stdout.splitlines()) == len(envelope["data"]["steps"]) + 1
    assert shown.stderr == ""
    (data_dir / "protocol.key").chmod(0o640)
    broken = doctor("--format", "json")
    envelope = json.loads(broken.stdout)
    assert (broken.returncode, envelope["error_code"]) == (1, "doctor_keys")
    assert "chmod 600" in envelope["message"]
    assert envelope["data"]["counts"]["failed"] == 1
    shown = doctor()
    assert "failed   keys" in shown.stdout
    assert shown.stderr.startswith("error: ")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_an_open_directory(data_dir, mode):
    data_dir.chmod(mode)
    assert_failed(data_dir, "data_directory", "chmod 700")


def test_an_absent_directory(tmp_path):
    found = assert_failed(tmp_path / "none", "data_directory", "chorale init", skipped=("keys",))
    assert step(found, "packages").outcome is Outcome.OK


def test_a_directory_of_something_else(tmp_path):
    tmp_path.chmod(0o700)
    assert_failed(tmp_path, "configuration", "is no coordinator's", "CHORALE_DATA")


def test_an_unknown_setting(data_dir):
    with (data_dir / "coordinator.toml").open("a") as file:
        file.write("surprise = 1\n")
    later = ("keys", "database", "disk", "audit", "dns", "ports", "tcp", "tls", "call")
    assert_failed(data_dir, "configuration", "surprise", skipped=later)


@pytest.mark.parametrize("name", ["pki/ca.key", "pki/server.key", "admin/admin.key"])
def test_a_key_that_others_can_read(data_dir, name):
    (data_dir / name).chmod(0o644)
    assert_failed(data_dir, "keys", name, "chmod 600", skipped=("ca", "tls"))


def test_a_key_of_another_certificate(data_dir):
    shutil.copy(data_dir / "pki/server.key", data_dir / "admin/admin.key")
    assert_failed(data_dir, "keys", "admin.key", "chorale admin renew")


def as_pem(content, _key):
    return b"from a backup:\n" + content


def as_der(_content, key):
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def as_seed(_content, key):
    return key.private_bytes_raw()


@pytest.mark.parametrize("form", [as_pem, as_der, as_seed])
def test_the_roots_private_key_on_this_host(loopback, data_dir, form):
    content = (loopback.root_dir / "root.key").read_bytes()
    hidden = data_dir / "adapters" / "old.bin"
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_bytes(form(content, serialization.load_pem_private_key(content, None)))
    assert_failed(data_dir, "root_key_absent", str(hidden), "shred")


def test_an_encrypted_key_is_named_and_not_believed(loopback, data_dir):
    key = serialization.load_pem_private_key((loopback.root_dir / "root.key").read_bytes(), None)
    (data_dir / "x.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"pass"),
        )
    )
    finding = step(examined(data_dir), "root_key_absent")
    assert finding.outcome is Outcome.WARNING
    assert "x.pem" in finding.found


def admin_certificate(data_dir, **options):
    names = [servers.uri("spiffe://coordinator/admin/admin")]
    certificate, key = servers.issue(data_dir / "pki", names=names, **options)
    (data_dir / "admin/admin.pem").write_bytes(certificate)
    (data_dir / "admin/admin.key").write_bytes(key)


def test_an_expired_admin_certificate_is_a_matter_of_authentication(data_dir):
    admin_certificate(data_dir, begins=-3 * servers.DAY, ends=-servers.DAY)
    found = assert_failed(
        data_dir, "admin_certificate", "ended at", "chorale admin renew", skipped=("tls", "call")
    )
    assert found.only_connection


def test_an_admin_certificate_from_tomorrow_speaks_of_the_clock(data_dir):
    admin_certificate(data_dir, begins=servers.DAY, ends=2 * servers.DAY)
    assert_failed(data_dir, "admin_certificate", "clock", "timedatectl")


def test_an_admin_certificate_that_ends_soon(data_dir):
    admin_certificate(data_dir, ends=servers.DAY / 100)
    finding = step(examined(data_dir), "admin_certificate")
    assert (finding.outcome, finding.fix) == (Outcome.WARNING, "chorale admin renew")


def test_a_rotation_of_the_ca_is_no_failure(data_dir):
    Trust.load(data_dir / "pki").rotate(30 * 86400, name="next")
    found = examined(data_dir)
    assert found.first_failed is None, found.first_failed
    assert "the one before it is trusted until" in step(found, "ca").found


def test_a_server_certificate_without_a_configured_name(data_dir):
    edit(data_dir / "coordinator.toml", 'host_names = ["', 'host_names = ["coord.example", "')
    assert_failed(data_dir, "server_certificate", "coord.example")


def test_a_clock_that_is_behind(data_dir):
    later = time.time() + 3600
    os.utime(data_dir / "audit.jsonl", (later, later))
    assert_failed(data_dir, "clock", "audit.jsonl", "timedatectl")


def sql(data_dir, statement):
    connection = sqlite3.connect(data_dir / DATABASE)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_database_of_a_newer_version(data_dir):
    sql(data_dir, "UPDATE alembic_version SET version_num = 'r9999'")
    assert_failed(data_dir, "database", "r9999", "newer version")


def test_a_database_that_is_behind_is_a_warning_and_stays_behind(data_dir):
    sql(data_dir, "UPDATE alembic_version SET version_num = 'r0002'")
    for _ in range(2):
        finding = step(examined(data_dir), "database")
        assert finding.outcome is Outcome.WARNING
        assert "r0002" in finding.found


def test_a_database_of_another_program(data_dir):
    (data_dir / DATABASE).unlink()
    sql(data_dir, "CREATE TABLE other (x)")
    assert_failed(data_dir, "database", "no schema")


def test_a_file_that_is_no_database(data_dir):
    (data_dir / DATABASE).write_bytes(b"not a database" * 1000)
    assert_failed(data_dir, "database", "not a database")


@pytest.mark.parametrize("served", [True, False])
def test_an_absent_database_is_not_made_and_a_restore_is_not_the_first_advice(data_dir, served):
    (data_dir / DATABASE).unlink()
    if not served:
        (data_dir / RECORD).unlink()
    names = f"{data_dir / RECORD} names it" if served else f"no {data_dir / RECORD}"
    found = assert_failed(data_dir, "database", "absent", str(data_dir / DATABASE), names)
    fix = step(found, "database").fix
    assert fix.index("CHORALE_COORDINATOR_DATABASE_URL") < fix.index("chorale restore")
    assert not (data_dir / DATABASE).exists()


def test_a_database_that_is_away_keeps_its_password(data_dir, monkeypatch):
    (data_dir / RECORD).unlink()
    url = f"postgresql://chorale:hunter2@127.0.0.1:{free_port()}/x"
    monkeypatch.setenv("CHORALE_COORDINATOR_DATABASE_URL", url)
    found = assert_failed(data_dir, "database")
    assert "hunter2" not in repr(found)


def test_another_database_than_the_one_that_is_served(data_dir, monkeypatch):
    url = "postgresql://chorale:hunter2@db.example.org/x"
    monkeypatch.setenv("CHORALE_COORDINATOR_DATABASE_URL", url)
    found = assert_failed(data_dir, "database", "db.example.org", str(data_dir / DATABASE))
    assert "hunter2" not in repr(found)


def test_an_altered_audit_record(data_dir):
    log = data_dir / "audit.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"at":"2', '"at":"1')
    log.write_text("".join(lines))
    assert_failed(data_dir, "audit", "audit record 1", "chorale audit verify")


def test_half_an_audit_record_is_a_power_cut_and_no_evidence(data_dir, monkeypatch, capsys):
    with (data_dir / "audit.jsonl").open("a") as file:
        file.write('{"at":"2026')
    found = examined(data_dir)
    finding = step(found, "audit")
    assert (finding.outcome, found.first_failed) == (Outcome.WARNING, None)
    assert "half written (11 bytes)" in finding.found
    for word in ("nothing that was acknowledged is lost", "torn_write_cut"):
        assert word in finding.fix
    assert "evidence" not in finding.fix
    words = ["chorale", "audit", "verify", "--data", str(data_dir), "--format", "json"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    answer = json.loads(capsys.readouterr().out)
    assert (stop.value.code, answer["error_code"]) == (1, "audit_torn")
    assert "nobody changed it" in answer["hint"]
    # What is said of it comes true.
    AuditLog(data_dir / "audit.jsonl")
    assert step(examined(data_dir), "audit").outcome is Outcome.OK


class LateError(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self):
        return "Deadline Exceeded"

    def trailing_metadata(self):
        return ()


def test_a_coordinator_that_is_slow_is_not_taken_for_a_certificate(data_dir):
    def call():
        raise LateError

    found = examine_coordinator(data_dir, call=call, told=lambda _: None)
    finding = step(found, "call")
    assert finding.outcome is Outcome.FAILED
    assert "did not answer in time" in finding.found
    assert "database" in finding.fix
    assert "renew" not in finding.fix


def test_a_name_that_nobody_resolves(data_dir):
    with (data_dir / "coordinator.toml").open("a") as file:
        file.write('coordinator_address = "coord.invalid:7443"\n')
    found = examined(data_dir)
    assert found.first_failed is None
    assert step(found, "dns").outcome is Outcome.WARNING
    assert "coord.invalid" in step(found, "dns").fix
    assert step(found, "tcp").outcome is Outcome.WARNING


def with_ports(data_dir, *ports):
    config = data_dir / "coordinator.toml"
    kept = [line for line in config.read_text().splitlines() if "listen = " not in line]
    keys = ("listen", "enrol_listen", "probes_listen")
    kept += [f'{key} = "127.0.0.1:{port}"' for key, port in zip(keys, ports, strict=True)]
    config.write_text("\n".join(kept) + "\n")


def test_a_coordinator_that_does_not_run_is_a_warning(data_dir):
    with_ports(data_dir, free_port(), free_port(), free_port())
    found = examined(data_dir)
    assert found.first_failed is None
    assert step(found, "ports").outcome is Outcome.WARNING
    assert "chorale-coordinator serve" in step(found, "ports").fix
    assert {step(found, name).outcome for name in ("tcp", "tls", "call")} == {Outcome.SKIPPED}


def test_a_port_that_another_program_holds(data_dir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with_ports(data_dir, free_port(), taken.getsockname()[1], free_port())
        assert_failed(data_dir, "ports", "ss -ltnp", skipped=("tls", "call"))


def test_another_program_on_every_port(data_dir):
    with servers.listening(says=b"220 smtp\r\n") as address:
        port = int(address.rpartition(":")[2])
        with_ports(data_dir, port, port, port)
        found = assert_failed(data_dir, "tls", "no_tls", skipped=("call",))
        assert found.only_connection


def test_a_server_of_another_federation(loopback, data_dir, tmp_path):
    with LoopbackFederation(directory=tmp_path / "other", federation="other") as other:
        other.found()
        context = servers.server_context(
            tmp_path,
            (other.data_dir / "pki/server.pem").read_bytes(),
            (other.data_dir / "pki/server.key").read_bytes(),
        )
        with servers.listening(context) as address:
            port = int(address.rpartition(":")[2])
            with_ports(data_dir, port, port, port)
            assert_failed(data_dir, "tls", "untrusted", "another coordinator")


def can_mount():
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="making a small file system needs root")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            # Again and again: the last pages are counted late on a busy machine. The one that
            # closing the database may free still takes a small file, so the step says either.
            "for n in 1 2 3 4; do dd if=/dev/zero of=$M/fill$n bs=4k; sync; done",
            ("its disk is full", "takes no file|^0 MiB free"),
        ),
        ("mount -o remount,ro $M", ("cannot be written",)),
    ],
)
def test_a_full_or_read_only_disk(data_dir, tmp_path, spoil, words):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    script = (
        f"M={mounted}; mount -t tmpfs -o size=8m,mode=700 tmpfs $M && cp -a {data_dir}/. $M && "
        f"{{ {spoil}; }} 2>/dev/null; "
        f"{sys.executable} -m server.cli.main doctor --data $M --format json"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    failures = [s for s in json.loads(done.stdout)["data"]["steps"] if s["outcome"] == "failed"]
    for expected, failure in zip(words, failures, strict=False):
        assert re.search(expected, failure["found"]), failures


def test_a_database_that_somebody_holds(data_dir):
    holder = sqlite3.connect(data_dir / DATABASE, isolation_level=None)
    with contextlib.closing(holder):
        holder.execute("BEGIN IMMEDIATE")
        assert_failed(
            data_dir, "database", "another transaction holds it", "wait for it, or end it"
        )
