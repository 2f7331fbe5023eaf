"""A coordinator from a backup, in a new directory.

Ordered invariants:

1. Nothing is overwritten: the directory is new or empty, and so is a database that is elsewhere.
   One that is not is left as it was, its schema included.
2. Everything is unpacked beside the directory and checked there (digests, audit chain, schema,
   adapters) before the directory takes its name; what fails before leaves nothing.
3. No run goes on by itself. Silos may be ahead of a backup: they may hold newer records, and may
   have joined or agreed on attempts that it knows nothing of. Every run that is not over rests as
   ``paused`` and says why; open attempts end. An admin resumes a run, and each silo then judges by
   what it holds itself: one that is ahead refuses the task (``chain``), an identity that it has
   joined is never joined again, survivors that it has signed are never signed again. So nothing is
   unmasked twice, whatever the backup forgot.
4. Invites that were open are spent: they may have been redeemed since.

Covered: SQLite and PostgreSQL, either from either; adapters in a directory or in object storage;
hostile files. Not covered: what an admin did after the backup (suspended, revoked and renewed
certificates, newer rosters), which must be done again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ops.audit_log import verify_log
from ops.files import private_directory, sync_directory
from server.audit import AuditEvent, AuditLog
from server.config import CoordinatorConfig, DataPaths
from server.errors import BackupError, BlobError, BlobUnavailableError
from server.site.backup import DATABASE
from server.site.backup_file import BackupReader, Manifest, Member
from server.states import OVER, RunState
from server.store import Store
from server.store.blobs.directory import BlobStore
from server.store.blobs.opening import open_blobs
from server.store.blobs.storage import BlobStorage
from server.store.copying import copy_rows, require_unused
from server.store.database import Database
from server.store.records import named_blobs
from server.store.served import database_in_force, record_served

__all__ = ["Restored", "restore"]

MODES: Final = {"coordinator.toml": 0o640, "root.pub": 0o644}
"""Everything else is its owner's alone."""
SPARE_BYTES: Final = 64 << 20
"""Left free on the disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What was restored."""

    manifest: Manifest
    held_runs: tuple[str, ...]
    """Runs that wait for ``chorale run resume``."""
    spent_invites: tuple[str, ...]
    """Silos whose invites ended."""


def restore(source: BinaryIO, data_dir: Path) -> Restored:
    """Make a new or empty data directory from a backup, read once, from beginning to end.

    Raises:
        BackupError: The directory or the database is in use, or the file is refused.
        AuditChainError: The log in it is broken.
        CoordinatorError: The configuration or the database in it cannot be used.
    """
    if data_dir.is_symlink() or (data_dir.exists() and not data_dir.is_dir()):
        raise BackupError(f"{data_dir} is no directory")
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupError(f"{data_dir} is not empty: choose a new directory")
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with _staging(data_dir) as staging:
        reader = BackupReader(source)
        _unpack(reader, staging)
        restored = _settle(staging, reader.manifest)
        sync_directory(staging)
        if data_dir.exists():
            data_dir.rmdir()
        staging.rename(data_dir)
    sync_directory(data_dir.parent)
    return restored


