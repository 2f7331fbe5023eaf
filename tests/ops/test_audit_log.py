"""The file of an audit log, as both sides use it: full disks, and a log that vanishes."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager

import pytest

from ops.audit_log import read_log, verify_log
from server.audit import AuditEvent
from server.audit import AuditLog as CoordinatorLog
from silo_agent.books.audit import AuditLog as SiloLog
from silo_agent.books.audit import SiloEvent
from silo_agent.errors import AuditLogError


@contextmanager
def disk_full_at(size_bytes):
    """No file of this process grows past a byte; what is written reaches up to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["coordinator", "silo"])
def side(request, tmp_path):
    """How one side opens its log, and an event of it."""
    path = tmp_path / "audit.jsonl"
    if request.param == "silo":
        return lambda: SiloLog(tmp_path), SiloEvent.DAEMON_STARTED, path
    return lambda: CoordinatorLog(path), AuditEvent.COORDINATOR_STARTED, path


def events(path):
    return [json.loads(line)["event"] for line in read_log(path).splitlines()]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("room_bytes", [0, 1, 100])
def test_the_chain_outlives_a_disk_that_is_full_again_and_again(side, times, room_bytes):
    open_log, event, path = side
    log = open_log()
    log.append(event)
    before = events(path)
    with disk_full_at(path.stat().st_size + room_bytes):
        for _ in range(times):
            with pytest.raises((OSError, AuditLogError)):
                log.append(event)
    log.append(event)
    torn = ["torn_write_cut"] if room_bytes else []
    assert events(path) == [*before, *torn, event.value]
    assert verify_log(path, [log.head()]) == len(before) + len(torn) + 1
    assert open_log().head() == log.head()


def test_a_torn_line_longer_than_its_record_is_cut_whole(side):
    open_log, event, path = side
    open_log().append(event)
    with path.open("ab") as file:
        file.write(b"x" * 4000)
    log = open_log()
    assert events(path)[-1] == "torn_write_cut"
    assert json.loads(log.tail(1)[0])["details"] == {"cut_bytes": 4000}
    verify_log(path, [log.head()])


def test_a_log_that_vanished_does_not_begin_again(side):
    open_log, event, path = side
    log = open_log()
    path.unlink()
    with pytest.raises((FileNotFoundError, AuditLogError)):
        log.append(event)
    assert not path.exists()
