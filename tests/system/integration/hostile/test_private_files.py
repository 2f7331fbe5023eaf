"""What both parties write is their own account's alone, under the umask that lets everybody in.

A failure: a file that others may read and that is not meant for them. The directories are closed to
others besides; a copy, a mount or a careless chmod opens those.
"""

import os

import pytest

from lab.loopback import LoopbackFederation
from tests.kit.processes import constant_federation as cf

PUBLIC = {"coordinator.toml", "root.pub"}
"""Beside certificates: what an operator may show."""


@pytest.fixture
def everybody():
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(*directories):
    return {
        str(path.relative_to(directory)): oct(path.stat().st_mode)
        for directory in directories
        for path in directory.rglob("*")
        if path.stat().st_mode & 0o077 and path.suffix != ".pem" and path.name not in PUBLIC
    }


@pytest.mark.long
def test_a_round_and_a_backup_leave_nothing_open_to_others(tmp_path, everybody):
    with LoopbackFederation(directory=tmp_path) as federation:
        cf._found(federation, cf.SILOS)
        silos = [federation.silo_dir(silo_id) for silo_id in cf.SILOS]
        for directory in silos:
            # As join wrote them: the test's own hand wrote over it, which kept the mode.
            assert (directory / "silo.toml").stat().st_mode & 0o777 == 0o600
        for silo_id in cf.SILOS:
            federation.start_silo(silo_id)
        plan, adapter = cf.write_run(federation, cf.plan_toml())
        run_id = federation.start_run(plan, adapter, token="private")
        cf.watch_to_end(federation, run_id)
        backup = tmp_path / "kept" / "backup"
        backup.parent.mkdir()
        federation.chorale("backup", "--out", str(backup), "--data", str(federation.data_dir))
        names = {path.name for path in federation.data_dir.rglob("*")}
        assert {"coordinator.db", "coordinator.db-wal", "coordinator.db-shm"} <= names
        assert {"privacy.ledger", "state.json"} <= {path.name for path in silos[0].iterdir()}
        found = open_to_others(federation.data_dir, *silos)
        assert found == {}
        assert backup.stat().st_mode & 0o077 == 0
    restored = tmp_path / "restored"
    federation.chorale("restore", str(backup), "--data", str(restored))
    assert open_to_others(restored) == {}


def test_an_older_database_that_was_open_is_closed_at_the_start(tmp_path):
    with LoopbackFederation(directory=tmp_path) as federation:
        federation.found()
        database = federation.data_dir / "coordinator.db"
        database.chmod(0o644)
        federation.start_coordinator()
        assert open_to_others(federation.data_dir) == {}
