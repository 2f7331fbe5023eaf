"""The audit chain: appended, verified, and broken on purpose."""

import json

import pytest

from server.audit import AuditEvent, AuditLog
from server.errors import AuditError


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
    assert log.verify() == 3
    assert log.head_index == 2
    first, second, third = (json.loads(line) for line in log.tail(10))
    assert first["at"] == "2027-01-15T08:00:00.500Z"
    assert second["parent_sha256"] == first["sha256"]
    assert third["details"] == {"epoch": 1, "silos": ["a", "b"]}
    assert log.tail(1) == (log.tail(3)[-1],)
    assert log.tail(0) == ()


def test_a_second_process_continues_the_chain(log, tmp_path):
    other = AuditLog(path_of(tmp_path))
    other.append(AuditEvent.RUN_STARTED, run="r")
    log.append(AuditEvent.RUN_FINISHED, run="r")
    assert log.verify() == 5


@pytest.mark.parametrize("line", [0, 1, 2])
def test_an_altered_record_is_named(log, tmp_path, line):
    lines = path_of(tmp_path).read_text().splitlines()
    lines[line] = lines[line].replace("oncology", "Oncology").replace("hospital", "hospitaL")
    lines[line] = lines[line].replace('"epoch":1', '"epoch":2')
    path_of(tmp_path).write_text("\n".join(lines) + "\n")
    with pytest.raises(AuditError, match=f"record {line} was altered"):
        log.verify()


def test_a_removed_record_is_named(log, tmp_path):
    lines = path_of(tmp_path).read_text().splitlines()
    del lines[1]
    path_of(tmp_path).write_text("\n".join(lines) + "\n")
    with pytest.raises(AuditError, match="record 1 does not follow"):
        log.verify()


def test_rubbish_is_named(log, tmp_path):
    with path_of(tmp_path).open("a") as file:
        file.write("[]\n")
    with pytest.raises(AuditError, match="record 3 is unreadable"):
        log.verify()


def test_a_torn_line_is_cut_and_the_cut_recorded(log, tmp_path):
    with path_of(tmp_path).open("a") as file:
        file.write('{"index": 3, "at"')
    with pytest.raises(AuditError, match="record 3 is half written"):
        log.verify()
    reopened = AuditLog(path_of(tmp_path))
    assert reopened.verify() == 4
    record = json.loads(reopened.tail(1)[0])
    assert record["event"] == "torn_write_cut"
    assert record["details"] == {"cut_bytes": 17}
