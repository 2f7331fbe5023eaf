"""The bytes of one upload stream, cut where its upload takes them.

In suite v1 that is as they come. From suite v2 on it is at the borders of the digest tree's chunks:
a silo that sends pieces of its own sizes is served, and what is held of it is less than a chunk.

Covered: pieces of any size up to a chunk, which may cross a border. Not covered: the chunks' leaves
and their order, which the upload checks (``server/attempt/accumulator.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from server.attempt.accumulator import MAX_CHUNK_BYTES, Upload
from server.errors import UploadError

__all__ = ["UploadStream"]


class UploadStream:
    """One stream of an upload, from the offset that its opening names."""

    def __init__(self, upload: Upload, offset_bytes: int) -> None:
        """Start.

        Raises:
            UploadError: The offset is not where this upload goes on.
        """
        if upload.digest_id and offset_bytes != upload.received_bytes:
            raise UploadError(
                f"the upload goes on at byte {upload.received_bytes}, not {offset_bytes}: "
                "ask GetUploadOffset and resume there"
            )
        self._by_chunk = bool(upload.digest_id)
        self._length_bytes = upload.length_bytes
        self._offset_bytes = offset_bytes
        self._held = bytearray()

    def cut(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Take the next bytes; give what the upload takes now, each with its offset.

        Raises:
            UploadError: None, more than a chunk, or more than the upload has.
        """
        if not 0 < len(content) <= MAX_CHUNK_BYTES:
            raise UploadError(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, not {len(content)}")
        if not self._by_chunk:
            yield self._next(content)
            return
        while content:
            missing = self._missing_bytes()
            if not missing:
                raise UploadError(
                    f"the upload is longer than its signed {self._length_bytes} bytes"
                )
            if not self._held and len(content) == missing:
                yield self._next(content)
                return
            self._held += content[:missing]
            content = content[missing:]
            if not self._missing_bytes():
                chunk = bytes(self._held)
                self._held.clear()
                yield self._next(chunk)

    def _missing_bytes(self) -> int:
        """How many bytes the chunk at hand lacks; 0 too where the upload ends."""
        whole = min(MAX_CHUNK_BYTES, self._length_bytes - self._offset_bytes)
        return whole - len(self._held)

    def _next(self, chunk: bytes) -> tuple[int, bytes]:
        offset_bytes = self._offset_bytes
        self._offset_bytes += len(chunk)
        return offset_bytes, chunk
