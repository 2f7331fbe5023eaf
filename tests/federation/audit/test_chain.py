"""The audit chain: any one change to a log is found, and the first bad record is the exact one."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from federation.audit.lines import (
    EMPTY,
    ChainHead,
    check_chain,
    check_contains,
    complete_lines,
    head_of,
    make_line,
    read_record,
    torn_bytes,
)
from federation.errors import AuditChainError, TornRecordError

NAMES = st.text("abc_", min_size=1, max_size=5)
TEXTS = st.text('ab é"\\\n\r\u2028\U0001f3b6\ud800', max_size=6)
VALUES = st.one_of(TEXTS, st.integers(-(2**70), 2**70), st.lists(TEXTS, max_size=2))
DETAILS = st.dictionaries(NAMES, VALUES, max_size=3)
LOGS = st.lists(DETAILS, min_size=2, max_size=6)
few = settings(max_examples=60, deadline=None, derandomize=True)


def log_of(details):
    head, lines, heads = EMPTY, [], []
    for number, facts in enumerate(details):
        line, head = make_line(head, at_unix_s=1e9 + number, event=f"e{number}", details=facts)
        lines.append(line)
        heads.append(head)
    return lines, heads


def first_bad(content, seen=()):
    with pytest.raises(AuditChainError) as caught:
        check_contains(content, seen)
    assert str(caught.value).startswith(f"audit record {caught.value.index} ")
    return caught.value.index


def first_difference(content, lines):
    """The first line that is not, byte for byte, the one that was written there."""
    for index, line in enumerate(content.split(b"\n")[:-1]):
        if index == len(lines) or line + b"\n" != lines[index]:
            return index
    return content.count(b"\n")


@few
@given(LOGS)
def test_what_was_written_is_whole(details):
    lines, heads = log_of(details)
    content = b"".join(lines)
    assert check_chain(content) == heads[-1] == head_of(content)
    check_contains(content, heads)
    for line, facts in zip(lines, details, strict=True):
        assert read_record(line[:-1])["details"] == facts


def test_half_a_record_is_told_from_a_change_unless_it_was_seen_whole():
    lines, heads = log_of([{}, {}, {}])
    torn = b"".join(lines)[:-20]
    with pytest.raises(TornRecordError, match=r"record 2 is half written .* the 2 before it"):
        check_contains(torn, heads[:2])
    with pytest.raises(TornRecordError):
        check_chain(torn)
    for content, seen in (
        # Who cuts a log within a record hides nothing that others keep the head of.
        (torn, heads),
        (torn[:100] + b"x" + torn[101:], ()),
    ):
        with pytest.raises(AuditChainError) as caught:
            check_contains(content, seen)
        assert not isinstance(caught.value, TornRecordError)


def test_an_empty_log_is_whole():
    assert check_chain(b"") == EMPTY == head_of(b"")
    assert (complete_lines(b""), torn_bytes(b"ab\ncd")) == ([], 2)


@few
@given(LOGS, st.data())
def test_an_edit_of_any_byte_is_found_at_its_record(details, data):
    lines, _ = log_of(details)
    content = bytearray(b"".join(lines))
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255))
    assume(byte != content[position])
    content[position] = byte
    assert first_bad(bytes(content)) == first_difference(bytes(content), lines)


@few
@given(LOGS, st.data())
def test_inserted_and_removed_bytes_are_found_at_their_record(details, data):
    lines, _ = log_of(details)
    content = b"".join(lines)
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        changed = (
            content[:position] + data.draw(st.binary(min_size=1, max_size=3)) + content[position:]
        )
    else:
        changed = content[:position] + content[position + 1 :]
    assume(changed != content)
    assert first_bad(changed) == first_difference(changed, lines)


@few
@given(LOGS, st.data())
def test_a_deleted_record_is_found_where_it_was(details, data):
    lines, heads = log_of(details)
    gone = data.draw(st.integers(0, len(lines) - 2))
    left = b"".join(lines[:gone] + lines[gone + 1 :])
    assert first_bad(left) == gone
    # The last one is cut whole: the chain that is left is in order, and a head shows the cut.
    cut = b"".join(lines[:-1])
    assert check_chain(cut) == heads[-2]
    assert first_bad(cut, heads[-1:]) == len(lines) - 1


@few
@given(LOGS, st.data())
def test_reordered_records_are_found_at_the_first_that_moved(details, data):
    lines, _ = log_of(details)
    order = data.draw(st.permutations(range(len(lines))))
    assume(order != sorted(order))
    moved = next(index for index, place in enumerate(order) if index != place)
    assert first_bad(b"".join(lines[place] for place in order)) == moved


@few
@given(LOGS, st.data())
def test_a_doubled_record_is_found_at_the_second(details, data):
    lines, _ = log_of(details)
    twice = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(twice, len(lines) - 1)) + 1
    assert first_bad(b"".join([*lines[:at], lines[twice], *lines[at:]])) == at


@few
@given(LOGS, st.data())
def test_a_log_cut_inside_a_record_is_found_there(details, data):
    lines, _ = log_of(details)
    content = b"".join(lines)
    end = data.draw(st.integers(1, len(content) - 1))
    assume(content[end - 1 : end] != b"\n")
    assert first_bad(content[:end]) == content[:end].count(b"\n")


def rewritten(lines, index, **changes):
    """The log as somebody would write it who can compute every digest anew."""
    head, forged = EMPTY, []
    for number, line in enumerate(lines):
        record = read_record(line[:-1])
        facts = {**record["details"], **(changes if number == index else {})}
        seconds = 1e9 + number
        made, head = make_line(head, at_unix_s=seconds, event=record["event"], details=facts)
        forged.append(made)
    return b"".join(forged)


@few
@given(LOGS, st.data())
def test_a_chain_computed_anew_is_found_by_a_head_that_was_seen(details, data):
    lines, heads = log_of(details)
    changed = data.draw(st.integers(0, len(lines) - 1))
    forged = rewritten(lines, changed, forged=1)
    check_chain(forged)
    seen = data.draw(st.integers(0, len(lines) - 1))
    if seen < changed:
        # Nobody outside saw what was changed.
        check_contains(forged, [heads[seen]])
    else:
        assert first_bad(forged, [heads[seen]]) == seen
        # Of several heads the first that is not in the log names the record.
        assert first_bad(forged, heads[::-1]) == changed


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"index":' + b"9" * 5000 + b"}",
        b'{"index":0}',
        b"{" + b" " * (1 << 20) + b"}",
    ],
)
def test_rubbish_is_named_and_not_a_crash(line):
    lines, _ = log_of([{"a": 1}, {"b": 2}])
    assert first_bad(lines[0] + line + b"\n" + lines[1]) == 1
    with pytest.raises(AuditChainError):
        head_of(lines[0] + line + b"\n")


@pytest.mark.parametrize(
    "changes", [{"index": True}, {"index": "0"}, {"event": 1}, {"details": []}, {"extra": 1}]
)
def test_a_record_of_other_types_is_refused_however_it_is_digested(changes):
    record = {
        "index": 0,
        "at": "2027-01-15T08:00:00.500Z",
        "event": "e",
        "details": {},
        "parent_sha256": EMPTY.sha256,
        **changes,
    }
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    record["sha256"] = hashlib.sha256(canonical).hexdigest()
    line = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert first_bad(line) == 0


def test_no_record_is_longer_than_its_readers_take():
    with pytest.raises(ValueError, match="at most"):
        make_line(EMPTY, at_unix_s=0, event="e", details={"a": "x" * (1 << 20)})


def test_a_head_beyond_the_end_names_the_first_record_that_is_missing():
    lines, _ = log_of([{}, {}])
    assert first_bad(b"".join(lines), [ChainHead(index=9, sha256="0" * 64)]) == 2
