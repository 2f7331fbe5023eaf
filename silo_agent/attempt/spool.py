"""The masked upload on disk, so that a repeated upload is the identical upload.

What is spooled is already masked and noised; the file gives nothing away that the coordinator does
not receive. Its form is one line (a SHA-256, then JSON: identity, the descriptor's SHA-256, the
signed header of the upload; from suite v2 on its digest and the leaf list of its digest tree) and
then the ring elements as unsigned 32-bit little-endian. That is all a later process needs to finish
the upload, and no secret of the protocol is among it.

Invariants:

1. ``write`` returns only after the file and its directory entry are on disk: the first byte leaves
   after that, so a crash can never lead to a second, different upload of one identity.
2. One identity has one spool; writing it again is refused, whatever the content.
3. ``verify`` passes only if the bytes have the length and the digest that the header signs, which
   from suite v2 on is the root over the leaf list. The writer does not hash again what was hashed
   while it was masked.
4. Spools of earlier rounds, steps and attempts of the same run are deleted when a new one is
   written: after a crash nothing piles up.

Covered: crashes, truncation, a second write; bit rot between two processes. Not covered: a full
disk other than by a typed error; the header's own signature, which a process without the attempt's
ctx cannot check; bit rot while the process that wrote it still sends, which the coordinator finds
at the chunk (suite v1: at the end) and refuses.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Self

import numpy as np
from google.protobuf.message import DecodeError

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2 as pb
from ops.files import replace_file
from secagg import digest_tree
from secagg.descriptor import AggregationId
from secagg.errors import MalformedMessageError, ParameterError, VerificationError
from secagg.messages import MaskedInputHeader
from silo_agent.errors import SpoolError

__all__ = ["Spool"]

CHUNK_BYTES = digest_tree.CHUNK_BYTES
# Leaves of the longest vector and as many rejected senders as a cohort has, in hexadecimal.
_MAX_LINE_BYTES = 1 << 17
_FILE = re.compile(r"(?P<run>[0-9a-f]{16})\.(?P<numbers>\d+\.\d+\.\d+\.\d+)\.spool")


class Spool:
    """One masked vector on disk; made by ``write`` or ``open``."""

    def __init__(
        self,
        path: Path,
        *,
        start: int,
        identity: AggregationId,
        descriptor_sha256: bytes,
        header: MaskedInputHeader,
        digest_id: int,
        leaves: bytes,
    ) -> None:
        self.path = path
        self.identity = identity
        self.descriptor_sha256 = descriptor_sha256
        self.header = header
        self.length_bytes = header.length_bytes
        self.sha256 = header.masked_sha256
        self.leaves = leaves
        """Of the digest tree; empty in suite v1."""
        self._digest_id = digest_id
        self._start = start

    @classmethod
    def write(
        cls,
        directory: Path,
        identity: AggregationId,
        vector: np.ndarray,
        *,
        header: MaskedInputHeader,
        descriptor_sha256: bytes,
        digest_id: int = 0,
        leaves: bytes = b"",
    ) -> Self:
        """Keep a masked vector of uint32 ring elements durably; a missing directory is made.

        ``header`` is the signed statement of the upload; its digest is the vector's. ``digest_id``
        is the descriptor's, and ``leaves`` the leaf list of the digest tree; none in suite v1.

        Raises:
            SpoolError: The vector or the leaf list is not the header's, the identity has a spool,
                or the disk failed.
        """
        if vector.dtype != np.uint32 or vector.ndim != 1 or not vector.size:
            raise SpoolError(f"a masked vector is a flat uint32 array, not {vector.dtype}")
        content = np.ascontiguousarray(vector, dtype="<u4").data.cast("B")
        if content.nbytes != header.length_bytes:
            raise SpoolError(f"the header signs {header.length_bytes} bytes, not {content.nbytes}")
        _require_leaves(header, digest_id, leaves)
        line = _line(identity, header, descriptor_sha256, digest_id, leaves)
        path = directory / _name(identity)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _delete_older(directory, identity)
            if path.exists():
                raise SpoolError(f"{identity} has a spool already: it may not be masked twice")
            replace_file(path, (line, content))
        except OSError as error:
            raise SpoolError(f"cannot write the spool {path}: {error}") from error
        return cls(
            path,
            start=len(line),
            identity=identity,
            descriptor_sha256=descriptor_sha256,
            header=header,
            digest_id=digest_id,
            leaves=leaves,
        )

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read what a spool says of itself; ``verify`` checks the vector.

        Raises:
            SpoolError: It cannot be read, it is damaged, or another one was moved here.
        """
        try:
            with path.open("rb") as file:
                line = file.readline(_MAX_LINE_BYTES)
        except OSError as error:
            raise SpoolError(f"cannot read the spool {path}: {error}") from error
        identity, header, descriptor_sha256, digest_id, leaves = _parse(path, line)
        if path.name != _name(identity):
            raise SpoolError(f"the spool {path} belongs to another aggregation")
        return cls(
            path,
            start=len(line),
            identity=identity,
            descriptor_sha256=descriptor_sha256,
            header=header,
            digest_id=digest_id,
            leaves=leaves,
        )

    def verify(self) -> None:
        """Check every byte of the vector.

        Raises:
            SpoolError: It is not what was written.
        """
        try:
            with self.path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size - self._start
                file.seek(self._start)
                same = size_bytes == self.length_bytes and self._digest(file) == self.sha256
        except (OSError, ParameterError) as error:
            raise SpoolError(f"cannot read the spool {self.path}: {error}") from error
        if not same:
            raise SpoolError(f"the spool {self.path} is not what was written: nothing is sent")

    def _digest(self, file: BufferedReader) -> bytes:
        """The digest that the header signs, of what the file holds from here on.

        Raises:
            ParameterError: The file shrank, or this machine lacks what the digest needs.
        """
        if not self._digest_id:
            return hashlib.file_digest(file, "sha256").digest()
        with digest_tree.TreeHasher(self.length_bytes, self._digest_id) as tree:
            while chunk := file.read(CHUNK_BYTES):
                tree.update(chunk)
            return tree.root()

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


