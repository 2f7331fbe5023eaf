"""All rows of one database into another, of whatever kinds the two are.

Invariants: the source is read at one instant and may be written meanwhile; the target holds all
rows or none; what an open attempt keeps secret (``messages.sealed``) is not copied.

Covered: SQLite and PostgreSQL, both ways. Not covered: databases of another schema than this
version's; a snapshot is migrated before it is copied.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, inspect, select, text

from server.errors import StoreError
from server.store.database import Database
from server.store.schema import METADATA, messages

__all__ = ["copy_rows", "require_unused"]

BATCH: Final = 200


def require_unused(target: Database) -> None:
    """Refuse a database that anybody uses, before anything of it is changed.

    This version's tables may be there, without a row.

    Raises:
        StoreError: It holds something, or it failed.
    """
    revision = target.revision()
    with target.transaction() as connection:
        if not inspect(connection).get_table_names():
            return
        if revision != target.newest_revision():
            raise StoreError(
                "the database holds tables already, of another version of chorale or of another "
                "program: give an empty one"
            )
        _require_no_rows(connection)


def copy_rows(source: Connection, target: Database) -> None:
    """Fill a migrated and empty database from a snapshot (:meth:`Database.snapshot`).

    Both are of the newest schema.

    Raises:
        StoreError: The target holds rows, or one of the two failed.
    """
    with target.transaction() as connection:
        _require_no_rows(connection)
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


def _require_no_rows(connection: Connection) -> None:
    for table in METADATA.sorted_tables:
        if connection.execute(select(func.count()).select_from(table)).scalar():
            raise StoreError(
                f"the database holds rows in {table.name} already: give an empty one. If a restore "
                "that was interrupted filled it, drop that database and create it again"
            )


def _public(is_message: bool, row: Row[Any]) -> dict[str, Any] | None:  # noqa: FBT001
    """A row without its secrets; None for a message that is nothing else."""
    values = row._asdict()
    if is_message:
        if values["body"] == b"":
            return None
        values["sealed"] = None
    return values
