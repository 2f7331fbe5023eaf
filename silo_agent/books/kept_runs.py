"""What runs leave in a silo's data directory, and how much of it stays over the years.

What grows, and where it ends::

    evolve/<run>/        a method's stores: successes, personal adapter. Of ``max_kept_runs`` runs
    state.json           the adopted heads of ``MAX_HEADS`` runs (``local_store.py``); heads of
                         peers, of members of the roster alone (``peer_heads.py``)
    adapters/            ``MAX_KEPT`` files (``local_store.py``)
    runs/                ``MAX_RUNS`` runs (``heard_runs.py``)
    rounds.jsonl,        the newest ``MAX_REPORT_BYTES`` of each (``local_store.py``)
    evaluation.jsonl,
    choice.jsonl,
    guard.jsonl
    spool/               what the aggregation at hand needs (``attempt/unfinished.py``)
    .*.partial           files that a crash left unfinished; deleted here when the daemon starts
    privacy.ledger,      these only grow: they prove what was spent, said and decided. The site's
    audit.jsonl,         limits bound the charges of a day, and the daemon's pauses how many tasks
    approvals.jsonl      and attempts without one a coordinator can have written down

Ordered invariants:

1. A directory of ``evolve`` goes only when there are more than ``max_kept_runs``. It goes whole: it
   is renamed first, and what a crash leaves of that is deleted by the next start, so no run finds
   half of its stores.
2. The run that is asked for now keeps its directory. Of the others go first those for which this
   silo was never charged an upload, and among equals the one that was used longest ago. A
   coordinator can invent runs alone; an upload is charged only after other silos of the cohort have
   signed for the attempt, and by the site's budget. So invented runs displace one another.
3. What is no directory of that form, and every link, is the operator's: it stays, uncounted.
4. What goes depends on names, times of use and the ledger, not on what is in a directory.

Covered: thousands of runs, crashes. Not covered: overwriting what the disk held of deleted files;
a coordinator and a cohort that together run more than ``max_kept_runs`` real runs: those displace
the stores of older ones, as honest runs do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dp.ledger.ledger import Ledger
from ops.logs.logger import get_logger
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError
from silo_agent.machine.limits import METHOD_STORES

__all__ = ["KeptRuns", "run_directory"]

_NAME: Final = re.compile(r"[0-9a-f]{16}")
_GOING: Final = ".going"
_FORSAKEN_S: Final = 3600.0
"""A command beside the daemon has finished its file by then."""

log = get_logger(__name__)


def run_directory(data_dir: Path, run_id: str) -> Path:
    """The directory of a run's method, which may be absent; nothing is made, moved or used."""
    return data_dir / METHOD_STORES / _directory_of(run_id)


class KeptRuns:
    """The bounds of one data directory; safe to call from several threads."""

    def __init__(
        self, data_dir: Path, *, store: LocalStore, ledger_of: Callable[[], Ledger], most: int
    ) -> None:
        """Delete what is past the bounds already, and what crashes left.

        ``most`` is how many directories of methods stay; ``ledger_of`` is the ledger open now.
        """
        self._data_dir = data_dir
        self._store = store
        self._ledger_of = ledger_of
        self._most = most
        _discard_partials(data_dir)
        self._make_room("")

    def directory(self, run_id: str) -> Path:
        """The directory of a run's method, used now; room is made for it, and it may be absent."""
        name = _directory_of(run_id)
        self._make_room(name)
        path = run_directory(self._data_dir, run_id)
        if path.is_dir():
            os.utime(path)
        return path

    def limit_heads(self) -> None:
        """Forget the heads of runs past the bound; called after a chain was followed."""
        try:
            self._store.limit_heads(self._took_part)
        except LocalStoreError as error:
            # They are needed by nobody, and the next call tries again.
            log.warning("heads_not_forgotten", detail=error)

    def _took_part(self, run_id: str) -> bool:
        return self._ledger_of().debits_of_run(run_id).releases > 0

    def _make_room(self, keep: str) -> None:
        root = self._data_dir / METHOD_STORES
        try:
            entries = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
            for path in entries:
                if path.name.endswith(_GOING):
                    shutil.rmtree(path)
            runs = [path for path in entries if _NAME.fullmatch(path.name) and path.name != keep]
            if len(runs) + bool(keep) <= self._most:
                return
            # Every run that is worked on has a head.
            took_part = {
                _directory_of(run) for run in self._store.chain_heads() if self._took_part(run)
            }
            runs.sort(key=lambda path: (path.name in took_part, path.stat().st_mtime_ns, path.name))
            for path in runs[: len(runs) + bool(keep) - self._most]:
                going = path.rename(path.with_name(f".{path.name}{_GOING}"))
                shutil.rmtree(going)
                log.info("run_stores_deleted", directory=path.name)
        except FileNotFoundError:
            # Nothing was ever explored here.
            return
        except OSError as error:
            # Work does not depend on it; what is left goes the next time.
            log.warning("run_stores_not_deleted", detail=error)


def _directory_of(run_id: str) -> str:
    """A directory name of our own making: the coordinator chose the run id."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def _discard_partials(data_dir: Path) -> None:
    """Delete files that a crash left unfinished beside the ones they were to replace."""
    give_up_before = time.time() - _FORSAKEN_S
    for path in (*data_dir.glob(".*.partial"), *data_dir.glob("runs/*/.*.partial")):
        try:
            if path.lstat().st_mtime < give_up_before:
                path.unlink()
        except OSError as error:
            log.warning("partial_not_deleted", detail=error)
