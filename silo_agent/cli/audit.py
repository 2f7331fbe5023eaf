"""``chorale-silo audit``: what this site did for the federation, and whether its log is whole.

All of it works while the daemon runs, and none of it asks the coordinator anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ops.cli.audit import answer_copied, answer_heads, answer_records, answer_verified
from ops.cli.envelope import CommandError, Exit, Format, Output
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.audit.head import AuditHead

__all__ = ["audit_app"]


_BROKEN: Final = "audit_chain"

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
                    code=_BROKEN,
                    exit_code=Exit.SERVER,
                    next_step="chorale-silo audit verify",
                ) from error
        answer_records(output, records)


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
        from ops.audit_log import verify_log
        from silo_agent.books.audit import AUDIT_FILE

        seen = [head.chain_head() for path in heads or () for head in _mine(path, data)]
        answer_verified(
            output,
            lambda: verify_log(data / AUDIT_FILE, seen),
            heads=len(seen),
            keeper="the coordinator",
            code=_BROKEN,
        )


@audit_app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="Where the copy goes.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Copy the whole log, byte for byte, for this site's auditor; a broken one too, and said so."""
    with answering(output):
        from ops.audit_log import verify_log
        from ops.files import replace_file
        from silo_agent.books.audit import AUDIT_FILE, read_log

        replace_file(out, (read_log(data / AUDIT_FILE),))
        answer_copied(output, out, lambda: verify_log(out), code=_BROKEN)


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
        answer_heads(output, out, (head,), reader="at the coordinator: chorale audit verify")


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
