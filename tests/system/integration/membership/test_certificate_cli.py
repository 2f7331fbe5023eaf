"""``chorale silo``, ``chorale ca`` and ``chorale admin renew``, as the admin types them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ops.cli.envelope import Answered
from server.cli.main import app
from silo_agent.identity.join import join
from tests.kit.processes.server_harness import Coordinator

pytestmark = pytest.mark.xdist_group("certificate_cli")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    directory = tmp_path_factory.mktemp("coordinator")
    running = Coordinator(directory)
    for silo_id in ("hospital-a", "hospital-b"):
        join(running.invite(silo_id), directory / silo_id)
    running.invite("hospital-c")
    yield running
    running.close()


def chorale(coordinator, *arguments, data=None):
    """Run one command; returns its exit code, its envelope and what was said besides."""
    directory = str(data or coordinator.data_dir)
    done = CliRunner().invoke(app, [*map(str, arguments), "--data", directory, "--format", "json"])
    assert done.exception is None or isinstance(done.exception, SystemExit | Answered)
    # The coordinator's own log shares this process and its stdout; the envelope comes last.
    return done.exit_code, json.loads(done.stdout.splitlines()[-1]), done.stderr


def ok(coordinator, *arguments, **options):
    code, envelope, said = chorale(coordinator, *arguments, **options)
    assert (code, envelope["status"]) == (0, "ok"), said
    return envelope["data"]


def failed(coordinator, code, reason, *arguments, **options):
    exit_code, envelope, _ = chorale(coordinator, *arguments, **options)
    assert (exit_code, envelope["status"], envelope["error_code"]) == (code, "error", reason)
    assert envelope["hint"] or envelope["next_step"]
    return envelope


def test_a_silo_is_suspended_reinstated_and_revoked(coordinator):
    def state(silo_id):
        return ok(coordinator, "silo", "show", silo_id)["silo"]["state"]

    assert state("hospital-a") == "enrolled"
    assert state("hospital-c") == "invited"
    ok(coordinator, "silo", "suspend", "hospital-a", "--reason", "an audit")
    assert state("hospital-a") == "suspended"
    ok(coordinator, "silo", "reinstate", "hospital-a")
    assert state("hospital-a") == "enrolled"
    failed(coordinator, 1, "silo_standing", "silo", "reinstate", "hospital-a")
    ok(coordinator, "silo", "revoke", "hospital-a")
    assert state("hospital-a") == "revoked"
    listed = ok(coordinator, "silo", "list")["silos"]
    assert {one["silo_id"]: one["state"] for one in listed} == {
        "hospital-a": "revoked",
        "hospital-b": "enrolled",
        "hospital-c": "invited",
    }


@pytest.mark.parametrize("command", ["show", "suspend", "reinstate", "revoke"])
def test_a_stranger_is_an_argument_error(coordinator, command):
    failed(coordinator, 4, "silo_unknown", "silo", command, "nobody")


def test_the_ca_is_rotated_and_shown(coordinator):
    before = ok(coordinator, "ca", "show")
    assert before["retiring"] is None
    for overlap in ("30", "1y", "d", "1d1h"):
        code, envelope, _ = chorale(coordinator, "ca", "rotate", "--overlap", overlap)
        assert (code, envelope["error_code"]) == (4, "arguments")
    failed(coordinator, 1, "ca_rotation", "ca", "rotate", "--overlap", "10m")
    failed(coordinator, 1, "ca_rotation", "ca", "rotate", "--overlap", "91d")
    made = ok(coordinator, "ca", "rotate", "--overlap", "1h")
    after = ok(coordinator, "ca", "show")
    assert after["issuing"]["sha256"] == made["ca_sha256"] != before["issuing"]["sha256"]
    assert after["retiring"] == {
        "sha256": before["issuing"]["sha256"],
        "trusted_until_unix_s": made["overlap_until_unix_s"],
    }
    failed(coordinator, 1, "ca_rotation", "ca", "rotate")
    # With a certificate of the old CA and with one of the new one.
    ok(coordinator, "silo", "list")
    ok(coordinator, "admin", "renew", "--name", "alex")
    ok(coordinator, "silo", "list")


def test_a_viewer_reads_and_changes_nothing(coordinator, tmp_path):
    failed(coordinator, 4, "arguments", "admin", "renew", "--role", "viewer")
    made = ok(
        coordinator,
        "admin",
        "renew",
        "--role",
        "viewer",
        "--name",
        "pat",
        "--out",
        tmp_path / "pat",
    )
    assert (made["role"], made["name"]) == ("viewer", "pat")
    assert ok(coordinator, "silo", "list", data=tmp_path / "pat")["silos"]
    failed(coordinator, 2, "role_denied", "silo", "revoke", "hospital-b", data=tmp_path / "pat")
    ok(coordinator, "silo", "suspend", "hospital-b")
