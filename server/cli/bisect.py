"""``chorale run bisect``: a round in two halves, to find a silo that ruins sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ops.cli.envelope import Format, Output, say, show_result, succeed
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["bisect", "half_line"]


def bisect(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    *,
    suspects: Annotated[
        str,
        typer.Option(
            metavar="SILO,SILO,...",
            help="Whom to split; without it the gross half of the last bisection, at first all.",
        ),
    ] = "",
    submit_token: Annotated[
        str, typer.Option(help="The same token asks once; again, it tells what was found.")
    ] = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Find a silo that ruins sums: sum the run's next round in two halves.

    Nobody can see whose contribution made a sum gross (quarantined), but a half whose sum is gross
    has such a silo in it. The suspects are split evenly over the halves and the others fill them,
    so that each is large enough for a sum of its own; who is in which follows from the round.
    Nothing of the round is adopted, every silo is charged for it as for any release, and the run is
    paused after it: chorale run show RUN says which half was gross. Ask again to split that one,
    and resume; k suspects take about log2(k) rounds, and each is one of the plan's.

    It takes the next round that has not begun. Noise must hide the halves: only modes silo and
    record_local, with suite v2 and without groups. Halves differ from the run's other cohorts, so a
    site may refuse a half as too small (cohort.min_silos, min_threshold) or for its partners.
    """
    with answering(output):
        import secrets

        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        token = submit_token or secrets.token_hex(16)
        named = [silo_id.strip() for silo_id in suspects.split(",") if silo_id.strip()]
        request = admin_pb2.BisectRunRequest(run_id=run_id, suspects=named, submit_token=token)
        with connect(data) as stub:
            answer = stub.BisectRun(request, timeout=CALL_TIMEOUT_S)
        split = f"{len(answer.suspects)} silos: {', '.join(answer.suspects)}"
        if answer.round:
            show_result(output, f"round {answer.round} of {run_id} split {split}")
            show_result(output, *(half_line(plain(half)) for half in answer.halves))
            say(f"next: chorale run bisect {run_id} splits the gross half")
        else:
            paused = answer.state == "paused"
            when = "when it is resumed" if paused else "after the round that is under way"
            show_result(output, f"{run_id} is bisected {when}; to split, {split}")
            say(f"next: chorale run {'resume' if paused else 'watch'} {run_id}")
            say(f"then: chorale run show {run_id}")
        succeed(output, {"run_id": run_id, **plain(answer)})


def half_line(half: Mapping[str, Any]) -> str:
    """A half of a bisected round in one line."""
    name = f"  half {half['part'] + 1}"
    if half["verdict"] == "lost":
        return f"{name}  lost      no sum"
    verdict = "GROSS" if half["verdict"] == "gross" else half["verdict"]
    suspects = ", ".join(half["suspects"]) or "none of the suspects"
    others = sorted(set(half["survivors"]) - set(half["suspects"]))
    return f"{name}  {verdict:<8}  {suspects}" + (
        f"; filled by {', '.join(others)}" if others else ""
    )
