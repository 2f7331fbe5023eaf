"""Leaving a federation: the silo's own mark.

``leaving.json`` is the mark. While it is there nothing new begins here, and the daemon stops: with
``drain`` after the attempt that is open, without it at once. Joining again removes it.

Invariant: a mark that cannot be read counts as one: the silo does not take part again by a damaged
file.

Covered: the mark. Not covered: what the coordinator is told, and what is deleted
(``silo_agent/books/leave.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.files import replace_file, sync_directory
from silo_agent.errors import LocalStoreError

__all__ = ["MARK", "Departure", "Leaving"]

MARK: Final = "leaving.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaving:
    """The mark."""

    drain: bool
    """Finish the attempt that is open first."""
    by: str
    """The operating system's user who said so; empty where the file does not say."""
    at_unix_s: int
    """When; 0 where the file does not say."""


class Departure:
    """The mark in one data directory; each call looks anew."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / MARK

    def mark(self) -> Leaving | None:
        """Whether this silo leaves."""
        try:
            said = json.loads(self._path.read_bytes())
            return Leaving(
                drain=bool(said["drain"]), by=str(said["by"]), at_unix_s=int(said["at_unix_s"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return Leaving(drain=False, by="", at_unix_s=0)

    def set(self, leaving: Leaving) -> None:
        """Leave, durably; from now on a running daemon begins nothing new.

        Raises:
            LocalStoreError: The disk refused.
        """
        said = {"drain": leaving.drain, "by": leaving.by, "at_unix_s": leaving.at_unix_s}
        try:
            replace_file(self._path, (json.dumps(said).encode() + b"\n",))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._path}: {error}") from error

    def clear(self) -> None:
        """Take part again: for a silo that has just joined.

        Raises:
            LocalStoreError: The disk refused.
        """
        try:
            if self._path.exists():
                self._path.unlink()
                sync_directory(self._path.parent)
        except OSError as error:
            raise LocalStoreError(f"cannot remove {self._path}: {error}") from error
