"""``verify-transcript`` of both programs: an aggregation checked offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, show_result, succeed

__all__ = ["SumFile", "TranscriptFile", "answer_transcript"]

TranscriptFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="From chorale transcript export.")
]
SumFile = Annotated[
    Path | None, typer.Option("--sum", help="The published sum, to be checked as well.")
]


def answer_transcript(
    output: Format, transcript_file: Path, root_key: bytes, *, sum_file: Path | None
) -> None:
    """Check a transcript under a root's public key, and say each check that holds.

    Raises:
        CommandError: Naming the check that failed.
    """
    from federation.errors import TranscriptError
    from federation.transcript.file import MAX_FILE_BYTES, decode_transcript, mapped
    from federation.transcript.transcript import verify_transcript

    passed = []
    try:
        with transcript_file.open("rb") as file:
            transcript = decode_transcript(file.read(MAX_FILE_BYTES + 1))
        total = None if sum_file is None else mapped(sum_file)
        for check, detail in verify_transcript(transcript, root_key, total=total):
            show_result(output, f"ok      {check.value:<18} {detail}")
            passed.append(check.value)
    except TranscriptError as error:
        show_result(output, f"FAILED  {error.check.value}")
        raise CommandError(
            str(error),
            code=f"transcript_{error.check.value}",
            exit_code=Exit.ARGUMENTS,
            hint="nothing after this check was looked at",
        ) from error
    if total is None:
        show_result(output, "the sum was not given, so only its digest is known")
    show_result(output, f"the transcript is whole: {transcript.outcome}")
    succeed(
        output,
        {
            "outcome": transcript.outcome.value,
            "passed": passed,
            "survivors": [header.silo_id for header in transcript.upload_headers],
        },
    )
