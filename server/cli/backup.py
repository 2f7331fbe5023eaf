"""``chorale backup`` and ``chorale restore``."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["backup", "restore"]

STREAM = "-"


def backup(
    out: Annotated[
        str, typer.Option("--out", help="A new file, readable for its owner alone; - is stdout.")
    ],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write one file with everything that this coordinator needs to go on elsewhere.

    The coordinator may run meanwhile. The file holds configuration, CA, keys, audit log, database
    and adapters (of adapters in object storage only the names), with the SHA-256 of each.

    It holds private keys and is not encrypted. To encrypt it on its way:

      chorale backup --out - | age -r age1... > coordinator.backup.age

      chorale backup --out - | gpg --encrypt -r ops@example.org > coordinator.backup.gpg
    """
    with answering(output):
        from server.config import CoordinatorConfig
        from server.site.backup import backup as write
        from server.site.backup import backup_to, note_backup

        config = CoordinatorConfig.load(data)
        if out == STREAM:
            manifest = write(_stdout(output), config)
            sys.stdout.buffer.flush()
            note_backup(config.data_dir)
        else:
            manifest = backup_to(Path(out), config)
        told = say if out == STREAM else partial(show_result, output)
        size = sum(member.size_bytes for member in manifest.files)
        told(
            f"backed up {len(manifest.files)} files, {size} bytes, audit record "
            f"{manifest.audit_index}: it holds private keys"
        )
        if manifest.adapters_url:
            told(f"{len(manifest.blobs)} adapters and sums stay in {manifest.adapters_url}")
        succeed(
            output,
            {
                "file": out,
                "taken_at": manifest.taken_at,
                "files": len(manifest.files),
                "bytes": size,
                "audit_index": manifest.audit_index,
                "audit_sha256": manifest.audit_sha256,
            },
        )


def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="From chorale backup; - is stdin.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make a new data directory from a backup. The coordinator it was taken of must be stopped.

    Nothing is overwritten, every digest is checked, and no run goes on by itself: silos may have
    gone further since the backup. chorale run resume RUN goes on with one; if silos are ahead, they
    refuse, and the run ends with that reason.

      age -d coordinator.backup.age | chorale restore - --data DIR
    """
    with answering(output):
        from server.site.restore import restore as read

        if file == STREAM:
            restored = read(sys.stdin.buffer, data)
        else:
            with Path(file).open("rb") as source:
                restored = read(source, data)
        manifest = restored.manifest
        show_result(output, f"restored the coordinator as it was at {manifest.taken_at} to {data}")
        say(
            "what was done after that is not in it: suspend and revoke again whom you had, publish "
            "again a newer roster, invite again silos whose certificate was renewed since"
        )
        for silo_id in restored.spent_invites:
            say(f"the invite of {silo_id} has ended: make a new one if it is still to join")
        for run_id in restored.held_runs:
            say(f"paused: chorale run resume {run_id}")
        say("next: chorale audit verify, then chorale-coordinator serve")
        succeed(
            output,
            {
                "data": str(data),
                "taken_at": manifest.taken_at,
                "held_runs": list(restored.held_runs),
                "ended_invites": list(restored.spent_invites),
                "audit_index": manifest.audit_index,
            },
        )


def _stdout(output: Format) -> BinaryIO:
    if output is Format.JSON or os.isatty(sys.stdout.fileno()):
        raise CommandError(
            "with --out - the backup itself goes to stdout",
            code="arguments",
            exit_code=Exit.ARGUMENTS,
            next_step="pipe it into a file or a program, and leave --format json out",
        )
    return sys.stdout.buffer
