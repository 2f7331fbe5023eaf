"""Provenance records, in the order of the chain.

Covered: each release of a run has one record, in order of round and step, and none is ever
replaced. Not covered: that they link up, and how many steps a round has; whoever reads a chain
verifies it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BigInteger, Connection, insert, literal, select

import federation.wire as federation_wire
from chorale.v1 import aggregation_pb2
from federation.chain.record import AdapterRecord
from server.errors import StoreError
from server.store.database import Database
from server.store.schema import records

__all__ = ["Records", "named_blobs"]


class Records:
    """The table of records."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, record: AdapterRecord) -> None:
        """Add the next link of a run's chain.

        Raises:
            StoreError: It is neither of the head's next step nor of the next round's first one.
        """
        with self._database.transaction() as connection:
            head = connection.execute(
                select(records.c.round, records.c.step)
                .where(records.c.run_id == record.run_id)
                .order_by(records.c.round.desc(), records.c.step.desc())
                .limit(1)
            ).first()
            # After record 0, which is nobody's step, only a round's first step can follow.
            follows = {(0, 0)} if head is None else {(head.round + 1, 0)}
            if head is not None and head.round > 0:
                follows.add((head.round, head.step + 1))
            if (record.round, record.step) not in follows:
                raise StoreError(
                    f"the record of round {record.round}, step {record.step} of {record.run_id} "
                    "is not the next one"
                )
            connection.execute(
                insert(records).values(
                    run_id=record.run_id,
                    round=record.round,
                    step=record.step,
                    adapter_sha256=record.adapter_sha256,
                    record=federation_wire.record_to_proto(record).SerializeToString(),
                )
            )

    def page(self, run_id: str, from_position: int, limit: int) -> tuple[AdapterRecord, ...]:
        """Return at most ``limit`` records of a run's chain, in order; none behind its end."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(records.c.record)
                .where(records.c.run_id == run_id)
                .order_by(records.c.round, records.c.step)
                # As wide as the wire's number: by itself it would be an integer of 31 bits.
                .offset(literal(from_position, BigInteger))
                .limit(limit)
            ).scalars()
            return _decoded(rows)

    def newest(self, run_id: str, limit: int) -> tuple[AdapterRecord, ...]:
        """Return the end of a run's chain, in its order; empty for an unknown run."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(records.c.record)
                .where(records.c.run_id == run_id)
                .order_by(records.c.round.desc(), records.c.step.desc())
                .limit(limit)
            ).scalars()
            return _decoded(reversed(rows.all()))

    def list(self, run_id: str) -> tuple[AdapterRecord, ...]:
        """Return a run's chain, from record 0 on; empty for an unknown run."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(records.c.record)
                .where(records.c.run_id == run_id)
                .order_by(records.c.round, records.c.step)
            ).scalars()
            return _decoded(rows)


def named_blobs(connection: Connection) -> tuple[str, ...]:
    """Return the digests that records name: every adapter and sum that was ever published.

    They are in hex, ascending, each once. The database is of the newest schema.
    """
    rows = connection.execute(
        select(records.c.record), execution_options={"yield_per": 1000}
    ).scalars()
    names: set[str] = set()
    for content in rows:
        record = aggregation_pb2.AdapterRecord.FromString(content)
        sums = (record.sum_sha256, *(part.sum_sha256 for part in record.parts))
        names |= {digest.hex() for digest in (record.adapter_sha256, *sums)} - {""}
    return tuple(sorted(names))


def _decoded(rows: Iterable[bytes]) -> tuple[AdapterRecord, ...]:
    return tuple(
        federation_wire.record_from_proto(aggregation_pb2.AdapterRecord.FromString(row))
        for row in rows
    )
