"""``chorale-silo guard``: how adopted adapters were judged, and which of them this site serves."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.envelope import Format, Output, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["guard"]


def guard(
    run_id: Annotated[
        str | None, typer.Option("--run", help="Verdicts of this run alone.", show_default=False)
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Verdicts on adopted adapters, what is served, and why not something newer.

    The figures are this site's own; nothing of them is sent anywhere.
    """
    with answering(output):
        from silo_agent.config import SiloConfig
        from silo_agent.views.guarding import read_guarding

        found = read_guarding(SiloConfig.load(data))
        verdicts = [v for v in found.verdicts if run_id in (None, v.run)]
        show_result(output, *found.lines(verdicts))
        succeed(
            output,
            {
                "asked_for": found.asked_for,
                "serve_dir": found.serve_dir,
                "served": found.served,
                "verdicts": [verdict.row() for verdict in verdicts],
            },
        )
