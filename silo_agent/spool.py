"""The masked upload on disk, so that a repeated upload is the identical upload.

What is spooled is already masked and noised; the file gives nothing away that the coordinator does
not receive. Its form is one line of JSON (identity, length, SHA-256) and then the ring elements as
unsigned 32-bit little-endian.

Invariants:

1. ``write`` returns only after the file and its directory entry are on disk: the first byte leaves
   after that, so a crash can never lead to a second, different upload of one identity.
2. One identity has one spool; writing it again is refused, whatever the content.
3. ``open`` returns a spool only if the bytes have the digest that was written with them.
4. Spools of earlier rounds of the same run are deleted when a new one is written: after a crash
   nothing piles up.

Covered: crashes, truncation, bit rot, a second write. Not covered: a full disk other than by a
typed error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from secagg.descriptor import AggregationId
from silo_agent.durable import replace_file
from silo_agent.errors import SpoolError

__all__ = ["Spool"]

CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 4096
_FILE = re.compile(r"(?P<run>[0-9a-f]{16})\.(?P<round>\d+)\.\d+\.\d+\.\d+\.spool")


class Spool:
    """One masked vector on disk; made by ``write`` or ``open``."""

    def __init__(self, path: Path, *, start: int, length_bytes: int, sha256: bytes) -> None:
        self.path = path
        self.length_bytes = length_bytes
        self.sha256 = sha256
        self._start = start

    @classmethod
    def write(cls, directory: Path, identity: AggregationId, vector: np.ndarray) -> Self:
        """Keep a masked vector durably.

        Args:
            directory: Made if it is missing.
            identity: The aggregation the vector was masked for.
            vector: Ring elements, uint32.

        Raises:
            SpoolError: The vector has another type, the identity has a spool, or the disk failed.
        """
        if vector.dtype != np.uint32 or vector.ndim != 1 or not vector.size:
            raise SpoolError(f"a masked vector is a flat uint32 array, not {vector.dtype}")
        content = np.ascontiguousarray(vector, dtype="<u4").data.cast("B")
        digest = hashlib.sha256(content)
        header = (
            json.dumps(
                {
                    "identity": list(identity.fields()),
                    "length_bytes": content.nbytes,
                    "sha256": digest.hexdigest(),
                }
            ).encode()
            + b"\n"
        )
        path = directory / _name(identity)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _delete_older(directory, identity)
            if path.exists():
                raise SpoolError(f"{identity} has a spool already: it may not be masked twice")
            replace_file(path, (header, content))
        except OSError as error:
            raise SpoolError(f"cannot write the spool {path}: {error}") from error
        return cls(path, start=len(header), length_bytes=content.nbytes, sha256=digest.digest())

    @classmethod
    def open(cls, directory: Path, identity: AggregationId) -> Self:
        """Find what was written for an identity and check every byte of it.

        Raises:
            SpoolError: There is none, or it is not what was written.
        """
        path = directory / _name(identity)
        try:
            with path.open("rb") as file:
                line = file.readline(_MAX_HEADER_BYTES)
                spool = cls._from_header(path, line, identity)
                digest = hashlib.file_digest(file, "sha256").digest()
                size_bytes = file.tell() - len(line)
        except OSError as error:
            raise SpoolError(f"cannot read the spool {path}: {error}") from error
        if size_bytes != spool.length_bytes or digest != spool.sha256:
            raise SpoolError(f"the spool {path} is not what was written: upload nothing from it")
        return spool

    def chunks(self, offset_bytes: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The vector's bytes from an offset on, in chunks.

        Raises:
            SpoolError: The offset is outside the vector, or the file is shorter than it was.
        """
        if not 0 <= offset_bytes <= self.length_bytes:
            raise SpoolError(f"offset {offset_bytes} is outside {self.length_bytes} bytes")
        if chunk_bytes < 1:
            raise SpoolError("a chunk has at least one byte")
        return self._read(offset_bytes, chunk_bytes)

    def delete(self) -> None:
        """Remove the file; once is enough and twice is allowed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolError(f"cannot delete the spool {self.path}: {error}") from error

    def _read(self, offset_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._start + offset_bytes)
                left = self.length_bytes - offset_bytes
                while left:
                    chunk = file.read(min(chunk_bytes, left))
                    if not chunk:
                        raise SpoolError(f"the spool {self.path} is shorter than what was written")
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise SpoolError(f"cannot read the spool {self.path}: {error}") from error

    @classmethod
    def _from_header(cls, path: Path, line: bytes, identity: AggregationId) -> Self:
        try:
            header = json.loads(line)
            if header["identity"] != list(identity.fields()):
                raise SpoolError(f"the spool {path} belongs to another aggregation")
            return cls(
                path,
                start=len(line),
                length_bytes=int(header["length_bytes"]),
                sha256=bytes.fromhex(header["sha256"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SpoolError(f"the spool {path} has a damaged header") from error


def _name(identity: AggregationId) -> str:
    # A run id may hold characters that no file name does, so the name carries its digest.
    numbers = (identity.round, identity.step, identity.part, identity.attempt)
    return ".".join((_run_digest(identity), *map(str, numbers), "spool"))


def _run_digest(identity: AggregationId) -> str:
    return hashlib.sha256(identity.run_id.encode()).hexdigest()[:16]


def _delete_older(directory: Path, identity: AggregationId) -> None:
    for path in directory.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is None or match["run"] != _run_digest(identity):
            continue
        if int(match["round"]) < identity.round:
            path.unlink(missing_ok=True)
