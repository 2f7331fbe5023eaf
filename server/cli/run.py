"""``chorale run``: forecast, start, watch, list, abort."""

from __future__ import annotations

import json
import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from server.cli.envelope import (
    DEFAULT_DATA,
    CommandError,
    Data,
    Exit,
    Format,
    Output,
    answering,
    say,
    succeed,
)

if TYPE_CHECKING:
    from federation.forecast import Forecast
    from federation.plan import Plan

__all__ = ["app"]

app = typer.Typer(help="Runs: a plan, carried out in rounds.", no_args_is_help=True)

MAX_ADAPTER_BYTES: Final = 1 << 30
SLOWEST_BYTES_PER_S: Final = 1e6
"""An adapter may take this long to go up."""


class Stream(StrEnum):
    """What stdout carries while a run is watched."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


@app.command("plan")
def plan(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    silos: Annotated[
        int | None, typer.Option(help="Silos, n; the current roster's if not given.", min=1)
    ] = None,
    colluding: Annotated[
        int | None, typer.Option(help="Colluding, c; the current roster's if not given.", min=1)
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="The initial adapter; its size decides the figures.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Uploaded coordinates, when there is no adapter yet.", min=1)
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Say what a plan costs and protects, before anything starts.

    Privacy per round and in total, bytes, tolerated drop-outs, and every reason not to start.
    Nothing is sent anywhere; with --silos and --colluding no coordinator is needed either.
    """
    with answering(output):
        from federation.forecast import forecast_plan

        parsed = _parse(path)
        shared, whole = _dimensions(parsed, adapter, dimension)
        n, c = (silos, colluding) if silos and colluding else _roster(data, silos, colluding)
        forecast = forecast_plan(
            parsed, silos=n, colluding=c, dimension=shared, adapter_dimension=whole
        )
        _describe(parsed, forecast)
        if forecast.refusals:
            raise CommandError(
                "this plan cannot start: " + "; ".join(forecast.refusals),
                code="plan_refused",
                exit_code=Exit.ARGUMENTS,
                next_step=f"change {path} or the roster, and ask again",
            )
        say(f"next: chorale run start {path} --adapter FILE")
        succeed(output, _figures(forecast))


