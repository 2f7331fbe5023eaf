"""``chorale-silo verify-transcript``: an aggregation checked under the root this silo pinned."""

from __future__ import annotations

from ops.cli.envelope import Format, Output
from ops.cli.transcript import SumFile, TranscriptFile, answer_transcript
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["verify_transcript"]


def verify_transcript(
    *,
    transcript_file: TranscriptFile,
    sum_file: SumFile = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Check an aggregation offline under the root key this silo pinned when it joined."""
    with answering(output):
        from silo_agent.identity.identity import Identity

        answer_transcript(output, transcript_file, Identity.load(data).root_key, sum_file=sum_file)
