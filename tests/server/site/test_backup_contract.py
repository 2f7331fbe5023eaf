"""Backup and restore, from and to either kind of database, with everything that a store holds."""

import fcntl
import threading
from contextlib import closing

import pytest
from alembic import command
from sqlalchemy import select

from ops.audit_log import verify_log
from secagg.descriptor import AggregationId
from server.audit import AuditEvent, AuditLog
from server.config import CoordinatorConfig
from server.errors import BackupError, StoreError
from server.members.root import create_root
from server.site.backup import backup_to
from server.site.founding import Founding, found
from server.site.restore import restore
from server.states import RunState
from server.store import Store
from server.store.aggregations import AggregationOutcome
from server.store.blobs.directory import BlobStore
from server.store.choices import ChoiceRow
from server.store.database import Database, _migrations
from server.store.decisions import DecisionRow
from server.store.heads import AuditHeadRow, DebitRow, HeadRow
from server.store.schema import METADATA
from server.store.served import database_in_force
from server.store.tasks import TaskRow
from tests.kit.federation.statements import HYBRID_UPLOAD, INVITING_TASK
from tests.kit.server.store_samples import (
    FAMILIES,
    at,
    make_run,
    message,
    record,
    signed,
    signed_roster,
    silo_row,
)
from tests.kit.server.world_bundle import make_bundle
from tests.kit.waiting import until

URL = "CHORALE_COORDINATOR_DATABASE_URL"
SECRET = b"a revealed share" * 20


def link(number, adapter):
    """A record whose adapter is there."""
    parent = {"parent_sha256": adapter} if number else {}
    return record(number, adapter_sha256=adapter, **parent)


def fill(store, blobs):
    """Something in every table, with an attempt that is open."""
    store.silos.enrol(silo_row())
    for name in ("hospital-b", "hospital-c"):
        store.invites.create(secret=name.encode(), silo_id=name, created_unix_s=1, expires_unix_s=9)
    store.rosters.publish(signed_roster(1), at_unix_s=1)
    make_run(store)
    make_run(store, token="done", run_id="over")
    store.runs.set_state("over", RunState.FINISHED)
    for number in range(2):
        adapter = blobs.put(b"adapter %d" % number)
        store.records.append(link(number, adapter))
    store.rounds.set_phase(at(2, 1), "unmask", 1.0)
    opened = signed(round_number=2)
    identity = opened.descriptor.identity
    store.aggregations.open(opened, FAMILIES)
    for phase in (1, 2):
        store.aggregations.close_phase(identity, phase, ())
    store.aggregations.fold(identity, "silo-001", 1)
    store.messages.put(identity, message("share_keys", sealed=SECRET))
    store.messages.put(identity, message("unmask", body=b"", sealed=SECRET))
    store.heads.put(
        HeadRow(
            identity=AggregationId(run_id="r", round=1, step=2, part=0, attempt=1),
            bundle=make_bundle("silo-001", ledger_seq=2**64 - 1),
            descriptor_sha256=b"\x05" * 32,
        )
    )
    store.debit_heads.put(
        DebitRow(header=HYBRID_UPLOAD, ctx=b"\x06" * 32, members_sha256=b"\x07" * 32)
    )
    store.tasks.put(TaskRow(task=INVITING_TASK, attempt=1))
    store.rollbacks.ask(submit_token="back", run_id="run-1", to_round=0, at_unix_s=7)
    store.bisections.ask(
        submit_token="halves",
        run_id="run-1",
        named=("hospital-a", "hospital-b"),
        suspects=("hospital-a", "hospital-b"),
        at_unix_s=7,
    )
    store.decisions.begin(DecisionRow(run_id="run-1", round=1, inputs=b"{}", advice=b"{}"))
    store.choices.put(
        ChoiceRow(run_id="run-1", round=1, silos=("hospital-a",), why="drawn", ready_deadline_s=9)
    )
    store.dropouts.add("run-1", "hospital-a", 1)
    store.audit_heads.put(
        AuditHeadRow(
            silo_id="hospital-a", index=1, sha256=b"\x01" * 32, at_unix_s=7, signature=b"s" * 64
        )
    )


