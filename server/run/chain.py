"""One run's signed records: the chain, its next link, and the task that starts from its head.

Invariant: what is shown here is in the store. A link is signed first, stored second (in the
transaction that closes its round), and taken over third.

Covered: building and reading. Not covered: verifying (``federation/chain/record.py``).
"""

from __future__ import annotations

from dataclasses import replace

from federation.chain.record import (
    AdapterRecord,
    Place,
    RecordKind,
    RecordPart,
    last_position_of,
    place_at,
)
from federation.chain.task import RoundTask
from secagg.roster import SignedRoster
from server.context import RunContext

__all__ = ["Chain"]


class Chain:
    """The records of one run."""

    def __init__(self, run_id: str, context: RunContext, *, sums_per_round: int) -> None:
        self._run_id = run_id
        self._sums_per_round = sums_per_round
        self._context = context
        self._records: list[AdapterRecord] = []
        self.reload()

    @property
    def head(self) -> AdapterRecord:
        """The newest record."""
        return self._records[-1]

    @property
    def next_position(self) -> int:
        """Index of the next record; the initial one has 0."""
        return len(self._records)

    @property
    def next_place(self) -> Place:
        """The release that the next record closes."""
        return place_at(self.next_position, self._sums_per_round)

    def of_round(self, round_number: int) -> tuple[AdapterRecord, ...]:
        """The records of a round so far, by step."""
        return tuple(record for record in self._records if record.round == round_number)

    def between(self, start: int, stop: int) -> tuple[AdapterRecord, ...]:
        """The records from one position up to another, which is left out."""
        return tuple(self._records[start:stop])

    def ending(self, round_number: int) -> AdapterRecord:
        """The record that a closed round ended with; the initial one for round 0."""
        return self._records[last_position_of(round_number, self._sums_per_round)]

    def reload(self) -> bool:
        """Take over what the store holds; say whether there is more than was known."""
        known = len(self._records)
        self._records = list(self._context.store.records.list(self._run_id))
        return len(self._records) > known

    def link(
        self,
        *,
        kind: RecordKind,
        adapter_sha256: bytes,
        parts: tuple[RecordPart, ...] = (),
        restored_round: int | None = None,
    ) -> AdapterRecord:
        """Sign the record that follows the head; it is not part of the chain yet."""
        place = self.next_place
        return replace(
            self.head,
            round=place.round,
            step=place.step,
            parent_sha256=self.head.adapter_sha256,
            adapter_sha256=adapter_sha256,
            parts=parts,
            restored_round=restored_round,
            kind=kind,
            record_parent_sha256=self.head.sha256,
        ).sign(self._context.signing_key)

    def append(self, record: AdapterRecord) -> None:
        """Take over a record that is in the store."""
        self._records.append(record)

    def sign_task(
        self,
        roster: SignedRoster,
        deadline_unix_s: int,
        *,
        invited: tuple[str, ...] = (),
        local_epochs: int = 0,
    ) -> RoundTask:
        """What the silos are asked to do from the head; from suite v2 on it names whom it asks."""
        place = self.next_place
        return RoundTask(
            run_id=self._run_id,
            round=place.round,
            step=place.step,
            plan_sha256=self.head.plan_sha256,
            roster_sha256=roster.roster.sha256,
            roster_epoch=roster.roster.epoch,
            base_model_sha256=self.head.base_model_sha256,
            adapter_sha256=self.head.adapter_sha256,
            ready_deadline_unix_s=deadline_unix_s,
            invited=invited,
            local_epochs=local_epochs,
        ).sign(self._context.signing_key)
