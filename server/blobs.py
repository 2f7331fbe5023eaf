"""Published bytes, found by their SHA-256: adapters and integer sums.

Invariants:

1. A blob's name is its digest; what is read is checked against it.
2. ``put`` returns after the bytes are on disk; writing the same bytes again changes nothing.

Covered: concurrent writers, a crash while writing, bytes altered at rest. Not covered: deleting;
the provenance chain refers to every blob.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from server.durable import private_directory, write_durably
from server.errors import BlobError

__all__ = ["BlobStore"]

DIGEST_BYTES = 32


class BlobStore:
    """A content-addressed directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory)

    def put(self, content: bytes) -> bytes:
        """Store bytes.

        Args:
            content: The bytes.

        Returns:
            Their SHA-256.
        """
        sha256 = hashlib.sha256(content).digest()
        path = self.path(sha256)
        if path.exists() and hashlib.sha256(path.read_bytes()).digest() == sha256:
            return sha256
        private_directory(path.parent)
        write_durably(path, content, mode=0o640)
        return sha256

    def get(self, sha256: bytes) -> bytes:
        """Read bytes back.

        Args:
            sha256: Their digest.

        Returns:
            The bytes.

        Raises:
            BlobError: There is no such blob, or its bytes changed on disk.
        """
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise BlobError(f"no blob {sha256.hex()}") from error
        if hashlib.sha256(content).digest() != sha256:
            raise BlobError(f"blob {sha256.hex()} is corrupt on disk: restore it from a backup")
        return content

    def path(self, sha256: bytes) -> Path:
        """Return where a blob is, or would be.

        Args:
            sha256: Its digest.

        Returns:
            The path; nothing is checked on disk.

        Raises:
            BlobError: This is not a SHA-256.
        """
        if len(sha256) != DIGEST_BYTES:
            raise BlobError(f"a blob's digest has {DIGEST_BYTES} bytes, not {len(sha256)}")
        name = sha256.hex()
        return self._directory / name[:2] / name
