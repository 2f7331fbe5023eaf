"""The audit chain: appended, verified, and broken on purpose."""

import json

import pytest

from federation.errors import AuditChainError
from ops.audit_log import verify_log
from server.audit import AuditEvent, AuditLog


@pytest.fixture
def log(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl", clock=lambda: 1_800_000_000.5)
    audit.append(AuditEvent.GENESIS, federation="oncology")
    audit.append(AuditEvent.SILO_JOINED, silo="hospital-a")
    audit.append(AuditEvent.ROSTER_PUBLISHED, epoch=1, silos=("a", "b"))
    return audit


def path_of(tmp_path):
    return tmp_path / "audit.jsonl"


def test_records_are_chained_and_timed(log, tmp_path):
    assert verify_log(log.path) == 3
    assert log.head_index == 2
    first, second, third = (json.loads(line) for line in log.tail(10))
    assert first["at"] == "2027-01-15T08:00:00.500Z"
    assert second["parent_sha256"] == first["sha256"]
    assert third["details"] == {"epoch": 1, "silos": ["a", "b"]}
    assert log.tail(1) == (log.tail(3)[-1],)
    assert log.tail(0) == ()
    lines = log.tail(3)
    for room in range(sum(map(len, lines)) + 1):
        fitting = log.tail(3, max_bytes=room)
        assert fitting == lines[3 - len(fitting) :]
        assert sum(map(len, fitting)) <= room
    assert log.tail(3, max_bytes=room) == lines
    assert log.tail(2, max_bytes=len(lines[2])) == lines[2:]


def test_a_second_process_continues_the_chain(log, tmp_path):
    other = AuditLog(path_of(tmp_path))
    other.append(AuditEvent.RUN_STARTED, run="r")
    log.append(AuditEvent.RUN_FINISHED, run="r")
    assert verify_log(log.path) == 5


@pytest.mark.parametrize("line", [0, 1, 2])
def test_an_altered_record_is_named(log, tmp_path, line):
    lines = path_of(tmp_path).read_text().splitlines()
    lines[line] = lines[line].replace("oncology", "Oncology").replace("hospital", "hospitaL")
    lines[line] = lines[line].replace('"epoch":1', '"epoch":2')
    path_of(tmp_path).write_text("\n".join(lines) + "\n")
    with pytest.raises(AuditChainError, match=f"record {line} was altered"):
        verify_log(log.path)


def test_a_removed_record_is_named(log, tmp_path):
    lines = path_of(tmp_path).read_text().splitlines()
    del lines[1]
    path_of(tmp_path).write_text("\n".join(lines) + "\n")
    with pytest.raises(AuditChainError, match="record 1 does not follow"):
        verify_log(log.path)


def test_rubbish_is_named(log, tmp_path):
    with path_of(tmp_path).open("a") as file:
        file.write("[]\n")
    with pytest.raises(AuditChainError, match="record 3 is unreadable"):
        verify_log(log.path)


def test_a_torn_line_is_cut_and_the_cut_recorded(log, tmp_path):
    with path_of(tmp_path).open("a") as file:
        file.write('{"index": 3, "at"')
    with pytest.raises(AuditChainError, match="record 3 is half written"):
        verify_log(log.path)
    reopened = AuditLog(path_of(tmp_path))
    assert verify_log(reopened.path) == 4
    record = json.loads(reopened.tail(1)[0])
    assert record["event"] == "torn_write_cut"
    assert record["details"] == {"cut_bytes": 17}
