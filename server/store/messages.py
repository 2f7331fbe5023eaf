"""Every protocol message that a coordinator accepted, in the order in which it did.

A row has a public part, which stays for audit, and a sealed part (boxes of R1, shares of R4), which
is deleted when its aggregation ends.

Covered: one message for each silo and phase; the same again changes nothing, another is refused;
deleted secrets are overwritten in the database file. Not covered: what a message means
(``server/attempt/journal.py``); blocks that the disk itself keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update

from secagg.descriptor import AggregationId
from server.errors import StoreError
from server.store.aggregations import SURVIVORS_CLOSED, matches
from server.store.database import Database
from server.store.schema import IDENTITY, aggregations, messages

__all__ = ["Messages", "StoredMessage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMessage:
    """One accepted message."""

    phase: str
    silo_id: str
    body: bytes
    """Serialised protobuf of the public part; empty where nothing is public."""
    sealed: bytes | None = field(default=None, repr=False)
    """What only a coordinator that continues needs; None once it is deleted."""


class Messages:
    """The table of messages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, identity: AggregationId, message: StoredMessage) -> None:
        """Keep an accepted message; the same again changes nothing.

        Raises:
            StoreError: This silo has another one in this phase.
        """
        key = matches(messages, identity)
        with self._database.transaction() as connection:
            known = connection.execute(
                select(messages.c.body, messages.c.sealed).where(
                    key,
                    messages.c.phase == message.phase,
                    messages.c.silo_id == message.silo_id,
                )
            ).first()
            if known is not None:
                if (known.body, known.sealed) != (message.body, message.sealed):
                    raise StoreError(f"{message.silo_id} has another message of {message.phase}")
                return
            connection.execute(
                insert(messages).values(
                    run_id=identity.run_id,
                    round=identity.round,
                    step=identity.step,
                    part=identity.part,
                    attempt=identity.attempt,
                    phase=message.phase,
                    silo_id=message.silo_id,
                    body=message.body,
                    sealed=message.sealed,
                )
            )

    def list(self, identity: AggregationId) -> tuple[StoredMessage, ...]:
        """Return what is public of an aggregation, in the order in which it was accepted."""
        rows = self._rows(identity, messages.c.phase, messages.c.silo_id, messages.c.body)
        return tuple(
            StoredMessage(phase=row.phase, silo_id=row.silo_id, body=row.body)
            for row in rows
            if row.body
        )

    def with_secrets(self, identity: AggregationId) -> tuple[StoredMessage, ...]:
        """Return everything of an open aggregation, for a coordinator that continues it.

        The messages come in the order in which they were accepted.
        """
        return tuple(
            StoredMessage(phase=row.phase, silo_id=row.silo_id, body=row.body, sealed=row.sealed)
            for row in self._rows(identity, *messages.c)
        )

    def senders(self, identity: AggregationId, phase: str) -> tuple[str, ...]:
        """Return whose messages of a phase are kept, in the order in which they were accepted."""
        rows = self._rows(identity, messages.c.phase, messages.c.silo_id)
        return tuple(row.silo_id for row in rows if row.phase == phase)

    def newest_declared(self, phase: str, run_ids: Collection[str]) -> AggregationId | None:
        """Find the aggregation of these runs with the last message of a phase.

        Only of those whose survivors were declared.
        """
        declared = select(aggregations).where(
            *(aggregations.c[name] == messages.c[name] for name in IDENTITY),
            aggregations.c.phases_closed >= SURVIVORS_CLOSED,
        )
        with self._database.transaction() as connection:
            row = connection.execute(
                select(*(messages.c[name] for name in IDENTITY))
                .where(
                    messages.c.phase == phase,
                    messages.c.run_id.in_(run_ids),
                    declared.exists(),
                )
                .order_by(messages.c.seq.desc())
                .limit(1)
            ).first()
        return None if row is None else AggregationId(**row._asdict())

    def forget_secrets(self, identity: AggregationId) -> None:
        """Delete the sealed parts, and the messages that have no other."""
        key = matches(messages, identity)
        with self._database.transaction() as connection:
            connection.execute(delete(messages).where(key, messages.c.body == b""))
            connection.execute(update(messages).where(key).values(sealed=None))

    def _rows(self, identity: AggregationId, *columns: Any) -> Sequence[Any]:
        with self._database.transaction() as connection:
            query = select(*columns).where(matches(messages, identity)).order_by(messages.c.seq)
            return connection.execute(query).all()
