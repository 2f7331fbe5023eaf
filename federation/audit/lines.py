"""The arithmetic of an audit log: what one line is, what the next one is, which is the first bad.

A log is lines of canonical JSON (sorted keys, no blanks, ASCII), one record each::

    index           from 0
    at              RFC 3339, UTC, milliseconds
    event, details  what happened: strings, integers, lists of strings
    parent_sha256   ``sha256`` of the record before; 32 zero bytes for the first
    sha256          over all the others in canonical JSON

Ordered checks of line i: it is exactly the canonical form of what it says; it has index i and the
digest of line i-1 as its parent; its own digest is right. So the first line whose bytes are not
those that were written there is the first that fails, whatever was edited, removed, added, moved or
doubled; only somebody who computes every digest after it anew, or cuts whole records off the end,
is not seen by this alone. Heads that another party keeps (``federation/audit/head.py``) show that.

Pure: functions over bytes. Covered: making, reading and checking lines, a torn last line. Not
covered: files, locks and syncing, which each daemon does itself.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from federation.errors import AuditChainError, TornRecordError

__all__ = [
    "EMPTY",
    "ChainHead",
    "Detail",
    "check_chain",
    "check_contains",
    "complete_lines",
    "head_of",
    "make_line",
    "read_record",
    "torn_bytes",
]

Detail = str | int | Sequence[str]
MAX_LINE_BYTES: Final = 1 << 20
_FIELDS: Final = frozenset({"index", "at", "event", "details", "parent_sha256", "sha256"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """The newest record of a log, or what stands before the first."""

    index: int
    """-1 before the first."""
    sha256: str
    """64 hex digits."""


EMPTY: Final = ChainHead(index=-1, sha256="0" * 64)


def make_line(
    head: ChainHead, *, at_unix_s: float, event: str, details: dict[str, Detail]
) -> tuple[bytes, ChainHead]:
    """Make the record after a head: its line with the line feed, and the log's new head.

    Raises:
        ValueError: It is longer than any reader takes.
    """
    record: dict[str, Any] = {
        "index": head.index + 1,
        "at": _rfc3339(at_unix_s),
        "event": event,
        "details": {
            key: value if isinstance(value, str | int) else list(value)
            for key, value in details.items()
        },
        "parent_sha256": head.sha256,
    }
    record["sha256"] = _digest(record)
    line = _canonical(record) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"an audit record has at most {MAX_LINE_BYTES} bytes")
    return line, ChainHead(index=record["index"], sha256=record["sha256"])


def complete_lines(content: bytes) -> list[bytes]:
    """Return the lines that end with a line feed, without it."""
    return content.split(b"\n")[:-1]


def torn_bytes(content: bytes) -> int:
    """Return how many bytes follow the last line feed: a write that was never acknowledged."""
    return len(content) - (content.rfind(b"\n") + 1)


def read_record(line: bytes) -> dict[str, Any]:
    """Return what one line says, without checking that it is part of a chain.

    Raises:
        AuditChainError: It is no record.
    """
    return _record(line, -1)


def head_of(content: bytes) -> ChainHead:
    """The head that a log's last complete line states, unchecked; ``EMPTY`` without such a line.

    Raises:
        AuditChainError: That line is no record.
    """
    lines = complete_lines(content)
    if not lines:
        return EMPTY
    record = _record(lines[-1], len(lines) - 1)
    return ChainHead(index=record["index"], sha256=record["sha256"])


def check_chain(content: bytes) -> ChainHead:
    """The head of a whole log, every line of which is checked.

    Raises:
        AuditChainError: Names the first bad record.
        TornRecordError: That is the last one, half of which was written.
    """
    digests = _digests(content)
    _require_whole(content, len(digests))
    return ChainHead(index=len(digests) - 1, sha256=digests[-1]) if digests else EMPTY


def check_contains(content: bytes, seen: Sequence[ChainHead]) -> None:
    """Check a whole log against heads of it that were seen before.

    Raises:
        AuditChainError: Names the first record that is bad, missing, or known to be another.
        TornRecordError: Nothing else is wrong, but half a record follows the last one.
    """
    digests = _digests(content)
    for head in sorted(seen, key=lambda head: head.index):
        if head.index >= len(digests):
            raise AuditChainError(
                len(digests),
                f"record {len(digests)} is missing: the log ends before record {head.index}, "
                "which was seen",
            )
        if digests[head.index] != head.sha256:
            raise AuditChainError(
                head.index,
                f"record {head.index} is not the one that was seen: it or one before it was "
                "written anew",
            )
    # Last: half of a record that was seen whole is no power cut.
    _require_whole(content, len(digests))


def _require_whole(content: bytes, records: int) -> None:
    torn = torn_bytes(content)
    if torn:
        raise TornRecordError(
            records,
            f"record {records} is half written ({torn} bytes), as a power cut or a full disk "
            f"leaves it; the {records} before it are in place",
        )


def _digests(content: bytes) -> list[str]:
    """The digest of each whole line, every one of them checked."""
    digests: list[str] = []
    parent = EMPTY.sha256
    for index, line in enumerate(complete_lines(content)):
        record = _record(line, index)
        if _canonical(record) != line:
            raise AuditChainError(index, f"record {index} was altered")
        if record["index"] != index or record["parent_sha256"] != parent:
            raise AuditChainError(index, f"record {index} does not follow the one before it")
        parent = record.pop("sha256")
        if _digest(record) != parent:
            raise AuditChainError(index, f"record {index} was altered")
        digests.append(parent)
    return digests


def _record(line: bytes, index: int) -> dict[str, Any]:
    """What a line says, if it says a record."""
    unreadable = AuditChainError(index, f"record {index} is unreadable")
    if len(line) > MAX_LINE_BYTES:
        raise unreadable
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise unreadable from error
    if not isinstance(record, dict) or record.keys() != _FIELDS or not _is_typed(record):
        raise unreadable
    return record


def _is_typed(record: dict[str, Any]) -> bool:
    texts = ("at", "event", "parent_sha256", "sha256")
    return (
        type(record["index"]) is int
        and all(isinstance(record[name], str) for name in texts)
        and isinstance(record["details"], dict)
    )


def _rfc3339(unix_s: float) -> str:
    moment = dt.datetime.fromtimestamp(unix_s, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(record)).hexdigest()
