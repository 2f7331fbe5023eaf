"""All rows of one database into another, of whatever kinds the two are.

Invariants: the source is read at one instant and may be written meanwhile; the target holds all
rows or none; what an open attempt keeps secret (``messages.sealed``) is not copied.

Covered: SQLite and PostgreSQL, both ways. Not covered: databases of another schema than this
version's; a snapshot is migrated before it is copied.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, select, text

from server.errors import StoreError
from server.store.database import Database
from server.store.schema import METADATA, messages

__all__ = ["copy_rows"]

BATCH: Final = 200


def copy_rows(source: Connection, target: Database) -> None:
    """Fill a database of the newest schema.

    Args:
        source: From :meth:`Database.snapshot`; of the newest schema.
        target: Migrated and empty.

    Raises:
        StoreError: The target holds rows, or one of the two failed.
    """
    with target.transaction() as connection:
        for table in METADATA.sorted_tables:
            if connection.execute(select(func.count()).select_from(table)).scalar():
                raise StoreError(f"the database holds rows in {table.name} already")
        for table in METADATA.sorted_tables:
            rows = source.execute(
                select(table).order_by(*table.primary_key.columns),
                execution_options={"yield_per": BATCH},
            )
            for batch in rows.partitions(BATCH):
                values = [kept for row in batch if (kept := _public(table is messages, row))]
                if values:
                    connection.execute(insert(table), values)
        if connection.dialect.name == "postgresql":
            # Given numbers do not move the sequence that makes the next one.
            connection.execute(
                text(
                    "SELECT setval(pg_get_serial_sequence('messages', 'seq'), "
                    "(SELECT coalesce(max(seq), 0) + 1 FROM messages), false)"
                )
            )


def _public(is_message: bool, row: Row[Any]) -> dict[str, Any] | None:  # noqa: FBT001
    """A row without its secrets; None for a message that is nothing else."""
    values = row._asdict()
    if is_message:
        if values["body"] == b"":
            return None
        values["sealed"] = None
    return values
