"""Published bytes in S3-compatible storage, under ``<prefix>/<two digits>/<SHA-256>``.

The layout is that of the directory, so that copying one over makes the other.

Invariants, beside those of ``server/store/blobs/storage.py``:

1. Nothing is handed out that was not read whole and checked: an object is first fetched into a
   bounded local cache, from which views and chunks come. A poisoned object never enters it.
2. ``put`` returns after the storage has acknowledged all bytes, and says how many it holds.
3. No object longer than ``MAX_BYTES`` is fetched, whatever the storage says of it later.

Covered: outages that pass within the client's own retries, objects that are absent, altered,
shortened or replaced. Not covered: versioning and locks of buckets, which protect against deletion.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import BaseError, NotFoundError

from federation.adapter.encoding import Buffer
from server.errors import BlobError, BlobUnavailableError
from server.store.blobs.bucket import connect, parse_url
from server.store.blobs.directory import BlobStore
from server.store.blobs.storage import CHUNK_BYTES, BlobStorage, blob_key

__all__ = ["ObjectBlobs"]

MAX_BYTES: Final = 1 << 31
"""Above every adapter and every sum."""
CACHE_BYTES: Final = 4 << 30
"""The newest blobs that are kept locally; one is kept whatever its size."""
PART_BYTES: Final = 8 << 20
RETRIES: Final = 6


class ObjectBlobs(BlobStorage):
    """A prefix of a bucket, and a cache of it."""

    def __init__(
        self, url: str, *, cache: Path, retries: int = RETRIES, cache_bytes: int = CACHE_BYTES
    ) -> None:
        bucket, prefix = parse_url(url)
        self._cache_directory = cache
        self._cache = BlobStore(cache)
        self._cache_bytes = cache_bytes
        self._fetching = threading.Lock()
        self._objects = connect(bucket, prefix, retries=retries)

    def put(self, content: Buffer | Iterable[Buffer]) -> bytes:
        """Store bytes; returns their SHA-256.

        Raises:
            BlobUnavailableError: The storage did not take them; the same call may be repeated.
        """
        sha256 = self._cache.put(content)
        path = self._cache.path(sha256)
        try:
            with _answered("put", sha256):
                # One request, or a multipart upload completed at its end: never half an object.
                obstore.put(self._objects, blob_key(sha256), path, chunk_size=PART_BYTES)
        except BlobUnavailableError:
            raise
        except BlobError as error:
            raise BlobUnavailableError("the object storage has no such bucket") from error
        held = self.size_bytes(sha256)
        if held != path.stat().st_size:
            raise BlobUnavailableError(f"the storage holds {held} bytes of blob {sha256.hex()}")
        with self._fetching:
            self._trim(keep=path)
        return sha256

    def get(self, sha256: bytes) -> memoryview:
        """Map the cached file read-only, after a check; valid for as long as it is referred to.

        Raises:
            BlobError: There is no such blob, or its bytes changed in the storage.
            BlobUnavailableError: The storage cannot be reached.
        """
        cached = self._cached(sha256)
        if cached is not None:
            return cached
        # One at a time: of many silos that ask for the same adapter the first one fetches it.
        with self._fetching:
            cached = self._cached(sha256)
            if cached is None:
                self._fetch(sha256)
                cached = self._cache.get(sha256)
                self._trim(keep=self._cache.path(sha256))
            return cached

    def chunks(self, sha256: bytes, offset_bytes: int = 0) -> Iterator[bytes]:
        """Stream bytes from an offset on.

        Raises:
            BlobError: There is no such blob, or its bytes changed in the storage.
            BlobUnavailableError: The storage cannot be reached.
        """
        content = self.get(sha256)
        for start in range(offset_bytes, len(content), CHUNK_BYTES):
            yield bytes(content[start : start + CHUNK_BYTES])

    def size_bytes(self, sha256: bytes) -> int:
        """Return how long the object is, as the storage says, without fetching it.

        Raises:
            BlobError: There is no such object.
            BlobUnavailableError: The storage cannot be reached.
        """
        with _answered("head", sha256):
            return int(obstore.head(self._objects, blob_key(sha256))["size"])

    def _cached(self, sha256: bytes) -> memoryview | None:
        """What the cache holds of a blob; a damaged file is deleted."""
        path = self._cache.path(sha256)
        if not path.exists():
            return None
        try:
            content = self._cache.get(sha256)
            # What is used is not the first to go.
            os.utime(path)
        except (BlobError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return None
        return content

    def _fetch(self, sha256: bytes) -> None:
        stored = self._cache.put(_bounded(self._stream(sha256), sha256))
        if stored != sha256:
            self._cache.path(stored).unlink(missing_ok=True)
            raise BlobError(
                f"blob {sha256.hex()} is corrupt in the object storage: restore it from a backup"
            )

    def _stream(self, sha256: bytes) -> Iterator[Buffer]:
        # Around the network alone: what the local disk says is not the storage's answer.
        with _answered("get", sha256):
            answer = obstore.get(self._objects, blob_key(sha256))
            for part in answer.stream(min_chunk_size=1 << 20):
                yield memoryview(part)

    def _trim(self, keep: Path) -> None:
        """Delete the cached blobs that were not used for longest, until the rest fits."""
        kept = [path for path in self._cache_directory.glob("??/*") if path != keep]
        sizes = [(path.stat().st_mtime, path.stat().st_size, path) for path in kept]
        total = keep.stat().st_size
        for _, size, path in sorted(sizes, reverse=True):
            total += size
            if total > self._cache_bytes:
                # Whoever has it mapped or open keeps it.
                path.unlink(missing_ok=True)


def _bounded(parts: Iterable[Buffer], sha256: bytes) -> Iterator[Buffer]:
    total = 0
    for part in parts:
        total += len(part)
        if total > MAX_BYTES:
            raise BlobError(f"blob {sha256.hex()} is longer than {MAX_BYTES} bytes in the storage")
        yield part


@contextmanager
def _answered(call: str, sha256: bytes) -> Iterator[None]:
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise BlobError(f"no blob {sha256.hex()}") from error
    except (BaseError, OSError) as error:
        raise BlobUnavailableError(
            f"the object storage failed at {call}: {type(error).__name__}"
        ) from error
