"""Aggregations: the signed descriptor, how far it came, whose upload is in the sum, how it ended.

Invariants:

1. A row appears, with the signature that makes it one, before any silo sees the descriptor.
2. Phases close in order and never open again. Once the third is closed the survivors are fixed:
   no upload is folded any more.
3. Generation k of the sum holds the uploads of folds 1 to k; a silo is folded once.
4. An aggregation ends once, and its outcome never changes.
5. With the descriptor stand the families that each silo reported ready with, and with each closed
   phase who answered in it.

Covered: the transitions. Not covered: the messages (``server/store/messages.py``) and the bytes of
the sum (``server/attempt/accumulator.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, and_, func, insert, select, update

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from secagg.descriptor import AggregationId, SignedDescriptor
from server.errors import StoreError
from server.figures import STEPS
from server.store.database import Database
from server.store.schema import IDENTITY, aggregations, folds, rounds

__all__ = ["AggregationOutcome", "AggregationRow", "Aggregations", "matches"]

SURVIVORS_CLOSED: Final = 3
"""R0 to R2 closed: the survivors are declared."""


class AggregationOutcome(StrEnum):
    """How an aggregation ended."""

    OPEN = ""
    RELEASED = "released"
    """Its sum was published."""
    ABORTED = "aborted"
    """Before survivors were declared; another attempt may follow."""
    SKIPPED = "skipped"
    """After survivors were declared; its round is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationRow:
    """One aggregation."""

    identity: AggregationId
    descriptor: SignedDescriptor
    phases_closed: int
    """How many of R0 to R4 are closed."""
    families: Mapping[str, tuple[str, ...]]
    """Silo to the families it reported ready with; empty in a row of an earlier version."""
    members: tuple[tuple[str, ...], ...]
    """Who answered in each closed phase; shorter in a row of an earlier version."""
    folded: tuple[str, ...]
    """Whose upload is in the sum, in the order of the folds."""
    outcome: AggregationOutcome

    @property
    def survivors_declared(self) -> bool:
        """Whether silos may have signed survivors, so that no other attempt is allowed."""
        return self.phases_closed >= SURVIVORS_CLOSED

    @property
    def survivors(self) -> tuple[str, ...]:
        """U3 in ascending order; empty until it is declared."""
        return tuple(sorted(self.folded)) if self.survivors_declared else ()


def matches(table: Table, identity: AggregationId) -> ColumnElement[bool]:
    """Select the rows of one aggregation, in a table with the five columns of an identity."""
    return and_(*(table.c[name] == getattr(identity, name) for name in IDENTITY))


