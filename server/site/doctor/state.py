"""The doctor's steps about what the coordinator keeps: database, disk, audit log, packages.

Invariants: nothing is migrated, created or repaired here.

Covered: a database that is absent, unreachable, read-only, behind, or of another program or a newer
version; a full disk; an audit chain that does not hold. Not covered: the content of the tables.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from federation.errors import AuditChainError, TornRecordError
from ops.audit_log import verify_log
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.doctor.installed import judge_packages as judge_installed
from ops.files import prove_writable
from secagg import hybrid
from server.config import CoordinatorConfig
from server.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreUnwritableError,
)
from server.store.database import Database, spoken
from server.store.served import database_in_force, named_by

__all__ = ["judge_audit", "judge_database", "judge_disk", "judge_packages"]

LEAST_FREE_BYTES: Final = 256 << 20
ENOUGH_FREE_BYTES: Final = 2 << 30
ADAPTERS_A_ROUND: Final = 16
"""Blobs, sums, accumulators and spools of a round in progress, in sizes of the largest adapter."""
_LOST: Final = "only if it is lost, from a backup: chorale restore FILE --data NEW_DIRECTORY"
_AS_THE_SERVICE: Final = (
    "give this command what the service has (systemctl cat chorale-coordinator): "
    "CHORALE_COORDINATOR_DATABASE_URL, PGPASSFILE"
)
_MIB: Final = 1 << 20


def judge_database(config: CoordinatorConfig) -> Verdict:
    """Reachable, of this program, up to date and writable."""
    named = ""
    try:
        named = named_by(config)
        url = database_in_force(config)
        database = Database(url)
    except ConfigurationError as error:
        return failed(str(error), _AS_THE_SERVICE)
    except StoreError as error:
        return failed(f"{error}; {named}", f"{_AS_THE_SERVICE}. {_LOST}")
    try:
        return _judge(database, spoken(make_url(url)), named)
    except StoreBusyError as error:
        return failed(
            str(error),
            "wait for it, or end it: a command of chorale's, a backup, somebody's sqlite3 or psql "
            "(lsof FILE; SELECT * FROM pg_locks)",
        )
    except StoreUnwritableError as error:
        return failed(str(error), "free space on its disk, or let its user write to it")
    except (StoreError, SQLAlchemyError, OSError) as error:
        # The error's own text may hold the URL with its password.
        reason = error.__cause__ or error
        return failed(
            f"the {spoken(make_url(url))} cannot be used: {type(reason).__name__}: "
            f"{_cause(error)}; {named}",
            f"{_AS_THE_SERVICE}; then check that it is there and that its user may write it",
        )
    finally:
        database.close()


def judge_disk(config: CoordinatorConfig) -> Verdict:
    """Free space for adapters, and a file that can really be written."""
    places = tuple(dict.fromkeys((config.data_dir, _existing(config.adapters))))
    needed = max(LEAST_FREE_BYTES, ADAPTERS_A_ROUND * _largest_bytes(config.adapters))
    for place in places:
        free = shutil.disk_usage(place).free
        try:
            prove_writable(place)
        except OSError as error:
            return failed(
                f"{place} takes no file: {error.strerror}", "free space there, or remount it rw"
            )
        if free < needed:
            return failed(
                f"{free // _MIB} MiB free in {place}; a round may take {needed // _MIB} MiB",
                "free space, or set adapters_dir of coordinator.toml to a larger disk",
            )
        if free < max(ENOUGH_FREE_BYTES, 4 * needed):
            return warning(f"{free // _MIB} MiB free in {place}", "free space before a long run")
    free = min(shutil.disk_usage(place).free for place in places)
    return ok(f"{free // _MIB} MiB free; a round may take {needed // _MIB} MiB")


def judge_audit(config: CoordinatorConfig) -> Verdict:
    """The audit log's whole chain."""
    keep = "keep the file as it is: it is evidence. chorale audit verify names the first bad record"
    try:
        records = verify_log(config.paths.audit)
    except TornRecordError as error:
        return warning(
            str(error),
            "nothing that was acknowledged is lost: the next record goes over it, at the latest "
            "when chorale-coordinator serve starts, and torn_write_cut says so in the log",
        )
    except AuditChainError as error:
        return failed(str(error), keep)
    except OSError as error:
        return failed(
            f"{config.paths.audit} cannot be read: {error.strerror}",
            f"check that this is the coordinator's directory (--data, CHORALE_DATA). {_LOST}",
        )
    if records == 0:
        return failed("the audit log is empty: even its first record is gone", keep)
    return ok(f"{records} audit records, every one in place")


def judge_packages() -> Verdict:
    """The installed packages against this version's requirements."""
    versions, problems = judge_installed()
    if problems:
        return failed("; ".join(problems), "pip install --upgrade chorale")
    shown = ", ".join(f"{name} {versions[name]}" for name in ("grpcio", "protobuf", "sqlalchemy"))
    return ok(f"{len(versions)} packages as required ({shown})")


def judge_post_quantum() -> Verdict:
    """Whether this machine can sum a run of suite v2."""
    if hybrid.is_available():
        return ok("the library has ML-KEM-768, which runs of suite v2 need")
    return failed(
        "the library has no ML-KEM-768, so runs of suite v2 fail at their first drop-out",
        "pip install --upgrade cryptography (50 or newer brings an OpenSSL that has it)",
    )


def _judge(database: Database, what: str, named: str) -> Verdict:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).parents[2] / "store" / "migrations"))
    known = [script.revision for script in scripts.walk_revisions()]
    with database.transaction() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        return failed(
            f"the {what} has no schema of chorale's; {named}", f"{_AS_THE_SERVICE}. {_LOST}"
        )
    if current not in known:
        return failed(
            f"the {what} has revision {current[:40]!r}, which this version does not "
            "know: a newer version wrote it, or another program",
            f"install the version of chorale that wrote it. {_AS_THE_SERVICE}",
        )
    if current != known[0]:
        return warning(
            f"the {what} has revision {current}, this version's is {known[0]}",
            "back it up (chorale backup); chorale-coordinator serve migrates it at its start",
        )
    database.check_writable()
    return ok(f"{what}, revision {current}, writable; {named}")


def _cause(error: BaseException) -> str:
    """What the driver itself said, without the statement; never the URL."""
    cause: BaseException | None = error
    while cause is not None:
        original = getattr(cause, "orig", None)
        if original is not None:
            return str(original).splitlines()[0] if str(original) else type(original).__name__
        cause = cause.__cause__
    return "no further detail"


def _largest_bytes(directory: Path) -> int:
    """The size of the largest file below; one that goes meanwhile does not count."""
    largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                largest = max(largest, (Path(folder) / name).lstat().st_size)
    return largest


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
