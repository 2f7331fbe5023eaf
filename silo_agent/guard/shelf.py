"""``serve_dir``: what passed, in peft's form, and the link that a site's server reads.

::

    serve_dir/12-<sha256>/    the adapter of round 12, with its card, as an export writes it
    serve_dir/current         a link to one of them; absent where nothing may be served

Invariants:

1. A directory has its name only once it is whole and on disk; what a crash left is deleted by the
   next write.
2. ``current`` is replaced, never changed: whoever follows it finds one adapter or the other.
3. Nothing else in ``serve_dir`` is touched: what has no name of the guard's is the operator's. A
   ``current`` that is no link is refused.

Covered: kill and power loss at any point. Not covered: two silos with one ``serve_dir``; a server
that reads a directory for longer than ``keep`` rounds.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from federation.adapter.export import ExportError, write_peft_adapter
from federation.plan.plan import Plan
from ops.files import sync_directory
from silo_agent.errors import GuardError

__all__ = ["CURRENT", "Shelf", "name_of"]

CURRENT: Final = "current"
_NAME: Final = re.compile(r"(\d{1,10})-[0-9a-f]{64}")
_PARTIAL: Final = ".guard-"


def name_of(round_number: int, adapter_sha256: str) -> str:
    """The directory of one adapter."""
    return f"{round_number}-{adapter_sha256}"


class Shelf:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def holds(self, name: str) -> bool:
        """Whether an adapter is there, whole."""
        return (self._directory / name).is_dir()

    @property
    def current(self) -> str | None:
        """What is served: a name; None where there is no link of the guard's."""
        try:
            target = (self._directory / CURRENT).readlink()
        except OSError:
            return None
        return str(target) if _NAME.fullmatch(str(target)) else None

    def put(
        self,
        name: str,
        tensors: Mapping[str, np.ndarray],
        *,
        plan: Plan,
        provenance: Mapping[str, str],
        card: str,
    ) -> None:
        """Write an adapter, unless it is there.

        Raises:
            GuardError: The disk refused, or the tensors are no adapter of the plan's.
        """
        if self.holds(name):
            return
        partial = self._directory / f"{_PARTIAL}{secrets.token_hex(6)}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for left_over in self._directory.glob(f"{_PARTIAL}*"):
                _delete(left_over)
            write_peft_adapter(
                tensors,
                partial,
                base=plan.model.base,
                rank=plan.model.lora_rank,
                alpha=plan.model.lora_alpha,
                target=plan.model.target,
                provenance=provenance,
                card=card,
            )
            sync_directory(partial)
            partial.rename(self._directory / name)
            sync_directory(self._directory)
        except (OSError, ExportError) as error:
            raise GuardError(f"cannot write {self._directory / name}: {error}") from error

    def point(self, name: str | None) -> None:
        """Serve an adapter that is there, or none.

        Raises:
            GuardError: The disk refused, or ``current`` is somebody else's.
        """
        link = self._directory / CURRENT
        if not os.path.lexists(link) and name is None:
            return
        if os.path.lexists(link) and not link.is_symlink():
            raise GuardError(f"{link} is no link, so it is not the guard's: move it away")
        if link.is_symlink() and str(link.readlink()) == name:
            return
        try:
            if name is None:
                link.unlink()
            else:
                fresh = self._directory / f"{_PARTIAL}{secrets.token_hex(6)}"
                fresh.symlink_to(name)
                fresh.replace(link)
            sync_directory(self._directory)
        except OSError as error:
            raise GuardError(f"cannot switch {link}: {error}") from error

    def prune(self, *, keep: int) -> None:
        """Delete the oldest adapters past ``keep``; the served one stays.

        Raises:
            GuardError: The disk refused.
        """
        try:
            if not self._directory.is_dir():
                return
            served = self.current
            own = [
                path
                for path in self._directory.iterdir()
                if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
            ]
            own.sort(key=lambda path: (path.name == served, path.stat().st_mtime_ns), reverse=True)
            for path in own[keep:]:
                # Renamed first: no half of an adapter has an adapter's name.
                gone = self._directory / f"{_PARTIAL}{secrets.token_hex(6)}"
                path.rename(gone)
                shutil.rmtree(gone)
        except OSError as error:
            raise GuardError(f"cannot tidy up {self._directory}: {error}") from error


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
