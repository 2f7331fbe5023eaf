"""``chorale transcript`` and ``chorale verify-transcript``: aggregations checked offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from ops.cli.transcript import SumFile, TranscriptFile, answer_transcript
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["app", "verify"]

MAX_NUMBER: Final = 2**32 - 1
"""Of a round, a step or an attempt, on the wire."""

app = typer.Typer(help="The public part of an aggregation, for audit.", no_args_is_help=True)


@app.command("export")
def export(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    round_number: Annotated[
        int, typer.Argument(metavar="ROUND", min=1, max=MAX_NUMBER, help="From 1.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    step: Annotated[
        int, typer.Option("--step", min=0, max=MAX_NUMBER, help="Which step of the round, from 0.")
    ] = 0,
    attempt: Annotated[
        int,
        typer.Option(
            "--attempt", min=0, max=MAX_NUMBER, help="Which attempt; the last if not given."
        ),
    ] = 0,
    part: Annotated[
        int | None,
        typer.Option(
            "--part",
            min=0,
            max=MAX_NUMBER,
            help="Which sum of the attempt, from 0, where it has several: of groups or halves.",
        ),
    ] = None,
    sum_out: Annotated[
        Path | None, typer.Option("--sum-out", help="Write the published sum here as well.")
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the signed messages of one attempt to a file; nothing of it is secret."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from federation.transcript.file import encode_transcript, parse_transcript
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            request = admin_pb2.GetTranscriptRequest(
                run_id=run_id, round=round_number, step=step, attempt=attempt, part=part
            )
            parts = stub.GetTranscript(request, timeout=CALL_TIMEOUT_S)
            transcript = parse_transcript(b"".join(part.content for part in parts))
            out.write_bytes(encode_transcript(transcript))
            show_result(
                output, f"wrote {out}: {transcript.outcome}, {transcript.phases} public phases"
            )
            if sum_out is not None:
                number = transcript.descriptor.descriptor.identity.part
                record = transcript.record
                released = None if record is None else record.part_of(number)
                if released is None:
                    raise CommandError(
                        "this attempt released no sum",
                        code="not_published",
                        exit_code=Exit.ARGUMENTS,
                    )
                _write_blob(stub, released.sum_sha256, sum_out)
                show_result(output, f"wrote {sum_out}: the published sum")
        say(f"next, anywhere: chorale verify-transcript {out} --root-key root.pub")
        succeed(
            output,
            {
                "transcript": str(out),
                "sum": None if sum_out is None else str(sum_out),
                "outcome": transcript.outcome.value,
                "phases": transcript.phases,
                "step": transcript.descriptor.descriptor.identity.step,
                "part": transcript.descriptor.descriptor.identity.part,
                "attempt": transcript.descriptor.descriptor.identity.attempt,
            },
        )


def verify(
    *,
    transcript_file: TranscriptFile,
    root_key: Annotated[
        Path, typer.Option("--root-key", help="root.pub, from the consortium root itself.")
    ],
    sum_file: SumFile = None,
    output: Output = Format.TEXT,
) -> None:
    """Check an aggregation offline: who was in it, and that t silos agreed on it.

    Needs no coordinator and no data directory. The root key must come from a source you trust.
    """
    with answering(output):
        from server.pki.keys import read_public_key

        answer_transcript(output, transcript_file, read_public_key(root_key), sum_file=sum_file)


def _write_blob(stub: Any, sha256: bytes, out: Path) -> None:
    """Stream published bytes to a file, checked against their digest."""
    import hashlib

    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S

    digest = hashlib.sha256()
    request = admin_pb2.GetAdapterRequest(adapter_sha256=sha256)
    with out.open("wb") as file:
        for part in stub.GetAdapter(request, timeout=10 * CALL_TIMEOUT_S):
            digest.update(part.content)
            file.write(part.content)
    if digest.digest() != sha256:
        raise CommandError(
            "the coordinator sent other bytes than the record names",
            code="sum_altered",
            exit_code=Exit.SERVER,
        )
