"""The ledger's file: framed, checksummed, chained, durable appends under an exclusive lock.

Frame: len u32 | crc32(payload) u32 | crc32(previous two fields) u32 | payload, big endian. The
header has its own checksum so that a damaged length is never mistaken for a torn tail.
Payload: canonical JSON with ``seq`` and ``prev_sha256``, the SHA-256 of the payload before it.

Invariants:
    1. ``append`` returns only after the bytes, and on creation the directory entry, are on disk.
    2. A frame cut short by the end of the file is a write that never returned: it is cut off and
       reported. Every other irregularity is refused.
    3. After any failed write the journal takes no more records until it is opened again.
    4. One process holds the file; a forked child may not write to it; a file that was replaced
       under its path is noticed before the next append.

Covered: crash at any system call, bit rot, two processes. Not covered: an operator who rewrites
the whole file consistently or restores an old copy (peers echo the head: ``dp.ledger.ledger``).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Final

from dp.errors import LedgerCorruptError, LedgerLockedError

_FIELDS: Final = struct.Struct(">II")
_CHECK: Final = struct.Struct(">I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size
MAX_PAYLOAD_BYTES: Final = 1 << 20
_FILE_MODE: Final = 0o600
NO_PREVIOUS: Final = bytes(32)
_PRINTABLE: Final = bytes(range(0x20, 0x7F))


class Journal:
    """An open, locked, verified append-only file of JSON objects."""

    __slots__ = (
        "_digests",
        "_fd",
        "_length_bytes",
        "_path",
        "_pid",
        "_usable",
        "torn_tail_repaired",
    )

    def __init__(self, path: Path) -> None:
        """Open or create the file and take its lock.

        Raises:
            LedgerLockedError: If another process, or this one, holds it already.
        """
        self._path = path
        self._pid = os.getpid()
        self._digests: list[bytes] = []
        self._length_bytes = 0
        self._usable = False
        self.torn_tail_repaired = False
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, _FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise LedgerLockedError(f"ledger {path} is held by another process") from error

    def load(self) -> list[dict[str, Any]]:
        """Read and verify every record, cut off a torn tail, and allow appends.

        Raises:
            LedgerCorruptError: If anything but a torn tail is wrong.
        """
        data = _read_all(self._fd)
        records: list[dict[str, Any]] = []
        offset = 0
        while offset < len(data):
            payload = _next_payload(data, offset)
            if payload is None:
                self.torn_tail_repaired = True
                break
            records.append(self._verified(payload))
            self._digests.append(hashlib.sha256(payload).digest())
            offset += HEADER_BYTES + len(payload)
        if self.torn_tail_repaired:
            os.ftruncate(self._fd, offset)
        # A record read here may still be only in the page cache of a process that was killed, and
        # the directory entry may not be durable either; nothing builds on them before they are.
        os.fsync(self._fd)
        self._sync_directory()
        self._length_bytes = offset
        self._usable = True
        return records

    def append(self, fields: dict[str, Any]) -> None:
        """Write one record durably; ``seq`` and ``prev_sha256`` are added here.

        Raises:
            LedgerCorruptError: If the journal may not be written any more.
        """
        self._require_usable()
        payload = _canonical({**fields, "seq": self.length, "prev_sha256": self.tip.hex()})
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise LedgerCorruptError(f"a ledger record of {len(payload)} bytes is too large")
        head = _FIELDS.pack(len(payload), zlib.crc32(payload))
        frame = head + _CHECK.pack(zlib.crc32(head)) + payload
        self._usable = False
        try:
            written = 0
            while written < len(frame):
                written += os.write(self._fd, frame[written:])
            os.fsync(self._fd)
        except OSError as error:
            raise LedgerCorruptError(f"the ledger cannot be written: {error}") from error
        self._length_bytes += len(frame)
        self._digests.append(hashlib.sha256(payload).digest())
        self._usable = True

    @property
    def length(self) -> int:
        """Number of records."""
        return len(self._digests)

    @property
    def tip(self) -> bytes:
        """Digest of the last record, or zeros."""
        return self._digests[-1] if self._digests else NO_PREVIOUS

    def digest_at(self, seq: int) -> bytes:
        """Digest of record ``seq``."""
        return self._digests[seq]

    def close(self) -> None:
        """Release the lock; closing twice is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._usable = False

    def _require_usable(self) -> None:
        if not self._usable or self._fd < 0:
            raise LedgerCorruptError("the ledger is closed or a write failed: open it again")
        if os.getpid() != self._pid:
            raise LedgerLockedError("a forked process may not write its parent's ledger")
        opened = os.fstat(self._fd)
        try:
            named = self._path.lstat()
        except FileNotFoundError as error:
            raise LedgerCorruptError(f"ledger {self._path} was removed") from error
        if (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino):
            raise LedgerCorruptError(f"ledger {self._path} was replaced")
        if opened.st_size != self._length_bytes:
            raise LedgerCorruptError(f"ledger {self._path} was changed by somebody else")

    def _verified(self, payload: bytes) -> dict[str, Any]:
        try:
            record = json.loads(payload)
            canonical = _canonical(record)
        except (ValueError, RecursionError) as error:
            # NaN and infinities are read, but never written.
            raise LedgerCorruptError("a ledger record is not JSON") from error
        if not isinstance(record, dict) or canonical != payload:
            raise LedgerCorruptError("a ledger record is not in canonical form")
        seq, previous = record.get("seq"), record.get("prev_sha256")
        # True equals 1, and is no number here.
        if type(seq) is not int or seq != self.length or previous != self.tip.hex():
            raise LedgerCorruptError(f"the ledger's chain breaks at record {self.length}")
        return record

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _next_payload(data: bytes, offset: int) -> bytes | None:
    """The payload at ``offset``, or None where the file ends inside the frame."""
    if len(data) - offset < HEADER_BYTES:
        return None
    length, crc = _FIELDS.unpack_from(data, offset)
    (check,) = _CHECK.unpack_from(data, offset + _FIELDS.size)
    if zlib.crc32(data[offset : offset + _FIELDS.size]) != check or length > MAX_PAYLOAD_BYTES:
        raise LedgerCorruptError(f"a ledger header is damaged at byte {offset}")
    payload = data[offset + HEADER_BYTES : offset + HEADER_BYTES + length]
    if len(payload) < length:
        # Payloads are printable ASCII and every header begins with a zero byte, so a record that
        # was written behind a torn one shows here and is not cut off with it.
        if payload.translate(None, _PRINTABLE):
            raise LedgerCorruptError(f"data follow a torn ledger record at byte {offset}")
        return None
    if zlib.crc32(payload) != crc:
        raise LedgerCorruptError(f"a ledger record is damaged at byte {offset}")
    return payload


def _read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(fd, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _canonical(record: Any) -> bytes:
    return json.dumps(
        record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")
