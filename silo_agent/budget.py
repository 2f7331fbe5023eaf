"""What the privacy ledger says, read beside a daemon that holds it.

Invariants:

1. The ledger's file is copied and the copy is opened, so the daemon's lock is neither needed nor
   disturbed, and nothing here can write to the ledger.
2. The copy passes the same checks as the ledger itself: framing, checksums, chain.
3. A record that the daemon was writing at that moment is not counted; it is as if the question had
   been asked a millisecond earlier.

ε is not additive: the parts that runs would have cost alone add up to more than the total.

Covered: a running daemon, none at all. Not covered: comparing with heads that peers have seen.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp.config import Mode
from dp.journal import Journal
from dp.ledger import Ledger
from dp.rdp import ORDERS, epsilon
from silo_agent.errors import LocalStoreError

__all__ = ["LEDGER_FILE", "Budget", "RunBudget", "read_budget"]

LEDGER_FILE = "privacy.ledger"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBudget:
    """What one run was charged."""

    run: str
    """Its id."""
    epsilon: float
    """ε as if it were the only run."""
    attempts: int
    """Charged attempts."""
    unprotected: int
    """Attempts among them in mode ``none``, which no ε describes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The whole ledger in figures."""

    unit: str
    """Whose contribution ε is about."""
    epsilon_spent: float
    """Of everything charged so far."""
    epsilon_cap: float
    """The silo's own cap."""
    epsilon_left: float
    """Cap less spent."""
    delta: float
    """At which every ε here is computed."""
    runs: tuple[RunBudget, ...]
    """In the order of their first charge."""


def read_budget(data_dir: Path, *, delta: float, epsilon_cap: float) -> Budget:
    """Read the ledger of a data directory.

    Args:
        data_dir: The silo's.
        delta: From the site's policy.
        epsilon_cap: From the site's policy.

    Raises:
        LocalStoreError: The ledger cannot be read.
        PrivacyError: It is damaged.
    """
    source = data_dir / LEDGER_FILE
    if not source.exists():
        return _budget(0.0, (), delta=delta, epsilon_cap=epsilon_cap)
    with tempfile.TemporaryDirectory(prefix="chorale-budget-") as directory:
        copy = Path(directory) / LEDGER_FILE
        try:
            shutil.copyfile(source, copy)
        except OSError as error:
            raise LocalStoreError(f"cannot read {source}: {error}") from error
        with Ledger.open(copy, delta=delta, epsilon_cap=epsilon_cap) as ledger:
            spent = ledger.spent_epsilon()
        runs = _runs(copy, delta)
    return _budget(spent, runs, delta=delta, epsilon_cap=epsilon_cap)


def _budget(
    spent: float, runs: tuple[RunBudget, ...], *, delta: float, epsilon_cap: float
) -> Budget:
    return Budget(
        unit="silo",
        epsilon_spent=spent,
        epsilon_cap=epsilon_cap,
        epsilon_left=max(0.0, epsilon_cap - spent),
        delta=delta,
        runs=runs,
    )


def _runs(path: Path, delta: float) -> tuple[RunBudget, ...]:
    journal = Journal(path)
    try:
        records = [record for record in journal.load() if record["kind"] == "spent"]
    finally:
        journal.close()
    totals: dict[str, np.ndarray] = {}
    attempts: dict[str, int] = {}
    unprotected: dict[str, int] = {}
    for record in records:
        run = record["run"]
        totals[run] = totals.get(run, np.zeros(len(ORDERS))) + np.array(record["rdp"])
        attempts[run] = attempts.get(run, 0) + 1
        unprotected[run] = unprotected.get(run, 0) + (record["mode"] == Mode.NONE.value)
    return tuple(
        RunBudget(
            run=run,
            epsilon=epsilon(total, delta),
            attempts=attempts[run],
            unprotected=unprotected[run],
        )
        for run, total in totals.items()
    )
