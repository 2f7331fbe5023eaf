"""Published bytes in a directory, found by their SHA-256: adapters and integer sums.

Invariants, beside those of ``server/store/blobs/storage.py``:

1. ``put`` returns after the bytes and their entry in the directory are on disk.
2. No blob is ever copied into memory: what is written is streamed, what is read is a memory map or
   a stream of chunks.

Covered: blobs larger than memory, concurrent writers, a crash while writing, bytes altered at rest.
Not covered: deleting, because the provenance chain refers to every blob; a file that is altered
while it is mapped.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from federation.adapter.encoding import Buffer
from ops.files import private_directory, sync_directory
from server.errors import BlobError
from server.store.blobs.storage import CHUNK_BYTES, BlobStorage, blob_key

__all__ = ["BlobStore"]

_MODE = 0o600
_PARTIAL = ".partial"


class BlobStore(BlobStorage):
    """A content-addressed directory. One process writes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory)
        for left_over in directory.glob(f"*{_PARTIAL}"):
            # What a crash interrupted was never named by a record.
            left_over.unlink(missing_ok=True)

    def put(self, content: Buffer | Iterable[Buffer]) -> bytes:
        """Store bytes; returns their SHA-256."""
        parts = (content,) if isinstance(content, bytes | bytearray | memoryview) else content
        digest = hashlib.sha256()
        partial = self._directory / f"{secrets.token_hex(8)}{_PARTIAL}"
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                # The umask may have taken bits away, and never adds any.
                os.fchmod(file.fileno(), _MODE)
                for part in parts:
                    for piece in _pieces(part):
                        digest.update(piece)
                        _write(file.fileno(), piece)
                os.fsync(file.fileno())
            path = self.path(digest.digest())
            private_directory(path.parent)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_directory(path.parent)
        return digest.digest()

    def get(self, sha256: bytes) -> memoryview:
        """Map bytes read-only, after checking them; valid for as long as they are referred to.

        Raises:
            BlobError: There is no such blob, or its bytes changed on disk.
        """
        try:
            with self.path(sha256).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                content = (
                    memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                    if size
                    else memoryview(b"")
                )
        except FileNotFoundError as error:
            raise BlobError(f"no blob {sha256.hex()}") from error
        if hashlib.sha256(content).digest() != sha256:
            raise _corrupt(sha256)
        return content

    def chunks(self, sha256: bytes, offset_bytes: int = 0) -> Iterator[bytes]:
        """Stream bytes from an offset on; an altered blob never arrives whole.

        Raises:
            BlobError: There is no such blob, or its bytes changed on disk.
        """
        try:
            file = self.path(sha256).open("rb")
        except FileNotFoundError as error:
            raise BlobError(f"no blob {sha256.hex()}") from error
        with file:
            file.seek(offset_bytes)
            digest = hashlib.sha256()
            chunk = file.read(CHUNK_BYTES)
            if not chunk and not offset_bytes and digest.digest() != sha256:
                raise _corrupt(sha256)
            while chunk:
                digest.update(chunk)
                following = file.read(CHUNK_BYTES)
                if not following and not offset_bytes and digest.digest() != sha256:
                    raise _corrupt(sha256)
                yield chunk
                chunk = following

    def size_bytes(self, sha256: bytes) -> int:
        """Return how long a blob is, without reading it.

        Raises:
            BlobError: There is no such blob.
        """
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError as error:
            raise BlobError(f"no blob {sha256.hex()}") from error

    def path(self, sha256: bytes) -> Path:
        """Return where a blob is, or would be; nothing is checked on disk.

        Raises:
            BlobError: This is not a SHA-256.
        """
        return self._directory / blob_key(sha256)


def _pieces(part: Buffer) -> Iterator[memoryview]:
    view = memoryview(part)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def _write(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _corrupt(sha256: bytes) -> BlobError:
    return BlobError(f"blob {sha256.hex()} is corrupt on disk: restore it from a backup")
