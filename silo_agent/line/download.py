"""Published bytes on their way in: streamed to a file, resumed wherever the connection broke.

Invariants:

1. Every leg begins where the last one stopped, so that all legs together are the bytes, once.
2. A cut is survived for the transport's patience after the last progress: bytes renew it.
3. Never more than the allowed size is written, and what was written has the digest asked for.
4. The file lies beside the adapters of this silo. It becomes one only when it is kept, durably and
   under its own SHA-256; what is not kept is deleted. Nothing is ever held as a whole in memory.

Covered: cut connections, oversize and corrupt answers, crashes. Not covered: a sender of one byte
at a time, which holds the caller up for as long as the allowed size lasts; whether the bytes may be
adopted (``silo_agent/follow/chain.py``).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

from chorale.v1 import round_pb2 as pb
from ops.files import sync_directory
from silo_agent.errors import LocalStoreError, TransportError
from silo_agent.line.channel import stream_timeout_s

__all__ = ["PARTIAL", "DownloadStream", "Incoming", "mapped"]

PARTIAL: Final = ".partial"
"""How the name of a file that is not whole yet ends."""


class DownloadStream:
    """One download, in as many legs as it takes."""

    def __init__(self, stub: Any, *, sha256: bytes, sink: BinaryIO, max_bytes: int) -> None:
        self._stub = stub
        self._sha256 = sha256
        self._sink = sink
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._offset_bytes = 0
        self.progress_at = time.monotonic()
        """When bytes last arrived."""
        self.overtaken = False
        """A download has one leg at a time, so none overtakes another."""

    def receive(self) -> None:
        """Fetch what is missing, in one leg.

        Raises:
            grpc.RpcError: the leg was cut or refused.
            TransportError: more bytes than allowed.
        """
        stream = self._stub.FetchBlob(
            pb.FetchBlobRequest(sha256=self._sha256, offset_bytes=self._offset_bytes),
            timeout=stream_timeout_s(self._max_bytes),
        )
        for part in stream:
            if not part.content:
                continue
            self._offset_bytes += len(part.content)
            if self._offset_bytes > self._max_bytes:
                stream.cancel()
                raise TransportError(f"published bytes exceed the {self._max_bytes} allowed")
            self._digest.update(part.content)
            self._sink.write(part.content)
            self.progress_at = time.monotonic()

    def require_digest(self) -> None:
        """Check what was written.

        Raises:
            TransportError: it is not what was asked for.
        """
        if self._digest.digest() != self._sha256:
            raise TransportError("published bytes do not have the digest they were asked by")


class Incoming:
    """One file being filled."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f".{secrets.token_hex(8)}{PARTIAL}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file: BinaryIO = os.fdopen(os.open(self._path, flags, 0o600), "w+b")
        """Where the transport writes."""

    def content(self) -> memoryview:
        """A memory map of what was written; it stays valid when the file is kept or deleted."""
        self.file.flush()
        return mapped(self.file)

    def keep(self) -> None:
        """Make the bytes an adapter of this silo, durably, under their SHA-256.

        Raises:
            LocalStoreError: The disk refused.
        """
        name = hashlib.sha256(self.content()).hexdigest()
        try:
            os.fsync(self.file.fileno())
            self._path.replace(self._path.with_name(name))
            sync_directory(self._path.parent)
        except OSError as error:
            raise LocalStoreError(f"cannot keep adapter {name[:12]}: {error}") from error

    def close(self) -> None:
        """Delete the file, unless it was kept."""
        self.file.close()
        self._path.unlink(missing_ok=True)


def mapped(file: BinaryIO) -> memoryview:
    """A read-only memory map of a file; it stays valid when the file is closed or deleted."""
    if not os.fstat(file.fileno()).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