@app.command("start")
def start(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    adapter: Annotated[Path, typer.Option(help="The initial adapter, safetensors.")],
    submit_token: Annotated[
        str, typer.Option(help="The same token starts the same run once; for scripts that retry.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end.")] = False,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Start a run."""
    with answering(output):
        from server.cli.client import CALL_TIMEOUT_S, connect, start_parts

        _parse(path)
        content = adapter.read_bytes()
        parts = start_parts(
            plan=path.read_bytes(),
            adapter=content,
            submit_token=submit_token or secrets.token_hex(16),
        )
        with connect(data) as stub:
            timeout_s = CALL_TIMEOUT_S + len(content) / SLOWEST_BYTES_PER_S
            run_id = stub.StartRun(parts, timeout=timeout_s).run_id
        say(f"run {run_id}")
        if wait:
            _watch(data, run_id, Stream.TEXT)
        else:
            say(f"next: chorale run watch {run_id}")
        succeed(output, {"run_id": run_id})


@app.command("watch")
def watch(
    *,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id, from run start.")],
    data: Data = DEFAULT_DATA,
    output: Annotated[
        Stream, typer.Option("--format", help="jsonl: one status a line, as they come.")
    ] = Stream.TEXT,
) -> None:
    """Follow a run: its phase, who is waited for and since when, the deadline, ε, success.

    Ends with the run: exit code 0 if it finished, 1 if it failed or was aborted. A coordinator that
    restarts is waited for.
    """
    with answering(Format.JSON if output is Stream.JSON else Format.TEXT):
        last = _watch(data, run_id, output)
        succeed(Format.JSON if output is Stream.JSON else Format.TEXT, last)


@app.command("list")
def list_runs(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Every run, oldest first."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        with connect(data) as stub:
            runs = stub.ListRuns(admin_pb2.ListRunsRequest(), timeout=CALL_TIMEOUT_S).runs
        for run in runs:
            say(
                f"{run.run_id:<32} {run.state:<9} round {run.round}/{run.rounds}  "
                f"adapter {run.adapter_sha256.hex()[:16]}"
            )
        if not runs:
            say("no runs yet: chorale run start PLAN --adapter FILE")
        succeed(output, {"runs": [plain(run) for run in runs]})


@app.command("abort")
def abort(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Stop a run for good. Its adapters stay; what the silos charged stays charged."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.AbortRun(admin_pb2.AbortRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)
        say(f"aborted {run_id}")
        succeed(output, {"run_id": run_id})


def _parse(path: Path) -> Plan:
    from federation.plan import MAX_PLAN_BYTES, Plan

    with path.open("rb") as file:
        return Plan.parse(file.read(MAX_PLAN_BYTES + 1))


def _dimensions(parsed: Plan, adapter: Path | None, dimension: int | None) -> tuple[int, int]:
    if adapter is not None:
        from federation.adapter import decode_adapter
        from federation.forecast import shared_dimension
        from federation.layout import Layout

        layout = Layout.from_tensors(
            decode_adapter(adapter.read_bytes(), max_bytes=MAX_ADAPTER_BYTES)
        )
        return shared_dimension(parsed, layout), layout.dimension
    if dimension is not None:
        return dimension, dimension
    raise CommandError(
        "how big is the upload?",
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step="give --adapter FILE, or --dimension with the number of uploaded coordinates",
    )


def _roster(data: Path, silos: int | None, colluding: int | None) -> tuple[int, int]:
    from server.config import CoordinatorConfig
    from server.store import Store

    store = Store(CoordinatorConfig.load(data).database)
    try:
        signed = store.rosters.current()
    finally:
        store.close()
    if signed is None:
        raise CommandError(
            "no roster is published yet",
            code="not_published",
            exit_code=Exit.ARGUMENTS,
            next_step="give --silos and --colluding, or publish a roster first",
        )
    return silos or len(signed.roster.entries), colluding or signed.roster.colluding


def _describe(parsed: Plan, forecast: Forecast) -> None:
    say(f"{parsed.name}: {parsed.rounds.count} rounds, {forecast.silos} silos")
    say(
        f"secure aggregation: {forecast.threshold} must answer, {max(forecast.drops, 0)} may drop, "
        f"{forecast.colluding} may collude"
    )
    say(
        f"silo-level ε: {forecast.epsilon_round:.4g} a round, {forecast.epsilon_total:.4g} for "
        f"{forecast.charged_attempts} charged attempts at δ = {parsed.privacy.delta:g}"
    )
    say(
        f"expected cosine of the noisy mean: at most {forecast.predicted_cosine:.3g}; "
        f"{forecast.silos_for_min_cosine} silos would reach the plan's floor"
    )
    say(f"bytes a silo and round: {forecast.bytes_up:,} up, {forecast.bytes_down:,} down")
    say(f"ring headroom: {forecast.ring_headroom_bits:.1f} bits")
    for refusal in forecast.refusals:
        say(f"refused: {refusal}")


def _figures(forecast: Forecast) -> dict[str, Any]:
    import math
    from dataclasses import asdict

    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(forecast).items()
    }


def _watch(data: Path, run_id: str, output: Stream) -> dict[str, Any]:
    """Follow a run to its end; return its last status."""
    from server.cli.client import plain
    from server.cli.watch import Panel, follow

    last: dict[str, Any] = {}
    with Panel(live=output is not Stream.JSONL) as panel:
        for status in follow(data, run_id):
            last = plain(status)
            if output is Stream.JSONL:
                sys.stdout.write(json.dumps(last, allow_nan=False) + "\n")
                sys.stdout.flush()
            panel.show(status)
    state = last["run"]["state"]
    if state != "finished":
        raise CommandError(
            f"run {run_id} ended as {state}: {last.get('error', '')}",
            code=f"run_{state}",
            exit_code=Exit.SERVER,
            next_step="chorale audit tail shows why",
        )
    return last
