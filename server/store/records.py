"""Provenance records, in the order of the chain.

Covered: each round of a run has one record, and none is ever replaced. Not covered: that they link
up; whoever reads a chain verifies it.
"""

from __future__ import annotations

from sqlalchemy import func, insert, select

import federation.wire as federation_wire
from chorale.v1 import aggregation_pb2
from federation.record import AdapterRecord
from server.errors import StoreError
from server.store.database import Database
from server.store.schema import records

__all__ = ["Records"]


class Records:
    """The table of records."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, record: AdapterRecord) -> None:
        """Add the next link of a run's chain.

        Args:
            record: The signed record.

        Raises:
            StoreError: It is not the next round's.
        """
        with self._database.transaction() as connection:
            count = connection.execute(
                select(func.count()).select_from(records).where(records.c.run_id == record.run_id)
            ).scalar_one()
            if record.round != count:
                raise StoreError(f"record {record.round} of {record.run_id} is not the next one")
            connection.execute(
                insert(records).values(
                    run_id=record.run_id,
                    round=record.round,
                    adapter_sha256=record.adapter_sha256,
                    record=federation_wire.record_to_proto(record).SerializeToString(),
                )
            )

    def list(self, run_id: str) -> tuple[AdapterRecord, ...]:
        """Return a run's chain.

        Args:
            run_id: The run.

        Returns:
            From record 0 on; empty for an unknown run.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(records.c.record).where(records.c.run_id == run_id).order_by(records.c.round)
            ).scalars()
            content = list(rows)
        return tuple(
            federation_wire.record_from_proto(aggregation_pb2.AdapterRecord.FromString(row))
            for row in content
        )
