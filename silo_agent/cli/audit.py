"""``chorale-silo audit``: what this site did for the federation, and whether its log is whole.

All of it works while the daemon runs, and none of it asks the coordinator anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, say, show_result, succeed

if TYPE_CHECKING:
    from federation.audit.head import AuditHead

__all__ = ["audit_app"]

DEFAULT_DATA = Path("silo-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]

audit_app = typer.Typer(
    help="What this site did, and when.", no_args_is_help=True, pretty_exceptions_enable=False
)


@audit_app.command("tail")
def tail(
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many.", min=1, max=1000)] = 20,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """The newest records, oldest first."""
    with answering(output):
        from federation.audit.lines import complete_lines, read_record
        from federation.errors import AuditChainError
        from silo_agent.books.audit import AUDIT_FILE, read_log

        newest = complete_lines(read_log(data / AUDIT_FILE))[-lines:]
        records = []
        for number, line in enumerate(newest):
            try:
                records.append(read_record(line))
            except AuditChainError as error:
                raise CommandError(
                    f"line {number + 1} of the {len(newest)} newest is no record",
                    code="audit_chain",
                    exit_code=Exit.SERVER,
                    next_step="chorale-silo audit verify",
                ) from error
        for record in records:
            facts = "  ".join(f"{key}={value}" for key, value in record["details"].items())
            show_result(
                output, f"{record['index']:>5}  {record['at']}  {record['event']:<20} {facts}"
            )
        succeed(output, {"records": records})


@audit_app.command("verify")
def verify(
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            "--heads",
            help="From chorale audit heads: what the coordinator saw of this log. May be repeated.",
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Check the whole chain of this silo's log; names the first bad record.

    Without --heads a cut of whole records at the end is not seen, nor a chain that was computed
    anew. With them both are: the coordinator keeps what this silo signed.
    """
    with answering(output):
        from silo_agent.books.audit import AUDIT_FILE

        seen = [head for path in heads or () for head in _mine(path, data)]
        records = _verified(data / AUDIT_FILE, seen)
        show_result(output, f"{records} records, every one in place")
        if seen:
            show_result(output, f"{len(seen)} heads that the coordinator kept are all in it")
        succeed(output, {"records": records, "heads": len(seen)})


@audit_app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="Where the copy goes.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Copy the whole log, byte for byte, for this site's auditor; a broken one too, and said so."""
    with answering(output):
        from ops.files import replace_file
        from silo_agent.books.audit import AUDIT_FILE, read_log

        replace_file(out, (read_log(data / AUDIT_FILE),))
        show_result(output, f"wrote {out}")
        records = _verified(out, ())
        show_result(output, f"{records} records, every one in place")
        succeed(output, {"file": str(out), "records": records})


@audit_app.command("heads")
def heads(
    out: Annotated[Path, typer.Option("--out", help="Where it goes.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the coordinator's newest audit head that this silo saw, for chorale audit verify."""
    with answering(output):
        from federation.audit.head import encode_heads
        from ops.files import replace_file
        from silo_agent.books.audit_heads import kept_head

        head = kept_head(data)
        if head is None:
            raise CommandError(
                "the coordinator has not left an audit head here yet",
                code="audit_head_absent",
                exit_code=Exit.ARGUMENTS,
                hint="heads are exchanged once a round, after its record was adopted",
            )
        replace_file(out, (encode_heads((head,)),))
        show_result(output, f"{head.writer}: record {head.index}  {head.sha256.hex()}")
        show_result(output, f"wrote {out}")
        say(f"next, at the coordinator: chorale audit verify --heads {out.name}")
        succeed(
            output,
            {
                "file": str(out),
                "heads": [
                    {"writer": head.writer, "index": head.index, "sha256": head.sha256.hex()}
                ],
            },
        )


def _verified(path: Path, seen: list[AuditHead] | tuple[()]) -> int:
    from federation.errors import AuditChainError
    from ops.audit_log import verify_log

    try:
        return verify_log(path, [head.chain_head() for head in seen])
    except AuditChainError as error:
        raise CommandError(
            str(error),
            code="audit_chain",
            exit_code=Exit.SERVER,
            hint="keep the file as it is for your auditor; compare it with a backup",
            data={"first_bad_record": error.index},
        ) from error


def _mine(path: Path, data: Path) -> tuple[AuditHead, ...]:
    """The heads of this silo in a file; every one of them is signed by it."""
    from federation.audit.head import MAX_FILE_BYTES, decode_heads, silo_writer
    from federation.errors import AuditHeadError
    from secagg.suite import verification_key
    from silo_agent.identity.identity import Identity

    identity = Identity.load(data)
    with path.open("rb") as file:
        found = decode_heads(file.read(MAX_FILE_BYTES + 1))
    heads = tuple(head for head in found if head.writer == silo_writer(identity.silo_id))
    if not heads:
        raise AuditHeadError(f"{path} holds no head of {identity.silo_id}")
    for head in heads:
        head.verify(verification_key(identity.signing_key))
    return heads