@pytest.fixture
def coordinator(tmp_path, monkeypatch, empty_url):
    monkeypatch.setenv(URL, empty_url)
    public = create_root(tmp_path / "root")
    config = found(
        tmp_path / "data",
        Founding(hosts=("localhost",), root_public_key=public, federation="oncology"),
    )
    with closing(Store(database_in_force(config))) as store:
        fill(store, BlobStore(config.adapters))
    return config


@pytest.fixture(params=["sqlite", "postgresql"])
def target_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'target.db'}"
    postgresql = request.getfixturevalue("postgresql")
    return postgresql.url(postgresql.database())


def rows(url):
    """Everything but the tables that a restore changes, which are looked at by themselves."""
    with closing(Store(url)) as store, store.snapshot() as connection:
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
            ]
            for table in METADATA.sorted_tables
            if table.name not in {"runs", "invites", "messages"}
        }


def test_everything_comes_back_but_secrets_and_runs_that_go_on_by_themselves(
    coordinator, tmp_path, target_url, monkeypatch
):
    before = rows(database_in_force(coordinator))
    assert all(before[name] for name in before if not name.startswith("roster_"))
    path = tmp_path / "b.tar"
    manifest = backup_to(path, coordinator)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SECRET not in path.read_bytes()
    monkeypatch.setenv(URL, target_url)
    with path.open("rb") as file:
        restored = restore(file, tmp_path / "new")
    assert restored.held_runs == ("run-1",)
    assert restored.spent_invites == ("hospital-b", "hospital-c")
    assert rows(target_url) == before
    new = CoordinatorConfig.load(tmp_path / "new")
    assert not (tmp_path / "new" / "coordinator.db").exists()
    with closing(Store(database_in_force(new))) as store:
        run = store.runs.get("run-1")
        assert run.state is RunState.PAUSED
        assert manifest.taken_at in run.error
        assert "chorale run resume" in run.error
        assert store.runs.get("over").state is RunState.FINISHED
        assert store.runs.active() is None
        assert store.invites.open() == ()
        identity = signed(round_number=2).descriptor.identity
        assert store.messages.with_secrets(identity) == (message("share_keys"),)
        # It can be written to: also where numbers are given out.
        store.messages.put(identity, message("advertise_keys"))
        assert len(store.messages.list(identity)) == 2
        store.aggregations.end(identity, AggregationOutcome.ABORTED)
    blobs = BlobStore(new.adapters)
    for name in manifest.blobs:
        assert bytes(blobs.get(bytes.fromhex(name))).startswith(b"adapter")
    for original in (coordinator.paths.protocol_key, *coordinator.paths.pki.iterdir()):
        copy = tmp_path / "new" / original.relative_to(coordinator.data_dir)
        assert copy.read_bytes() == original.read_bytes()
        assert copy.stat().st_mode & 0o077 == 0
    taken = verify_log(coordinator.paths.audit)
    assert verify_log(new.paths.audit) == taken + 1
    assert AuditEvent.RESTORED.value in AuditLog(new.paths.audit).tail(1)[0]
    # A database that holds a coordinator is never filled again.
    with path.open("rb") as file, pytest.raises(StoreError, match="holds rows"):
        restore(file, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]


def test_a_database_in_use_is_left_as_it_was(coordinator, tmp_path, target_url, monkeypatch):
    path = tmp_path / "b.tar"
    backup_to(path, coordinator)
    with closing(Database(target_url, create=True)) as target:
        # The schema of the version before.
        with target._alone(10) as connection:
            command.upgrade(_migrations(connection), "head")
            command.downgrade(_migrations(connection), "-1")
        before = target.revision()
        assert before != target.newest_revision()
        monkeypatch.setenv(URL, target_url)
        with path.open("rb") as file, pytest.raises(StoreError, match="another version"):
            restore(file, tmp_path / "new")
        assert target.revision() == before
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


def test_a_restore_that_died_before_it_copied_a_row_is_made_again(
    coordinator, tmp_path, target_url, monkeypatch
):
    path = tmp_path / "b.tar"
    backup_to(path, coordinator)
    monkeypatch.setenv(URL, target_url)

    class Killed(BaseException):
        pass

    def die(*_rest):
        raise Killed

    with monkeypatch.context() as patch, path.open("rb") as file:
        patch.setattr("server.site.restore.copy_rows", die)
        with pytest.raises(Killed):
            restore(file, tmp_path / "new")
    with path.open("rb") as file:
        restore(file, tmp_path / "new")
    with path.open("rb") as file, pytest.raises(StoreError, match="drop that database"):
        restore(file, tmp_path / "newer")


