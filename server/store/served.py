"""Which database a data directory is served from, for commands that nobody told.

The database's URL may be in the environment of the service alone. A command beside it would look
into SQLite, find an empty database or none, and take a backup of it or advise to restore. So who
makes a database the served one writes down which it is: the coordinator when it serves, a founding
to which a URL was given, a restoration.

Ordered invariants:

1. The record has no password: of a URL are kept its user, host, port and database, and the settings
   of an allow-list. SQLite inside the data directory is written relative to it, so that a copy of
   the directory never opens the original's database.
2. Where no URL is configured, the recorded one is in force; what it needs besides, libpq finds as
   ever (``PGPASSFILE``, ``passfile=``).
3. Where one is configured, it names the recorded database, or nothing is opened. A database that
   was moved is said to be by removing the record; a backup is restored into a new directory.

Covered: SQLite and PostgreSQL, directories that have no record yet. Not covered: a host that is
left to ``PGHOST`` or a service file, two names of one host (they count as two).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ops.files import replace_file
from server.config import CoordinatorConfig
from server.errors import ConfigurationError, ServedDatabaseError
from server.store.database import POSTGRESQL, is_sqlite, spoken

__all__ = ["RECORD", "database_in_force", "named_by", "record_served"]

RECORD: Final = "database.json"
DEFAULT: Final = "coordinator.db"
VARIABLE: Final = "CHORALE_COORDINATOR_DATABASE_URL"
MAX_BYTES: Final = 1 << 14
_KEPT: Final = frozenset(
    {"user", "host", "port", "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey"}
)
"""Settings of libpq that say where a database is and how it is reached, and hold no secret."""


def database_in_force(config: CoordinatorConfig) -> str:
    """The URL of the database that is to be opened; an empty one in the configuration is none.

    Raises:
        ServedDatabaseError: Another one is configured than the one that is served.
        ConfigurationError: The record is damaged.
    """
    configured, data_dir = config.database_url, config.data_dir
    served = _read(data_dir)
    if not configured:
        return _text(served or _default(data_dir))
    try:
        given = make_url(configured)
    except (ArgumentError, ValueError):
        # Whoever opens it says so, without repeating it.
        return configured
    if served is not None and _place(given) != _place(served):
        raise ServedDatabaseError(
            f"{data_dir} is served from the {spoken(served)}, and {_source()} names the "
            f"{spoken(given)}: nothing was opened. To move a coordinator: chorale backup, then "
            "chorale restore into a new directory. If the database itself was moved, remove "
            f"{data_dir / RECORD} and start the coordinator"
        )
    return configured


def named_by(config: CoordinatorConfig) -> str:
    """Say, for people, what it is that names the database in force."""
    data_dir = config.data_dir
    if config.database_url:
        return f"{_source()} names it"
    if _read(data_dir) is not None:
        return f"{data_dir / RECORD} names it, for the coordinator served it"
    return (
        "nothing names another: no database_url in coordinator.toml, no "
        f"{VARIABLE} in this environment, no {data_dir / RECORD}"
    )


def record_served(url: str, data_dir: Path) -> None:
    """Write down that this database, opened before, is the one, unless that is what is written.

    ``data_dir`` is absolute.

    Raises:
        OSError: It cannot be written.
    """
    parsed = make_url(url)
    if is_sqlite(parsed):
        path = Path(parsed.database or "").absolute()
        inside = path.is_relative_to(data_dir)
        kept = URL.create("sqlite", database=str(path.relative_to(data_dir) if inside else path))
    else:
        query = {name: value for name, value in parsed.query.items() if name in _KEPT}
        kept = URL.create(
            POSTGRESQL,
            username=parsed.username,
            host=parsed.host,
            port=parsed.port,
            database=parsed.database,
            query=query,
        )
    content = json.dumps({"url": _text(kept)}).encode() + b"\n"
    record = data_dir / RECORD
    if not record.exists() or record.read_bytes() != content:
        replace_file(record, (content,))


def _read(data_dir: Path) -> URL | None:
    record = data_dir / RECORD
    try:
        with record.open("rb") as file:
            url = make_url(json.loads(file.read(MAX_BYTES))["url"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ArgumentError) as error:
        raise ConfigurationError(
            f"{record} is damaged: remove it, and start the coordinator, which writes it"
        ) from error
    return url.set(database=str(data_dir / (url.database or ""))) if is_sqlite(url) else url


def _default(data_dir: Path) -> URL:
    return URL.create("sqlite", database=str(data_dir / DEFAULT))


def _place(url: URL) -> tuple[str, ...]:
    """What makes two URLs name one database."""
    if is_sqlite(url):
        return ("sqlite", str(Path(url.database or "").resolve()))
    host, port = (url.query.get(name) for name in ("host", "port"))
    database = url.database or url.username or ""
    return ("server", str(url.host or host or "").lower(), str(url.port or port or 5432), database)


def _source() -> str:
    told = any(name.upper() == VARIABLE for name in os.environ)
    return VARIABLE if told else "database_url of coordinator.toml"


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
