"""A backup of a coordinator: everything that it needs to go on elsewhere, of one instant.

Invariants:

1. The coordinator may run meanwhile. The instant is one at which nobody writes to the database;
   the audit log is read at it too, and its newest record says that the backup was taken.
2. No secret of an open attempt is in it: boxes and revealed shares die with the attempt, also in
   copies. So an attempt that was open is not continued from a backup (``server/site/restore.py``).
3. Every file is read whole and checked against the digest that the manifest states for it; an
   adapter against its name.
4. When the newest one was whole stands in a file of the data directory, for the coordinator's
   monitoring: a backup that is not made any more shows.
5. Keys of the CA, the server and the coordinator are in it. It is for its owner alone.

Covered: SQLite and PostgreSQL (rows go to a SQLite file, so that either can be restored to either),
adapters in a directory; of adapters in object storage their digests. Not covered: encryption; pipe
the file through a tool made for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO, Final

from federation.audit import lines as audit_chain
from federation.audit.lines import ChainHead
from ops.audit_log import read_log
from ops.files import replace_file, sync_directory
from server.audit import AuditEvent, AuditLog
from server.config import CoordinatorConfig
from server.errors import BackupError
from server.site.backup_file import MAX_FILE_BYTES, NAMES, Manifest, Member, write_backup
from server.store.copying import copy_rows
from server.store.database import Database
from server.store.records import named_blobs
from server.store.served import database_in_force

__all__ = ["DATABASE", "backup", "backup_to", "last_backup_unix_s", "note_backup"]

DATABASE: Final = "coordinator.db"
NEWEST: Final = "backup.newest"
_NOTE_BYTES: Final = 32
READS: Final = 5


def backup_to(path: Path, config: CoordinatorConfig) -> Manifest:
    """Write a backup to a new file, readable for its owner alone.

    Raises:
        BackupError: The file exists, or the coordinator is not in a state to be backed up.
        AuditChainError: The audit log is broken.
        CoordinatorError: Something of it is damaged or cannot be reached; the text says what.
    """
    if path.exists():
        raise BackupError(f"{path} exists: a backup is never overwritten")
    # A fixed name: what a killed backup left, keys included, goes with the next.
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another backup to {path} runs") from None
        try:
            os.ftruncate(descriptor, 0)
            manifest = backup(file, config)
            file.flush()
            os.fsync(descriptor)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    sync_directory(path.parent)
    note_backup(config.data_dir)
    return manifest


def note_backup(data_dir: Path) -> None:
    """Note that a backup is whole, for a service that may run as another user than who took it.

    Raises:
        OSError: The directory takes no file.
    """
    note, owner = data_dir / NEWEST, data_dir.stat()
    replace_file(note, (f"{int(time.time())}\n".encode(),))
    if os.geteuid() == 0:
        os.chown(note, owner.st_uid, owner.st_gid)


def last_backup_unix_s(data_dir: Path) -> float:
    """When the newest backup was whole; 0 if none was, or where nobody can tell."""
    try:
        with (data_dir / NEWEST).open("rb") as file:
            return float(int(file.read(_NOTE_BYTES)))
    except (OSError, ValueError):
        return 0.0


def backup(sink: BinaryIO, config: CoordinatorConfig) -> Manifest:
    """Write a backup to a stream, which need not be seekable.

    Raises:
        BackupError: The coordinator is not in a state to be backed up.
        AuditChainError: The audit log is broken.
        CoordinatorError: Something of it is damaged or cannot be reached; the text says what.
    """
    now = time.time()
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=config.data_dir) as scratch:
        database = Path(scratch) / DATABASE
        audit, head, blobs = _snapshot(config, database, now)
        contents: dict[str, Path | bytes] = {**_small_files(config), "audit.jsonl": audit}
        contents[DATABASE] = database
        if config.adapters_url is None:
            # Not through a BlobStore: opening one tidies up what the coordinator is just writing.
            contents |= {
                f"adapters/{name[:2]}/{name}": config.adapters / name[:2] / name for name in blobs
            }
        manifest = Manifest(
            taken_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            version=_version(),
            schema=Database.newest_revision(),
            audit_index=head.index,
            audit_sha256=head.sha256,
            adapters_url=config.adapters_url or "",
            blobs=blobs,
            files=tuple(_member(name, content) for name, content in contents.items()),
        )
        write_backup(sink, manifest, contents, at_unix_s=int(now))
    return manifest


def _snapshot(
    config: CoordinatorConfig, target: Path, now: float
) -> tuple[bytes, ChainHead, tuple[str, ...]]:
    """Copy the database; returns the audit log of the same instant, and which blobs are named."""
    with ExitStack() as opened:
        source = opened.enter_context(_database(database_in_force(config)))
        if source.revision() != source.newest_revision():
            raise BackupError(
                "the database is of another version of chorale than this command: start the "
                "coordinator of this version once, or use the command of that one"
            )
        with source.transaction():
            # Nobody writes until this block ends; the copy goes on without holding anybody up.
            AuditLog(config.paths.audit).append(
                AuditEvent.BACKUP_TAKEN, taken_unix_s=int(now), database=target.name
            )
            audit = read_log(config.paths.audit)
            connection = opened.enter_context(source.snapshot())
        head = audit_chain.check_chain(audit)
        blobs = named_blobs(connection)
        with _database(f"sqlite:///{target}", create=True) as copy:
            copy.migrate()
            copy_rows(connection, copy)
            copy.scrub()
    target.chmod(0o600)
    return audit, head, blobs


@contextmanager
def _database(url: str, *, create: bool = False) -> Iterator[Database]:
    database = Database(url, create=create)
    try:
        yield database
    finally:
        database.close()


def _small_files(config: CoordinatorConfig) -> dict[str, Path | bytes]:
    """Configuration and keys, of one state: a certificate may be renewed at this moment."""
    before = _read_small(config)
    for _ in range(READS):
        after = _read_small(config)
        if after == before:
            return dict(after)
        before = after
    raise BackupError("the keys change while they are read: try again")


def _read_small(config: CoordinatorConfig) -> dict[str, bytes]:
    paths = config.paths
    files = [paths.config, paths.protocol_key, paths.root_public_key]
    for directory in (paths.pki, paths.admin):
        files += sorted(path for path in directory.rglob("*") if not path.is_dir())
    contents = {}
    for path in files:
        name = path.relative_to(config.data_dir).as_posix()
        if path.name.startswith("."):
            # A file that is being written.
            continue
        if NAMES.fullmatch(name) is None or not stat.S_ISREG(path.lstat().st_mode):
            raise BackupError(f"{name} is no file of a coordinator: remove it")
        try:
            contents[name] = path.read_bytes()
        except FileNotFoundError:
            # Replaced meanwhile; the next look finds out.
            continue
    return contents


def _member(name: str, content: Path | bytes) -> Member:
    if isinstance(content, bytes):
        return Member(
            name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
    try:
        size = content.stat().st_size
    except FileNotFoundError as error:
        raise BackupError(f"{name} is missing: the coordinator's records name it") from error
    if size > MAX_FILE_BYTES:
        raise BackupError(f"{name} is too long")
    if name.startswith("adapters/"):
        # Its name is its digest; writing it compares the two.
        return Member(name=name, size_bytes=size, sha256=name[-64:])
    with content.open("rb") as file:
        return Member(
            name=name, size_bytes=size, sha256=hashlib.file_digest(file, "sha256").hexdigest()
        )


def _version() -> str:
    try:
        return version("chorale")
    except PackageNotFoundError:
        return "unknown"
