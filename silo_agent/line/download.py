"""Published bytes on their way in: streamed to a file, resumed wherever the connection broke.

Invariants:

1. Every leg begins where the last one stopped, so that all legs together are the bytes, once.
2. A cut is survived for the transport's patience after the last progress: bytes renew it.
3. Never more than the allowed size is written, and what was written has the digest asked for.

Covered: cut connections, oversize and corrupt answers. Not covered: a sender of one byte at a time,
which holds the caller up for as long as the allowed size lasts; what becomes of the file
(``silo_agent/line/incoming.py``); whether the bytes may be adopted
(``silo_agent/follow/chain.py``).
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, BinaryIO

from chorale.v1 import round_pb2 as pb
from silo_agent.errors import TransportError
from silo_agent.line.channel import stream_timeout_s

__all__ = ["DownloadStream"]


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
