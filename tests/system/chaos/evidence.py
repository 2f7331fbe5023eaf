"""What a run left behind at every party, read once all daemons have stopped.

Nothing is taken from a daemon's word: ledgers and audit logs are opened with their own checks, the
coordinator's database is read as any tool could, the witnesses' notes are the processes' own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp.ledger.journal import Journal
from secagg.descriptor import AggregationId
from server.store import Store
from server.store.aggregations import AggregationRow
from server.store.heads import HeadRow
from server.store.messages import StoredMessage
from server.store.rounds import RoundRow
from server.store.silos import SiloRow
from tests.system.chaos import witness
from tests.system.chaos.cells import COORDINATOR
from tests.system.chaos.drive import Drive, events_of

Place = tuple[Any, ...]
"""An attempt: run, round, step, part, attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloEvidence:
    """One silo's."""

    directory: Path
    ledger: tuple[dict[str, Any], ...]
    audit: tuple[dict[str, Any], ...]
    noted: tuple[dict[str, Any], ...]
    head: dict[str, Any]
    """Of the run, as ``state.json`` has it."""

    def charged(self, kind: str = "spent") -> list[Place]:
        """The attempts of one kind of ledger record."""
        return [
            tuple(one[name] for name in ("run", "round", "step", "part", "attempt"))
            for one in self.ledger
            if one["kind"] == kind
        ]

    def witnessed(self, what: str) -> list[dict[str, Any]]:
        return [one for one in self.noted if one["what"] == what]

    def events(self, event: str, round_number: int) -> list[dict[str, Any]]:
        return [
            one
            for one in self.audit
            if one["event"] == event and one["details"].get("round") == round_number
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everybody's."""

    silos: dict[str, SiloEvidence]
    audit: tuple[dict[str, Any], ...]
    """The coordinator's."""
    opened: tuple[dict[str, Any], ...]
    """Sums that the coordinator took the masks off."""
    attempts: tuple[AggregationRow, ...]
    messages: dict[AggregationId, tuple[StoredMessage, ...]]
    rounds: tuple[RoundRow, ...]
    heads: tuple[HeadRow, ...]
    members: dict[str, SiloRow]

    def attempts_of(self, round_number: int) -> list[AggregationRow]:
        return [row for row in self.attempts if row.identity.round == round_number]


def gather(drive: Drive, store: Store) -> Evidence:
    """Read everything.

    Args:
        drive: Over; no daemon runs.
        store: The coordinator's.
    """
    attempts = store.aggregations.list(drive.run_id)
    return Evidence(
        silos={silo_id: _silo(drive, silo_id) for silo_id in drive.silos},
        audit=tuple(drive.coordinator_audit()),
        opened=tuple(
            one
            for one in witness.read(drive.file(COORDINATOR, "witness"))
            if one["what"] == "opened"
        ),
        attempts=attempts,
        messages={row.identity: store.messages.with_secrets(row.identity) for row in attempts},
        rounds=store.rounds.list(drive.run_id),
        heads=store.heads.list(),
        members={row.silo_id: row for row in store.silos.list()},
    )


def _silo(drive: Drive, silo_id: str) -> SiloEvidence:
    directory = drive.loopback.silo_dir(silo_id)
    journal = Journal(directory / "privacy.ledger")
    try:
        ledger = tuple(journal.load())
    finally:
        journal.close()
    state = json.loads((directory / "state.json").read_text())
    return SiloEvidence(
        directory=directory,
        ledger=ledger,
        audit=tuple(events_of(directory / "audit.jsonl")),
        noted=tuple(witness.read(drive.file(silo_id, "witness"))),
        head=state["heads"].get(drive.run_id, {}),
    )
