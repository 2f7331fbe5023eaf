"""Writing a file so that it is either the old one or the new one, whatever crashes when.

Invariant: ``replace_file`` returns only after the content and the directory entry are on disk;
before that, readers see the previous content.

Covered: power loss and kill at any point. Not covered: disks that lie about flushing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["append_line", "is_partial", "replace_file", "sync_directory"]

_PRIVATE = 0o600


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write the parts to ``path`` durably and at once; readable by the owner alone."""
    temporary = path.with_name(f".{path.name}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, _PRIVATE), "wb") as file:
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