@contextmanager
def _staging(data_dir: Path) -> Iterator[Path]:
    """A private directory beside the one to be; gone in the end, unless it was given that name.

    Its name is fixed, so that what a killed restoration left, keys included, goes with the next.
    """
    path = data_dir.with_name(f".{data_dir.name}.restoring")
    private_directory(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another restoration to {data_dir} runs") from None
        try:
            _empty(path)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _unpack(reader: BackupReader, staging: Path) -> None:
    manifest = reader.manifest
    needed = sum(member.size_bytes for member in manifest.files) + SPARE_BYTES
    if needed > shutil.disk_usage(staging).free:
        raise BackupError(f"the backup needs {needed} bytes, and the disk has fewer")
    names = {member.name for member in manifest.files}
    paths = DataPaths(data_dir=Path())
    required = {DATABASE} | {
        path.as_posix()
        for path in (paths.config, paths.protocol_key, paths.root_public_key, paths.audit)
    }
    if not required <= names:
        raise BackupError(f"the backup lacks {', '.join(sorted(required - names))}")
    stated = {name[-64:] for name in names if name.startswith("adapters/")}
    if stated != (set() if manifest.adapters_url else set(manifest.blobs)):
        raise BackupError("the backup does not hold the adapters that it names")
    for member, pieces in reader.files():
        _write(staging, member, pieces)


def _write(staging: Path, member: Member, pieces: Iterator[bytes]) -> None:
    if member.name.startswith("adapters/") and member.name[-64:] != member.sha256:
        raise BackupError(f"{member.name} is not named after its content")
    path = staging / member.name
    for directory in reversed(path.relative_to(staging).parents[:-1]):
        private_directory(staging / directory)
    with path.open("xb") as file:
        path.chmod(MODES.get(member.name, 0o600))
        for piece in pieces:
            file.write(piece)


def _settle(staging: Path, manifest: Manifest) -> Restored:
    """Check what was unpacked, and make of it a coordinator that may be started."""
    config = CoordinatorConfig.load(staging)
    audit = config.paths.audit
    records = verify_log(audit)
    if records != manifest.audit_index + 1:
        raise BackupError(f"the audit log holds {records} records, not {manifest.audit_index + 1}")
    snapshot = staging / DATABASE
    with closing(Store(f"sqlite:///{snapshot}")) as store:
        with store.snapshot() as connection:
            if named_blobs(connection) != manifest.blobs:
                raise BackupError("the database names other adapters than the manifest")
        restored = _hold(store, manifest)
        store.scrub()
    _place_blobs(config, manifest)
    AuditLog(audit).append(
        AuditEvent.RESTORED,
        taken_at=manifest.taken_at,
        audit_index=manifest.audit_index,
        held_runs=restored.held_runs,
    )
    if database_in_force(config) != f"sqlite:///{config.data_dir / DATABASE}":
        _fill(database_in_force(config), snapshot)
        for path in staging.glob(f"{DATABASE}*"):
            path.unlink()
    record_served(database_in_force(config), config.data_dir)
    return restored


def _hold(store: Store, manifest: Manifest) -> Restored:
    now = time.time()
    reason = (
        f"restored from the backup of {manifest.taken_at}: chorale run resume goes on with it, if "
        "no silo has gone further since"
    )
    with store.transaction():
        held = tuple(row for row in store.runs.list() if row.state not in OVER)
        for row in held:
            store.runs.set_state(row.run_id, RunState.PAUSED, reason, at_unix_s=now)
        invites = store.invites.open()
        for invite in invites:
            store.invites.spend(invite, at_unix_s=int(now))
    return Restored(
        manifest=manifest,
        held_runs=tuple(row.run_id for row in held),
        spent_invites=tuple(invite.silo_id for invite in invites),
    )


def _place_blobs(config: CoordinatorConfig, manifest: Manifest) -> None:
    """Put adapters where the configuration keeps them, and miss none of them."""
    unpacked = config.data_dir / "adapters"
    blobs = open_blobs(config)
    elsewhere = config.adapters_url is not None or config.adapters != unpacked
    if not manifest.adapters_url and elsewhere:
        given = BlobStore(unpacked)
        for name in manifest.blobs:
            blobs.put(given.get(bytes.fromhex(name)))
        shutil.rmtree(unpacked, ignore_errors=True)
    missing = [name for name in manifest.blobs if not _holds(blobs, name)]
    if missing:
        raise BackupError(
            f"{len(missing)} of {len(manifest.blobs)} adapters and sums are not where "
            f"coordinator.toml says, the first is {missing[0]}: copy them there first"
        )


def _holds(blobs: BlobStorage, name: str) -> bool:
    try:
        return blobs.size_bytes(bytes.fromhex(name)) >= 0
    except BlobUnavailableError:
        raise
    except BlobError:
        return False


def _fill(url: str, snapshot: Path) -> None:
    with (
        closing(Database(f"sqlite:///{snapshot}")) as source,
        closing(Database(url, create=True)) as target,
    ):
        require_unused(target)
        target.migrate()
        with source.snapshot() as connection:
            copy_rows(connection, target)