class Aggregations:
    """The tables of aggregations and folds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, signed: SignedDescriptor, families: Mapping[str, tuple[str, ...]]) -> None:
        """Keep a descriptor, and with what families each silo is ready, before anybody sees it.

        Raises:
            StoreError: There is an aggregation of this identity.
        """
        identity = signed.descriptor.identity
        with self._database.transaction() as connection:
            if self._row(connection, identity) is not None:
                raise StoreError(f"{identity} was opened before")
            connection.execute(
                insert(aggregations).values(
                    **{name: getattr(identity, name) for name in IDENTITY},
                    descriptor=secagg_wire.descriptor_to_proto(signed).SerializeToString(),
                    families_json=json.dumps(dict(families), sort_keys=True),
                    members_json="[]",
                    phases_closed=0,
                    outcome=AggregationOutcome.OPEN.value,
                )
            )

    def close_phase(
        self, identity: AggregationId, phases_closed: int, members: tuple[str, ...]
    ) -> None:
        """Note that a phase is closed; the same again changes nothing.

        ``phases_closed`` counts this one, and ``members`` answered in it, in ascending order.

        Raises:
            StoreError: The phase before is not closed, or a later one is, or it is all over, or the
                phase was closed with other members.
        """
        with self._database.transaction() as connection:
            row = self._require_open(connection, identity)
            known = _members(row)
            if row.phases_closed == phases_closed and known[-1:] == (members,):
                return
            if row.phases_closed != phases_closed - 1:
                raise StoreError(f"{identity}: {row.phases_closed} phases are closed")
            self._update(
                connection,
                identity,
                phases_closed=phases_closed,
                members_json=json.dumps([*known, members]),
            )

    def folded(self, identity: AggregationId) -> tuple[str, ...]:
        """Return whose upload is in the sum, in the order of the folds."""
        with self._database.transaction() as connection:
            return self._folded(connection, identity)

    def fold(self, identity: AggregationId, silo_id: str, generation: int) -> None:
        """Make a new generation of the sum the current one; the same again changes nothing.

        The generation adds the silo's upload; its number is how many uploads it holds.

        Raises:
            StoreError: The survivors are declared, the silo is in the sum, or a generation is
                missing before this one.
        """
        with self._database.transaction() as connection:
            row = self._require_open(connection, identity)
            folded = self._folded(connection, identity)
            if len(folded) == generation and folded[-1] == silo_id:
                return
            if row.phases_closed != SURVIVORS_CLOSED - 1:
                raise StoreError(f"{identity}: uploads are not collected now")
            if silo_id in folded or generation != len(folded) + 1:
                raise StoreError(f"{identity}: fold {generation} of {silo_id} does not follow")
            connection.execute(
                insert(folds).values(
                    **{name: getattr(identity, name) for name in IDENTITY},
                    generation=generation,
                    silo_id=silo_id,
                )
            )

    def end(self, identity: AggregationId, outcome: AggregationOutcome) -> bool:
        """Note how an aggregation ended, and say whether it ended only now; again changes nothing.

        Raises:
            StoreError: It has ended before, in another way.
        """
        with self._database.transaction() as connection:
            known = self._row(connection, identity)
            if known is not None and known.outcome == outcome.value:
                return False
            self._require_open(connection, identity)
            self._update(connection, identity, outcome=outcome.value)
            return True

    def get(self, identity: AggregationId) -> AggregationRow | None:
        """Find an aggregation."""
        rows = self._list(matches(aggregations, identity))
        return rows[0] if rows else None

    def list(self, run_id: str) -> tuple[AggregationRow, ...]:
        """Return every aggregation of a run, by round, step, part and attempt."""
        return self._list(aggregations.c.run_id == run_id)

    def unfinished(self) -> tuple[AggregationRow, ...]:
        """Return the aggregations that have not ended, of whatever run, by run and identity."""
        return self._list(aggregations.c.outcome == AggregationOutcome.OPEN.value)

    def released(self, run_id: str, round_number: int) -> tuple[AggregationRow, ...]:
        """Return the aggregations whose sums made a round, by step and part.

        Steps that were skipped or are not closed are left out.
        """
        return self._list(
            and_(
                aggregations.c.run_id == run_id,
                aggregations.c.round == round_number,
                aggregations.c.outcome == AggregationOutcome.RELEASED.value,
            )
        )

    def newest(self, run_id: str, round_number: int, step: int) -> AggregationRow | None:
        """Return the last attempt at a step."""
        rows = self._list(
            and_(
                aggregations.c.run_id == run_id,
                aggregations.c.round == round_number,
                aggregations.c.step == step,
            )
        )
        return rows[-1] if rows else None

    def newest_attempt(self, run_id: str, round_number: int, step: int) -> int:
        """Return the number of the newest attempt opened, by whatever version; 0 before the first.

        A version before this table kept its attempts in ``rounds`` alone. An attempt there counts
        from its first step on: while silos train, none is open.
        """
        with self._database.transaction() as connection:
            newest = connection.execute(
                select(func.max(aggregations.c.attempt)).where(
                    aggregations.c.run_id == run_id,
                    aggregations.c.round == round_number,
                    aggregations.c.step == step,
                )
            ).scalar()
            entered = connection.execute(
                select(rounds.c.attempt, rounds.c.phases_unix_s).where(
                    rounds.c.run_id == run_id,
                    rounds.c.round == round_number,
                    rounds.c.step == step,
                )
            ).all()
        opened = {phase.value for phase in STEPS}
        stepped: list[int] = [
            row.attempt for row in entered if opened & json.loads(row.phases_unix_s).keys()
        ]
        return max([int(newest or 0), *stepped])

    def _list(self, condition: ColumnElement[bool]) -> tuple[AggregationRow, ...]:
        order = [aggregations.c[name] for name in IDENTITY]
        with self._database.transaction() as connection:
            rows = connection.execute(select(aggregations).where(condition).order_by(*order)).all()
            return tuple(
                _aggregation(row, self._folded(connection, _identity(row))) for row in rows
            )

    def _require_open(self, connection: Connection, identity: AggregationId) -> Any:
        row = self._row(connection, identity)
        if row is None or row.outcome != AggregationOutcome.OPEN.value:
            raise StoreError(f"{identity} is not open")
        return row

    @staticmethod
    def _row(connection: Connection, identity: AggregationId) -> Any:
        return connection.execute(
            select(aggregations).where(matches(aggregations, identity))
        ).first()

    @staticmethod
    def _folded(connection: Connection, identity: AggregationId) -> tuple[str, ...]:
        query = select(folds.c.silo_id).where(matches(folds, identity)).order_by(folds.c.generation)
        return tuple(connection.execute(query).scalars())

    @staticmethod
    def _update(connection: Connection, identity: AggregationId, **values: Any) -> None:
        connection.execute(
            update(aggregations).where(matches(aggregations, identity)).values(**values)
        )


def _identity(row: Any) -> AggregationId:
    return AggregationId(**{name: getattr(row, name) for name in IDENTITY})


def _members(row: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(members) for members in json.loads(row.members_json))


def _aggregation(row: Any, folded: tuple[str, ...]) -> AggregationRow:
    return AggregationRow(
        identity=_identity(row),
        descriptor=secagg_wire.descriptor_from_proto(
            secagg_pb2.Descriptor.FromString(row.descriptor)
        ),
        phases_closed=row.phases_closed,
        families={silo: tuple(names) for silo, names in json.loads(row.families_json).items()},
        members=_members(row),
        folded=folded,
        outcome=AggregationOutcome(row.outcome),
    )
