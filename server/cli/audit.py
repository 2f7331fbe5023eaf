"""``chorale audit``: what happened, and whether the log is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.envelope import (
    DEFAULT_DATA,
    CommandError,
    Data,
    Exit,
    Format,
    Output,
    answering,
    say,
    show_result,
    succeed,
)

if TYPE_CHECKING:
    from federation.audit.head import AuditHead
    from server.config import CoordinatorConfig

__all__ = ["app"]

app = typer.Typer(help="Who did what, and when.", no_args_is_help=True)


@app.command("tail")
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many.", min=1, max=1000)] = 20,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """The newest records, oldest first."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from federation.audit.lines import read_record
        from federation.errors import AuditChainError
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            answer = stub.TailAudit(admin_pb2.TailAuditRequest(lines=lines), timeout=CALL_TIMEOUT_S)
        try:
            records = [read_record(record.encode()) for record in answer.records]
        except AuditChainError as error:
            raise CommandError(
                "a line is no audit record",
                code="audit_broken",
                exit_code=Exit.SERVER,
                next_step="chorale audit verify",
            ) from error
        for record in records:
            facts = "  ".join(f"{key}={value}" for key, value in record["details"].items())
            show_result(
                output, f"{record['index']:>5}  {record['at']}  {record['event']:<20} {facts}"
            )
        if len(records) < lines and records and records[0]["index"] > 0:
            say("older ones do not fit one answer: chorale audit export writes all")
        succeed(output, {"records": records})


@app.command("verify")
def verify(
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            "--heads",
            help="From chorale-silo audit heads: what a silo saw of this log. May be repeated.",
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Check the whole chain of the data directory's log; names the first bad record.

    Without --heads a cut of whole records at the end is not seen, nor a chain that was computed
    anew. With them both are: silos keep what this coordinator signed.
    """
    with answering(output):
        from server.config import CoordinatorConfig

        config = CoordinatorConfig.load(data)
        seen = [head for path in heads or () for head in _ours(path, config)]
        records = _verified(config.paths.audit, seen)
        show_result(output, f"{records} records, every one in place")
        if seen:
            show_result(output, f"{len(seen)} heads that silos kept are all in it")
        succeed(output, {"records": records, "heads": len(seen)})


@app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="Where the copy goes.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Copy the whole log, byte for byte, for an auditor; a broken one is copied too, and said so.

    Every line is a JSON object, and the chain can be checked without this program: sha256 is over
    the other fields in canonical JSON.
    """
    with answering(output):
        from ops.audit_log import read_log
        from ops.files import replace_file
        from server.config import CoordinatorConfig

        config = CoordinatorConfig.load(data)
        replace_file(out, (read_log(config.paths.audit),))
        show_result(output, f"wrote {out}")
        records = _verified(out, [])
        show_result(output, f"{records} records, every one in place")
        succeed(output, {"file": str(out), "records": records})


@app.command("heads")
def heads(
    out: Annotated[Path, typer.Option("--out", help="Where they go.")],
    silo: Annotated[str | None, typer.Option(help="Of this silo alone.")] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the silos' newest signed audit heads, for chorale-silo audit verify --heads.

    A head says how many records a silo's log had and the digest of the newest, under the silo's
    own signature; nothing of what they hold.
    """
    with answering(output):
        from federation.audit.head import encode_heads
        from ops.files import replace_file
        from server.config import CoordinatorConfig
        from server.members.audit_heads import head_of_row
        from server.members.terms import require_federation
        from server.store import Store
        from server.store.served import database_in_force

        store = Store(database_in_force(CoordinatorConfig.load(data)))
        try:
            federation = require_federation(store).name
            rows = store.audit_heads.list()
        finally:
            store.close()
        kept = [head_of_row(row, federation) for row in rows if silo in {None, row.silo_id}]
        if not kept:
            raise CommandError(
                f"no audit head of {silo or 'any silo'} is kept here",
                code="audit_head_absent",
                exit_code=Exit.ARGUMENTS,
                hint="a silo leaves its head once a round, after it adopted the round's record",
            )
        replace_file(out, (encode_heads(kept),), mode=0o644)
        for head in kept:
            show_result(output, f"{head.writer:<40} record {head.index}  {head.sha256.hex()}")
        show_result(output, f"wrote {out}")
        say(f"next, at the silo: chorale-silo audit verify --heads {out.name}")
        succeed(
            output,
            {
                "file": str(out),
                "heads": [
                    {"writer": head.writer, "index": head.index, "sha256": head.sha256.hex()}
                    for head in kept
                ],
            },
        )


def _verified(path: Path, seen: list[AuditHead]) -> int:
    from federation.errors import AuditChainError
    from ops.audit_log import verify_log

    try:
        return verify_log(path, [head.chain_head() for head in seen])
    except AuditChainError as error:
        raise CommandError(
            str(error),
            code="audit_broken",
            exit_code=Exit.SERVER,
            hint="keep the file as it is for your auditor; compare it with a backup",
            data={"first_bad_record": error.index},
        ) from error


def _ours(path: Path, config: CoordinatorConfig) -> tuple[AuditHead, ...]:
    """The heads of a file, if this coordinator signed every one of them."""
    from federation.audit.head import COORDINATOR, MAX_FILE_BYTES, decode_heads
    from federation.errors import AuditHeadError
    from secagg.suite import verification_key
    from server.pki.keys import load_signing_key

    key = verification_key(load_signing_key(config.paths.protocol_key))
    with path.open("rb") as file:
        heads = decode_heads(file.read(MAX_FILE_BYTES + 1))
    for head in heads:
        if head.writer != COORDINATOR:
            raise AuditHeadError(f"{path} holds a head of {head.writer}, not of this coordinator")
        head.verify(key)
    return heads