def test_a_backup_of_a_busy_coordinator_is_of_one_instant(coordinator, tmp_path, monkeypatch):
    """A writer goes on all the while: what is in the backup is all of its rounds up to one."""
    stop, done = threading.Event(), []
    blobs = BlobStore(coordinator.adapters)

    def write():
        number = 2
        with closing(Store(database_in_force(coordinator))) as store:
            audit = AuditLog(coordinator.paths.audit)
            while not stop.is_set():
                adapter = blobs.put(b"adapter %d" % number)
                with store.transaction():
                    store.records.append(link(number, adapter))
                    store.rounds.set_phase(at(number, 1), "training", 1.0)
                    audit.append(AuditEvent.ROUND_FINISHED, run="run-1", round=number)
                done.append(number)
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            until(lambda least=3 * number + 3: len(done) >= least, "three more rounds")
            backup_to(tmp_path / f"{number}.tar", coordinator)
    finally:
        stop.set()
        writer.join()
    monkeypatch.delenv(URL)
    newest = 0
    for number in range(3):
        with (tmp_path / f"{number}.tar").open("rb") as file:
            restore(file, tmp_path / f"new-{number}")
        config = CoordinatorConfig.load(tmp_path / f"new-{number}")
        with closing(Store(database_in_force(config))) as store:
            chain = store.records.list("run-1")
            begun = {row.round for row in store.rounds.list("run-1")}
        noted = [line for line in AuditLog(config.paths.audit).tail(1000) if "round_fin" in line]
        assert chain[-1].round == max(begun)
        assert len(noted) == chain[-1].round - 1
        assert chain[-1].round > newest
        newest = chain[-1].round


def test_what_the_coordinator_is_just_writing_is_left_alone(coordinator, tmp_path):
    half = coordinator.adapters / "0123456789abcdef.partial"
    half.write_bytes(b"half an adapter")
    key = coordinator.paths.pki / ".server.key.abcdef"
    key.write_bytes(b"half a key")
    backup_to(tmp_path / "b.tar", coordinator)
    assert half.exists()
    assert key.exists()
    assert b"half a" not in (tmp_path / "b.tar").read_bytes()


def test_a_coordinator_that_is_not_whole_is_not_backed_up(coordinator, tmp_path):
    path = tmp_path / "b.tar"
    store = BlobStore(coordinator.adapters)
    (blob, *_) = sorted(store._directory.glob("??/*"))
    content = blob.read_bytes()
    blob.write_bytes(b"altered")
    with pytest.raises(BackupError, match="not what it is named"):
        backup_to(path, coordinator)
    blob.unlink()
    with pytest.raises(BackupError, match="missing"):
        backup_to(path, coordinator)
    blob.write_bytes(content)
    link = coordinator.paths.pki / "other.key"
    link.symlink_to("/etc/hostname")
    with pytest.raises(BackupError, match="no file of a coordinator"):
        backup_to(path, coordinator)
    link.unlink()
    assert [left for left in tmp_path.iterdir() if "b.tar" in left.name] == []
    killed = tmp_path / ".b.tar.partial"
    killed.write_bytes(bytes(1 << 24))
    with killed.open("rb") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="another backup"):
            backup_to(path, coordinator)
    assert killed.stat().st_size == 1 << 24
    backup_to(path, coordinator)
    assert not killed.exists()
    assert path.stat().st_size < 1 << 24
    with pytest.raises(BackupError, match="exists"):
        backup_to(path, coordinator)


def test_a_database_of_another_version_is_not_touched(coordinator, tmp_path):
    with closing(Store(database_in_force(coordinator))) as store, store.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r0006'")
    with pytest.raises(BackupError, match="another version"):
        backup_to(tmp_path / "b.tar", coordinator)
    with closing(Database(database_in_force(coordinator))) as database:
        assert database.revision() == "r0006"
