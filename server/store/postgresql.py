"""What PostgreSQL needs to behave as the store expects; imported when a connection is made.

Invariants:

1. A text that came from a network never makes a statement fail: PostgreSQL has no U+0000, so it is
   kept as U+FFFD, which is in no name that is looked up.
2. A transaction whose process hangs does not keep the others out for ever.

Covered: psycopg 3. Not covered: other drivers.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import Connection
from psycopg.types.string import StrDumper, StrDumperUnknown

__all__ = ["adapt"]

IDLE_TIMEOUT_S: Final = 60
"""The longest pause within one transaction."""


class _Text(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd"))


class _UnknownText(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd"))


def adapt(connection: Connection[Any]) -> None:
    """Set up a new connection of psycopg, on which nothing was executed."""
    connection.adapters.register_dumper(str, _Text)
    connection.adapters.register_dumper(str, _UnknownText)
    # For the session, so that it is not undone with the first transaction.
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
    connection.commit()
