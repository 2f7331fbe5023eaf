"""A disk and a process that can stop between any two instructions that matter.

`Disk` stands between the code under test and ``os.write``, ``os.fsync`` and ``os.replace``. Before
and after each of them, in the middle of a write, and around every send there is an *instant*. An
armed disk raises `Crash` at the k-th instant; from then on the dead process can change nothing.

What a crash leaves: after a kill, all that was written; after a power cut, of each file what was
flushed, and of each directory the entries that were flushed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


class Crash(BaseException):
    """kill -9 at this very instruction. No handler of the code under test may stop it."""


class Disk:
    """Counts instants, notes what is flushed, and kills when armed."""

    def __init__(self) -> None:
        self._real = {name: getattr(os, name) for name in ("write", "fsync", "replace")}
        self._countdown: int | None = None
        self._running = False
        self._dead = False
        self._flushed_bytes: dict[tuple[int, int], int] = {}
        self._flushed_entries: dict[tuple[int, int], frozenset[str]] = {}
        self._patches = [
            mock.patch.object(os, name, getattr(self, f"_{name}")) for name in self._real
        ]
        self.crashes = 0

    def attach(self) -> None:
        for patch in self._patches:
            patch.start()

    def detach(self) -> None:
        for patch in self._patches:
            patch.stop()

    @property
    def left(self) -> int | None:
        """Instants until death that the last process did not reach."""
        return self._countdown

    @contextmanager
    def process(self, countdown: int | None) -> Iterator[None]:
        """Run one process, which dies at the given instant if it gets that far."""
        self._running, self._dead, self._countdown = True, False, countdown
        try:
            yield
        finally:
            self._running, self._dead = False, False

    def instant(self) -> None:
        if not self._running:
            return
        if self._dead:
            raise Crash
        if self._is_last():
            raise Crash

    def cut_power(self, directory: Path) -> None:
        """Undo below a directory whatever was not flushed."""
        entries = self._flushed_entries.get(_inode(directory.stat()), frozenset())
        for path in sorted(directory.iterdir()):
            if path.is_dir():
                self.cut_power(path)
            elif path.name not in entries:
                path.unlink()
            else:
                status = path.stat()
                flushed = self._flushed_bytes.get(_inode(status), 0)
                os.truncate(path, min(flushed, status.st_size))

    def flushed(self, path: Path) -> bytes:
        """The part of a file that a power cut would leave."""
        content = path.read_bytes()
        return content[: self._flushed_bytes.get(_inode(path.stat()), 0)]

    def _is_last(self) -> bool:
        if self._countdown is None:
            return False
        self._countdown -= 1
        if self._countdown > 0:
            return False
        self._dead = True
        self.crashes += 1
        return True

    def _write(self, descriptor: int, content: bytes) -> int:
        self.instant()
        if self._running and self._is_last():
            self._real["write"](descriptor, content[: len(content) // 2])
            raise Crash
        written = self._real["write"](descriptor, content)
        self.instant()
        return written

    def _fsync(self, descriptor: int) -> None:
        # Nothing is flushed in truth: the test's directory need not outlive the test.
        self.instant()
        status = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            self._flushed_entries[_inode(status)] = frozenset(os.listdir(descriptor))
        else:
            self._flushed_bytes[_inode(status)] = status.st_size
        self.instant()

    def _replace(self, source: Path, target: Path) -> None:
        self.instant()
        self._real["replace"](source, target)
        self.instant()


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
