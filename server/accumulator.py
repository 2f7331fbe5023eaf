"""Where uploads become a sum: a spool for each upload in flight, one accumulator on disk.

Invariants:

1. An upload is folded once, only when it is complete and its SHA-256 is the signed one; its spool
   is deleted in the same call.
2. Memory is O(tile) and disk is O(vector + uploads in flight), whatever the number of silos.
3. A chunk past the announced length is refused before it is written.
4. A stream that outlived its attempt cannot write into a later one's spool.

Covered: truncated, extended, repeated and corrupted uploads; resuming at an offset within one
coordinator process. Not covered: continuing a half-folded sum after a coordinator crash; the
attempt is then keyed anew.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path

import numpy as np

from server.errors import StorageFullError, UploadError

__all__ = ["Accumulator", "Upload"]

TILE_BYTES = 1 << 20
MAX_CHUNK_BYTES = 1 << 20


class Upload:
    """One silo's masked vector on its way in."""

    def __init__(self, path: Path, *, length_bytes: int, sha256: bytes) -> None:
        self._path = path
        self._sha256 = sha256
        self.length_bytes = length_bytes
        self.received_bytes = 0
        self._digest = hashlib.sha256()
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)

    def append(self, offset_bytes: int, content: bytes) -> None:
        """Write one chunk at its offset.

        Raises:
            UploadError: the chunk is empty, too big, leaves a gap or runs past the end, or the
                attempt is over.
        """
        if not 0 < len(content) <= MAX_CHUNK_BYTES:
            raise UploadError(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, not {len(content)}")
        if offset_bytes != self.received_bytes:
            raise UploadError(
                f"the next chunk starts at byte {self.received_bytes}, not {offset_bytes}: "
                "ask GetUploadOffset and resume there"
            )
        if offset_bytes + len(content) > self.length_bytes:
            raise UploadError(f"the upload is longer than its signed {self.length_bytes} bytes")
        try:
            with self._path.open("r+b") as spool:
                spool.seek(offset_bytes)
                spool.write(content)
        except FileNotFoundError as error:
            raise UploadError("the attempt that this upload was for is over") from error
        self._digest.update(content)
        self.received_bytes += len(content)

    @property
    def complete(self) -> bool:
        """Whether every announced byte has arrived."""
        return self.received_bytes == self.length_bytes

    def take(self) -> np.ndarray:
        """Map the finished spool as little-endian uint32, after checking its digest.

        Raises:
            UploadError: bytes are missing, or they are not the signed ones.
        """
        if not self.complete:
            raise UploadError(f"{self.length_bytes - self.received_bytes} bytes are missing")
        if self._digest.digest() != self._sha256:
            self.discard()
            raise UploadError("the bytes are not those of the signed digest")
        return np.memmap(self._path, dtype="<u4", mode="r")

    def discard(self) -> None:
        """Forget the spool; the silo may start again at offset zero."""
        self._path.unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        self._digest = hashlib.sha256()
        self.received_bytes = 0


class Accumulator:
    """The running sum modulo 2^32 of one attempt, in a directory of its own."""

    def __init__(self, directory: Path, *, length: int) -> None:
        self._directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        self.length = length
        self._path = directory / "sum.u32"
        try:
            with self._path.open("xb") as file:
                # Reserved now: a mapping that runs out of disk ends the process, not the call.
                os.posix_fallocate(file.fileno(), 0, 4 * length)
        except OSError as error:
            raise StorageFullError(f"cannot reserve {4 * length} bytes: {error}") from error
        self.vector: np.ndarray = np.memmap(self._path, dtype="<u4", mode="r+", shape=(length,))

    def open_upload(self, silo_id: str, *, length_bytes: int, sha256: bytes) -> Upload:
        """Start the spool of one silo.

        Raises:
            UploadError: the announced length is not four bytes a coordinate.
        """
        if length_bytes != 4 * self.length:
            raise UploadError(
                f"this aggregation takes {4 * self.length} bytes, the header says {length_bytes}"
            )
        # The token keeps a stream of an earlier attempt, which may still drain, out of this spool.
        path = self._directory / f"{silo_id}.{secrets.token_hex(4)}.masked"
        return Upload(path, length_bytes=length_bytes, sha256=sha256)

    def fold(self, upload: Upload) -> None:
        """Add a finished upload to the sum, tile by tile, and delete its spool.

        Raises:
            UploadError: see :meth:`Upload.take`.
        """
        masked = upload.take()
        step = TILE_BYTES // 4
        for start in range(0, self.length, step):
            tile = slice(start, start + step)
            np.add(self.vector[tile], masked[tile], out=self.vector[tile])
        del masked
        upload.discard()

    def close(self) -> None:
        """Delete everything this attempt wrote."""
        # Safety: the mapping stays valid after the unlink until the array is dropped.
        self.vector = np.zeros(0, dtype=np.uint32)
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._directory.exists():
            raise UploadError(f"could not delete the accumulator at {os.fspath(self._directory)}")
