"""Leaving: what is deleted, what stays, and that nothing is deleted under a daemon."""

import json
from types import SimpleNamespace

import pytest

from dp.ledger.ledger import Ledger
from ops.cli.envelope import Exit
from silo_agent.books.departure import Departure
from silo_agent.books.leave import PRIVATE, PROOFS, daemon_runs, wait_for_daemon, wipe
from silo_agent.errors import LocalStoreError, TransportError
from silo_agent.identity.identity import Identity, NotJoinedError
from tests.kit.silo_agent.command_line import call

KEPT = {"silo.toml", "policy.toml", "leaving.json"}


@pytest.fixture
def full(tmp_path):
    """A data directory with everything in it; directories hold a file."""
    for name in (*PRIVATE, *PROOFS, *KEPT):
        path = tmp_path / name
        if name in {"leaving.json", "approvals.jsonl"}:
            continue
        if "." in name and not name.startswith("identity."):
            path.write_bytes(b"")
        else:
            path.mkdir()
            (path / "secret").write_bytes(b"x")
    return tmp_path


def names(directory):
    return {path.name for path in directory.iterdir()}


def test_wiping_keeps_what_proves_and_what_the_site_wrote(full):
    wiped = wipe(full, proofs=False)
    assert set(wiped.deleted) == set(PRIVATE)
    assert wiped.links == ()
    assert names(full) == (set(PROOFS) | KEPT) - {"leaving.json", "approvals.jsonl"}


def test_everything_goes_if_it_is_asked_for_by_name_and_a_second_call_is_none(full):
    wipe(full, proofs=True)
    assert names(full) == {"silo.toml", "policy.toml"}
    assert wipe(full, proofs=True).deleted == ()


def test_nothing_is_deleted_while_a_daemon_holds_the_ledger(full):
    with Ledger.open(full / "privacy.ledger", delta=1e-5, caps={}):
        assert daemon_runs(full)
        assert not wait_for_daemon(full, timeout_s=0.3)
        before = names(full)
        with pytest.raises(LocalStoreError, match="a daemon uses"):
            wipe(full, proofs=True)
        assert names(full) == before
    assert not daemon_runs(full)


def test_a_link_is_removed_and_what_it_leads_to_stays_and_is_named(full, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "model").write_bytes(b"x")
    (full / "evolve" / "run").symlink_to(elsewhere / "model")
    for child in (full / "adapters").iterdir():
        child.unlink()
    (full / "adapters").rmdir()
    (full / "adapters").symlink_to(elsewhere)
    wiped = wipe(full, proofs=False)
    assert names(elsewhere) == {"model"}
    assert not {"adapters", "evolve"} & names(full)
    assert "adapters" not in wiped.deleted
    assert {(link.name, link.target) for link in wiped.links} == {
        ("adapters", str(elsewhere)),
        ("evolve/run", str(elsewhere / "model")),
    }


