"""Files that appear complete or not at all, and survive a power cut.

Covered: content, mode, rename, and the directory entry, each synced. Not covered: file systems
that lie about fsync.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["private_directory", "sync_directory", "write_durably"]


def private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, or make an existing one so.

    Args:
        path: The directory.

    Returns:
        The same path.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically.

    Args:
        path: The file; its directory exists.
        content: All of its bytes.
        mode: Permission bits, set before the first byte is written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            # The umask may have taken bits away, and never adds any.
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
