"""Writing a file so that it is either the old one or the new one, whatever crashes when.

Invariants: ``replace_file`` returns only after the content and the directory entry are on disk, and
before that readers see the previous content; of several writers each writes a file of its own, and
the last one to finish stays. ``append_line`` is for one writer at a time.

Covered: power loss and kill at any point. Not covered: disks that lie about flushing; what a kill
left of a file that was not finished stays beside it, under a name that ``is_partial`` knows.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = [
    "append_line",
    "is_partial",
    "private_directory",
    "private_file",
    "prove_writable",
    "replace_file",
    "sync_directory",
]

PROOF_BYTES = 1 << 16
_PRIVATE = 0o600


def private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, or make an existing one so; returns it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: Path, *, create: bool) -> None:
    """Make a file one that only its owner can open; a database gives those beside it the same mode.

    With ``create`` it is made, empty, where there is none; else that is an error.

    Raises:
        OSError: It is absent and not to be made, or not this user's.
    """
    if create and not path.exists():
        path.touch(mode=_PRIVATE)
    # By name: opening and closing a database that is in use here would end its locks.
    path.chmod(_PRIVATE)


def prove_writable(directory: Path) -> None:
    """Write a file and forget it: what a disk's free bytes and mode say is not what it takes.

    Raises:
        OSError: The disk is full, fails, is read-only or gone.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(PROOF_BYTES))
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, parts: Iterable[bytes | memoryview], *, mode: int = _PRIVATE) -> None:
    """Write a file durably and at once; its directory exists.

    The permission bits are set before the first byte is written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            # The umask may have taken bits away, and never adds any.
            os.fchmod(file.fileno(), mode)
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # Also on an interrupt: no half-written copy of private data stays behind.
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def is_partial(path: Path) -> bool:
    """Whether this is what a crash left of ``replace_file``."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def append_line(path: Path, line: bytes) -> None:
    """Append one line durably, after cutting off what a crash left of the line before."""
    created = not path.exists()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, _PRIVATE), "r+b") as file:
        end = _end_of_last_line(file.fileno())
        file.truncate(end)
        file.seek(end)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if created:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_last_line(descriptor: int) -> int:
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 4096)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