def _require_leaves(header: MaskedInputHeader, digest_id: int, leaves: bytes) -> None:
    """Refuse a leaf list that is not that of the header's root; suite v1 has none.

    Raises:
        SpoolError: It is another one.
    """
    if not digest_id and not leaves:
        return
    try:
        digest_tree.check_leaves(leaves, header.length_bytes, digest_id, header.masked_sha256)
    except (ParameterError, VerificationError) as error:
        raise SpoolError(f"the leaf list is not that of the upload: {error}") from error


def _line(
    identity: AggregationId,
    header: MaskedInputHeader,
    descriptor_sha256: bytes,
    digest_id: int,
    leaves: bytes,
) -> bytes:
    said: dict[str, object] = {
        "identity": list(identity.fields()),
        "descriptor_sha256": descriptor_sha256.hex(),
        "header": secagg_wire.masked_input_header_to_proto(header).SerializeToString().hex(),
    }
    if digest_id:
        said |= {"digest_id": digest_id, "leaves": leaves.hex()}
    text = json.dumps(said).encode()
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


def _parse(path: Path, line: bytes) -> tuple[AggregationId, MaskedInputHeader, bytes, int, bytes]:
    try:
        digest, _, text = line.rstrip(b"\n").partition(b" ")
        if digest != hashlib.sha256(text).hexdigest().encode():
            raise SpoolError(f"the spool {path} has a damaged header")
        said = json.loads(text)
        run_id, round_number, step, part, attempt = said["identity"]
        identity = AggregationId(
            run_id=run_id, round=round_number, step=step, part=part, attempt=attempt
        )
        header = secagg_wire.masked_input_header_from_proto(
            pb.MaskedInputHeader.FromString(bytes.fromhex(said["header"]))
        )
        digest_id, leaves = said.get("digest_id", 0), bytes.fromhex(said.get("leaves", ""))
        _require_leaves(header, digest_id, leaves)
        return identity, header, bytes.fromhex(said["descriptor_sha256"]), digest_id, leaves
    except (ValueError, KeyError, TypeError, DecodeError, MalformedMessageError) as error:
        raise SpoolError(f"the spool {path} has a damaged header") from error


def _name(identity: AggregationId) -> str:
    # A run id may hold characters that no file name does, so the name carries its digest.
    numbers = (identity.round, identity.step, identity.part, identity.attempt)
    return ".".join((_run_digest(identity), *map(str, numbers), "spool"))


def _run_digest(identity: AggregationId) -> str:
    return hashlib.sha256(identity.run_id.encode()).hexdigest()[:16]


def _delete_older(directory: Path, identity: AggregationId) -> None:
    """Delete what the aggregation about to be spooled has made useless: parts stay side by side."""
    for path in directory.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is None or match["run"] != _run_digest(identity):
            continue
        round_number, step, part, attempt = map(int, match["numbers"].split("."))
        earlier = (round_number, step) < (identity.round, identity.step)
        same_sum = (round_number, step, part) == (identity.round, identity.step, identity.part)
        if earlier or (same_sum and attempt < identity.attempt):
            path.unlink(missing_ok=True)
