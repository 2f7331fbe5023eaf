"""A verified copy of the privacy ledger, for commands beside a daemon that holds the ledger.

Invariants:

1. The file is copied and the copy is opened, so the daemon's lock is neither needed nor disturbed,
   and nothing here can write to the ledger.
2. The copy passes the same checks as the ledger itself: framing, checksums, chain, and that it
   holds the highest head this silo remembers. A ledger that is lost, damaged, of another format or
   older than that is refused: nothing is said of it that a daemon would not start with.
3. A record that the daemon was writing at that moment is not in it; it is as if the question had
   been asked a millisecond earlier.

Covered: a running daemon, none at all. Not covered: comparing with heads that only peers or the
coordinator have seen.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dp.accounting.charge import UnitKind
from dp.ledger.journal import Journal
from dp.ledger.ledger import Ledger
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError

__all__ = ["LEDGER_FILE", "LedgerCopy", "ledger_copy"]

LEDGER_FILE: Final = "privacy.ledger"


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerCopy:
    """What was copied."""

    ledger: Ledger
    """Open while the context lasts."""
    records: tuple[Mapping[str, Any], ...]
    """All of it, which the ledger has verified."""


@contextmanager
def ledger_copy(
    data_dir: Path, *, delta: float, caps: Mapping[UnitKind, float]
) -> Iterator[LedgerCopy | None]:
    """Copy the ledger of a data directory and verify it; None where there was never one.

    Raises:
        LocalStoreError: The ledger cannot be read, or is gone.
        PrivacyError: It is damaged, of another format, or older than this silo remembers.
    """
    source, store = data_dir / LEDGER_FILE, LocalStore(data_dir)
    # Read before the copy is made: the daemon remembers a head after it has written it.
    remembered = store.ledger_head()
    with tempfile.TemporaryDirectory(prefix="chorale-ledger-") as directory:
        copy = Path(directory) / LEDGER_FILE
        records = _copied(source, copy)
        if not records:
            if remembered is not None or store.chain_heads():
                raise LocalStoreError(
                    f"{source} is missing, but this silo has one: put the newest copy of it back; "
                    "without it nobody knows what was spent"
                )
            yield None
            return
        with Ledger.open(copy, delta=delta, caps=caps) as ledger:
            if remembered is not None:
                ledger.require_contains(*remembered)
            yield LedgerCopy(ledger=ledger, records=records)


def _copied(source: Path, copy: Path) -> tuple[Mapping[str, Any], ...]:
    """The records of the copy; empty if there is no ledger, or a crash left it without any."""
    try:
        shutil.copyfile(source, copy)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise LocalStoreError(f"cannot read {source}: {error}") from error
    journal = Journal(copy)
    try:
        return tuple(journal.load())
    finally:
        journal.close()
