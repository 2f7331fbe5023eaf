"""A file that published bytes are streamed to, until it is an adapter of this silo or nothing.

Invariant: the file lies beside the adapters of this silo. It becomes one only when it is kept,
durably and under its own SHA-256; what is not kept is deleted. Nothing is ever held as a whole in
memory.

Covered: crashes. Not covered: how the bytes come (``silo_agent/line/download.py``).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from pathlib import Path
from typing import BinaryIO, Final

from ops.files import sync_directory
from silo_agent.errors import LocalStoreError

__all__ = ["PARTIAL", "Incoming", "mapped"]

PARTIAL: Final = ".partial"
"""How the name of a file that is not whole yet ends."""


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
