"""Where published bytes are kept: what every kind of storage promises.

Invariants:

1. A blob's name is its SHA-256. ``put`` returns when the blob is durable; the same again changes
   nothing, or mends what was damaged. A blob appears complete or not at all.
2. What is read is checked against its name: altered or shortened bytes are a ``BlobError``, and no
   caller ever gets all of them.
3. Storage that cannot be reached is a ``BlobUnavailableError``; what failed may be tried again.

Calls block, on a disk or on a network: on the event loop they go through a thread.

Covered: a directory (``server/store/blobs/directory.py``), S3-compatible storage
(``server/store/blobs/objects.py``). Not covered: deleting, because the provenance chain refers to
every blob.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from federation.adapter.encoding import Buffer
from server.errors import BlobError

__all__ = ["CHUNK_BYTES", "BlobStorage", "blob_key", "in_threads"]

CHUNK_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 32


class BlobStorage(ABC):
    """Published bytes, found by their SHA-256: adapters and integer sums."""

    @abstractmethod
    def put(self, content: Buffer | Iterable[Buffer]) -> bytes:
        """Store bytes, in one piece or in parts that follow each other; returns their SHA-256."""

    @abstractmethod
    def get(self, sha256: bytes) -> memoryview:
        """Map bytes, after checking them; the view is valid for as long as it is referred to."""

    @abstractmethod
    def chunks(self, sha256: bytes, offset_bytes: int = 0) -> Iterator[bytes]:
        """Stream bytes from an offset on, in pieces of ``CHUNK_BYTES``.

        A stream from 0 is checked against the digest before its last chunk; one from elsewhere is
        for the reader to check as a whole.
        """

    @abstractmethod
    def size_bytes(self, sha256: bytes) -> int:
        """Return how long a blob is, without reading it; BlobError if there is none."""


def blob_key(sha256: bytes) -> str:
    """Where every kind of storage keeps a blob: ``<two digits>/<SHA-256>``, in hex.

    Raises:
        BlobError: This is not a SHA-256.
    """
    if len(sha256) != _DIGEST_BYTES:
        raise BlobError(f"a blob's digest has {_DIGEST_BYTES} bytes, not {len(sha256)}")
    return f"{sha256.hex()[:2]}/{sha256.hex()}"


async def in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate without blocking the event loop."""
    while True:
        # A thread cannot hand StopIteration to a coroutine.
        chunk = await asyncio.to_thread(next, chunks, None)
        if chunk is None:
            return
        yield chunk
