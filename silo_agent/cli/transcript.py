"""``chorale-silo verify-transcript``: an aggregation checked under the root this silo pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, show_result, succeed

__all__ = ["verify_transcript"]

DEFAULT_DATA = Path("silo-data")


def verify_transcript(
    *,
    transcript_file: Annotated[
        Path, typer.Argument(metavar="FILE", help="From chorale transcript export.")
    ],
    sum_file: Annotated[
        Path | None, typer.Option("--sum", help="The published sum, to be checked as well.")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
    ] = DEFAULT_DATA,
    output: Annotated[
        Format,
        typer.Option("--format", help="json prints one envelope on stdout.", show_default=True),
    ] = Format.TEXT,
) -> None:
    """Check an aggregation offline under the root key this silo pinned when it joined."""
    with answering(output):
        from federation.errors import TranscriptError
        from federation.transcript.file import MAX_FILE_BYTES, decode_transcript, mapped
        from federation.transcript.transcript import verify_transcript as verify
        from silo_agent.identity.identity import Identity

        root_key = Identity.load(data).root_key
        passed = []
        try:
            with transcript_file.open("rb") as file:
                transcript = decode_transcript(file.read(MAX_FILE_BYTES + 1))
            total = None if sum_file is None else mapped(sum_file)
            for check, detail in verify(transcript, root_key, total=total):
                show_result(output, f"ok      {check.value:<18} {detail}")
                passed.append(check.value)
        except OSError as error:
            raise CommandError(str(error), code="file", exit_code=Exit.ARGUMENTS) from error
        except TranscriptError as error:
            show_result(output, f"FAILED  {error.check.value}")
            raise CommandError(
                str(error),
                code=f"transcript_{error.check.value}",
                exit_code=Exit.ARGUMENTS,
                hint="nothing after this check was looked at",
            ) from error
        show_result(output, f"the transcript is whole: {transcript.outcome}")
        succeed(
            output,
            {
                "outcome": transcript.outcome.value,
                "passed": passed,
                "survivors": [header.silo_id for header in transcript.upload_headers],
            },
        )
