"""``chorale-lab replay-decisions``: every recorded decision made again, without a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed

__all__ = ["replay_decisions"]


def replay_decisions(
    files: Annotated[list[Path], typer.Argument(help="From chorale audit decisions.")],
    output: Output = Format.TEXT,
) -> None:
    """Decide every round again from what was recorded, and compare; no model, no network.

    Exit code 1 where a decision comes out otherwise.
    """
    with answering(output):
        import asyncio

        from federation.errors import AdviceError
        from federation.selection.decided import MAX_LINE_BYTES, read_decisions

        equal, other = 0, []
        for path in files:
            try:
                with path.open("rb") as file:
                    # No line is read further than the longest that may be.
                    lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")
                    for decided in read_decisions(lines):
                        place = f"{path}: run {decided.run_id} round {decided.round}"
                        if asyncio.run(decided.again()) == decided.choice:
                            equal += 1
                        else:
                            other.append(place)
                            show_result(output, f"another decision: {place}")
            except OSError as error:
                raise CommandError(
                    f"{path}: {error.strerror}", code="file_absent", exit_code=Exit.ARGUMENTS
                ) from error
            except AdviceError as error:
                raise CommandError(
                    f"{path}: {error}", code="decision_malformed", exit_code=Exit.ARGUMENTS
                ) from error
        show_result(output, f"{equal} decisions are the same, {len(other)} are not")
        if other:
            raise CommandError(
                f"{len(other)} decisions do not follow from what was recorded",
                code="decision_differs",
                exit_code=Exit.SERVER,
            )
        succeed(output, {"equal": equal, "other": 0, "replay_equal": True})
