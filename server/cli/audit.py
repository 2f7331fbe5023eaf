"""``chorale audit``: what happened, and whether the log is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ops.cli.audit import answer_copied, answer_heads, answer_records, answer_verified
from ops.cli.envelope import CommandError, Exit, Format, Output
from server.cli.decisions import decisions, explain
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.audit.head import AuditHead
    from server.config import CoordinatorConfig

__all__ = ["app"]

_BROKEN: Final = "audit_broken"

app = typer.Typer(help="Who did what, and when.", no_args_is_help=True)
app.command("explain")(explain)
app.command("decisions")(decisions)


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
                code=_BROKEN,
                exit_code=Exit.SERVER,
                next_step="chorale audit verify",
            ) from error
        cut = len(records) < lines and records and records[0]["index"] > 0
        note = "older ones do not fit one answer: chorale audit export writes all" if cut else ""
        answer_records(output, records, note=note)


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
        from ops.audit_log import verify_log
        from server.config import CoordinatorConfig

        config = CoordinatorConfig.load(data)
        seen = [head.chain_head() for path in heads or () for head in _ours(path, config)]
        answer_verified(
            output,
            lambda: verify_log(config.paths.audit, seen),
            heads=len(seen),
            keeper="silos",
            code=_BROKEN,
        )


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
        from ops.audit_log import read_log, verify_log
        from ops.files import replace_file
        from server.config import CoordinatorConfig

        config = CoordinatorConfig.load(data)
        replace_file(out, (read_log(config.paths.audit),))
        answer_copied(output, out, lambda: verify_log(out), code=_BROKEN)


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
        answer_heads(output, out, kept, reader="at the silo: chorale-silo audit verify")


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