@pytest.mark.parametrize("name", [None, "coordinator.toml"])
def test_nothing_is_deleted_where_no_silo_lives(tmp_path, monkeypatch, capsys, name):
    """A coordinator's directory has entries of the same names."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "audit.jsonl").write_bytes(b"")
    if name is not None:
        (tmp_path / name).write_text("")
        (tmp_path / "leaving.json").write_text("")
    before = names(tmp_path)
    code, said, _ = leave(monkeypatch, capsys, tmp_path, "--wipe", "--wipe-ledger", "--yes")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "local_store")
    assert names(tmp_path) == before


@pytest.fixture
def member(tmp_path, monkeypatch):
    """A member whose coordinator is a list of calls."""
    told = []
    identity = SimpleNamespace(silo_id="hospital-a", federation="demo")
    monkeypatch.setattr(Identity, "load", lambda _: identity)
    monkeypatch.setattr(
        "silo_agent.books.leave.tell", lambda who, *, revoke: told.append((who.silo_id, revoke))
    )
    (tmp_path / "spool").mkdir()
    (tmp_path / "silo.toml").write_text("environments = []")
    (tmp_path / "privacy.ledger").write_bytes(b"")
    return tmp_path, told


def leave(monkeypatch, capsys, directory, *options):
    code, out, err = call(
        monkeypatch, capsys, "leave", *options, "--data", str(directory), "--format", "json"
    )
    return code, json.loads(out), err


def test_leaving_marks_tells_and_deletes_only_what_was_asked_for(member, monkeypatch, capsys):
    directory, told = member
    code, said, _ = leave(monkeypatch, capsys, directory, "--revoke")
    assert code == Exit.OK
    assert told == [("hospital-a", True)]
    assert said["data"]["deleted"] == []
    assert Departure(directory).mark() is not None
    assert (directory / "spool").exists()
    code, out, _ = call(monkeypatch, capsys, "leave", "--wipe", "--yes", "--data", str(directory))
    assert code == Exit.OK
    assert "deleted: spool\n" in out
    assert "kept: the privacy ledger" in out
    assert (directory / "privacy.ledger").exists()


def test_a_damaged_audit_log_does_not_keep_a_silo_from_leaving(member, monkeypatch, capsys):
    directory, told = member
    (directory / "audit.jsonl").write_text("no record\n")
    code, said, err = leave(monkeypatch, capsys, directory)
    assert code == Exit.OK
    assert told == [("hospital-a", False)]
    assert Departure(directory).mark() is not None
    assert "audit record 0 is unreadable" in said["data"]["not_audited"]
    assert "the audit log does not hold it" in err


def test_the_certificate_that_was_renewed_meanwhile_is_the_one_that_leaves(
    member, monkeypatch, capsys
):
    directory, told = member
    before, after = (SimpleNamespace(silo_id=f"certificate-{name}") for name in "ab")
    at_hand = [before]
    monkeypatch.setattr(Identity, "load", lambda _: at_hand[-1])

    def renewing(_directory, *, timeout_s):
        at_hand.append(after)
        return True

    monkeypatch.setattr("silo_agent.books.leave.wait_for_daemon", renewing)
    assert leave(monkeypatch, capsys, directory)[0] == Exit.OK
    assert told == [("certificate-b", False)]


def test_a_link_is_said_and_not_called_deleted(member, monkeypatch, capsys, tmp_path_factory):
    directory, _ = member
    disk = tmp_path_factory.mktemp("disk")
    (directory / "evolve").symlink_to(disk)
    _, said, _ = leave(monkeypatch, capsys, directory, "--wipe", "--yes")
    assert said["data"]["deleted"] == ["spool"]
    assert said["data"]["not_deleted"] == [{"name": "evolve", "target": str(disk)}]
    (directory / "evolve").symlink_to(disk)
    _, out, _ = call(monkeypatch, capsys, "leave", "--wipe", "--yes", "--data", str(directory))
    assert f"NOT deleted: {disk}" in out


def test_a_coordinator_that_is_away_stops_nothing_here(member, monkeypatch, capsys):
    directory, _ = member

    def away(_who, *, revoke):
        raise TransportError("UNAVAILABLE: nobody answers")

    monkeypatch.setattr("silo_agent.books.leave.tell", away)
    code, said, _ = leave(monkeypatch, capsys, directory, "--wipe", "--yes", "--revoke")
    assert code == Exit.CONNECT
    assert said["error_code"] == "coordinator_not_told"
    assert said["data"]["deleted"] == ["spool"]
    assert said["data"]["revoked"] is False
    assert "chorale silo revoke" in said["next_step"]
    assert Departure(directory).mark() is not None


def test_a_deletion_is_confirmed_or_does_not_happen(member, monkeypatch, capsys):
    directory, told = member
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    code, said, err = leave(monkeypatch, capsys, directory, "--wipe")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "not_confirmed")
    assert "this deletes from" in err
    assert (told, Departure(directory).mark()) == ([], None)
    assert (directory / "spool").exists()


def test_a_daemon_that_does_not_end_is_a_timeout_and_nobody_is_told(member, monkeypatch, capsys):
    directory, told = member
    (directory / "privacy.ledger").unlink()
    with Ledger.open(directory / "privacy.ledger", delta=1e-5, caps={}):
        code, said, _ = leave(monkeypatch, capsys, directory, "--drain", "--wait", "1")
    assert (code, said["error_code"]) == (Exit.TIMEOUT, "daemon_runs")
    assert told == []
    assert Departure(directory).mark().drain


def test_a_silo_that_has_left_does_not_run(member, monkeypatch, capsys):
    directory, _ = member
    (directory / "silo.toml").write_text("environments = []")
    leave(monkeypatch, capsys, directory)
    code, out, _ = call(monkeypatch, capsys, "run", "--data", str(directory), "--format", "json")
    assert (code, json.loads(out)["error_code"]) == (Exit.ARGUMENTS, "left")


def test_a_silo_that_never_joined_has_nothing_to_leave(tmp_path, monkeypatch, capsys):
    code, said, _ = leave(monkeypatch, capsys, tmp_path)
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "not_joined")
    assert Departure(tmp_path).mark() is None


def test_nothing_is_deleted_where_what_was_spent_cannot_be_written_down(
    member, monkeypatch, capsys
):
    directory, told = member
    (directory / "privacy.ledger").write_bytes(b"no ledger" * 100)
    code, said, err = leave(monkeypatch, capsys, directory)
    assert code == Exit.OK
    assert (said["data"]["spent_file"], "damaged" in said["data"]["not_spent"]) == ("", True)
    assert "no spent.json was written" in err
    before = names(directory)
    code, said, _ = leave(monkeypatch, capsys, directory, "--wipe", "--wipe-ledger", "--yes")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "spent_not_written")
    assert "--no-spent" in said["next_step"]
    assert names(directory) == before
    assert len(told) == 2
    code, said, _ = leave(
        monkeypatch, capsys, directory, "--wipe", "--wipe-ledger", "--no-spent", "--yes"
    )
    assert code == Exit.OK
    assert "privacy.ledger" in said["data"]["deleted"]


def test_a_ledger_whose_key_is_gone_is_not_deleted_unseen(member, monkeypatch, capsys):
    """What an earlier release wiped: it left the ledger, and no file."""
    directory, _ = member
    (directory / "privacy.ledger").unlink()
    with Ledger.open(directory / "privacy.ledger", delta=1e-5, caps={}):
        pass

    def gone(_):
        raise NotJoinedError("no identity")

    monkeypatch.setattr(Identity, "load", gone)
    code, said, _ = leave(monkeypatch, capsys, directory, "--wipe", "--wipe-ledger", "--yes")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "spent_not_written")
    assert (directory / "privacy.ledger").exists()


def test_the_ledger_is_never_deleted_by_half_a_command(member, monkeypatch, capsys):
    directory, told = member
    code, said, _ = leave(monkeypatch, capsys, directory, "--wipe-ledger")
    assert (code, said["error_code"]) == (Exit.ARGUMENTS, "arguments")
    assert told == []
