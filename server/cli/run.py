"""``chorale run``: forecast, ask, start, watch, list, show, credit, pause, bisect, abort."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.bisect import bisect
from server.cli.plan import (
    BaseConfig,
    Federation,
    plan,
    read_plan_file,
    require_federation,
)
from server.cli.program import DEFAULT_DATA, NOT_POST_QUANTUM, Data, answering, place_of
from server.cli.show import show
from server.cli.sizing import write_new

if TYPE_CHECKING:
    from chorale.v1.admin_pb2_grpc import AdminServiceStub
    from federation.plan.plan import Plan

__all__ = ["app"]

app = typer.Typer(help="Runs: a plan, carried out in rounds.", no_args_is_help=True)

SLOWEST_BYTES_PER_S: Final = 1e6
"""An adapter may take this long to go up."""


Run = Annotated[str, typer.Argument(metavar="RUN", help="Its id.")]


class Stream(StrEnum):
    """What stdout carries while a run is watched."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Suite(StrEnum):
    """How sums are masked."""

    V1 = "v1"
    V2 = "v2"


app.command("plan")(plan)
app.command("show")(show)
app.command("bisect")(bisect)


@app.command("ask")
def ask(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    negotiate: Annotated[
        bool,
        typer.Option(
            "--negotiate",
            help="Amend the plan by what the sites offer, and ask them about that one; with --out.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where the amended plan is written, if there is one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file.")] = False,
    federation: Federation = "",
    submit_token: Annotated[
        str, typer.Option(help="The same token and plan get the same answers; for scripts.")
    ] = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Ask the silos whether their policies accept a plan; nothing is started.

    A site whose policy refuses a plan with [negotiation] may offer terms under which it would not:
    fewer local epochs, a later start, less ε. With --negotiate the coordinator makes one plan for
    all of the offers, inside the plan's ranges, and asks every silo about it, once. What they offer
    then is shown and not taken up. Exit code 4 unless as many accept as a round opens with; then
    nothing is written either.
    """
    with answering(output):
        from server.cli.client import connect
        from server.cli.preflight import ask_silos

        if negotiate == (out is None):
            raise CommandError(
                "an amended plan needs a file, and nothing else does",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
                next_step="give both --negotiate and --out FILE, or neither",
            )
        if out is not None and out.exists() and not force:
            # Before a question of the sites' day is used for it.
            raise CommandError(
                f"{out} exists",
                code="file_exists",
                exit_code=Exit.ARGUMENTS,
                next_step="give --force to replace it, or another --out FILE",
            )
        plan_toml, _ = read_plan_file(path)
        with connect(data) as stub:
            asked = ask_silos(
                stub,
                plan_toml=plan_toml,
                submit_token=submit_token,
                federation=federation,
                negotiate=negotiate,
            )
        asked.show(output)
        asked.require_quorum(path)
        if out is not None and asked.amended_plan:
            write_new(out, asked.amended_plan, force=force)
            say(*_begins(out))
        else:
            say(f"next: chorale run start {path}")
        written = str(out) if out is not None and asked.amended_plan else None
        succeed(output, {**asked.figures(), "written": written})


def _begins(out: Path) -> tuple[str, ...]:
    """What to do with an amended plan, and when."""
    from federation.plan.rules import problems_of_start

    early = problems_of_start(read_plan_file(out)[1], time.time())
    return (*early, f"next: chorale run start {out}")


@app.command("start")
def start(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    adapter: Annotated[
        Path | None,
        typer.Option(help="The initial adapter, safetensors; made from the base if not given."),
    ] = None,
    base_config: BaseConfig = None,
    federation: Federation = "",
    submit_token: Annotated[
        str, typer.Option(help="The same token starts the same run once; for scripts that retry.")
    ] = "",
    await_silos: Annotated[
        bool,
        typer.Option(
            "--await-silos",
            envvar="CHORALE_AWAIT_SILOS",
            help="Start it though too few silos were heard of lately: it waits for them.",
        ),
    ] = False,
    await_approval: Annotated[
        bool,
        typer.Option(
            "--await-approval",
            help="Count on silos whose operator has to approve the run: it waits for them.",
        ),
    ] = False,
    without_preflight: Annotated[
        bool,
        typer.Option(
            "--without-preflight",
            envvar="CHORALE_WITHOUT_PREFLIGHT",
            help="Start it without asking the silos first, or though too few of them accept.",
        ),
    ] = False,
    suite: Annotated[
        Suite,
        typer.Option(
            help="v1 is not post-quantum: for rosters with silos of releases before protocol 3."
        ),
    ] = Suite.V2,
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end.")] = False,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Start a run; while another one goes on it waits in the queue.

    It is refused while fewer silos than a round needs may take part, or were heard of lately. Then
    the silos are asked whether their policies accept the plan, and it is refused, before any of
    them works or is charged, unless as many as a round opens with accept. A silo whose operator has
    to approve the run, and one of an earlier release, which cannot say, count as none;
    --await-approval and --without-preflight start it all the same.

    With suite v2 it is refused as well while a silo of the roster runs a version that is too old.

    Without --adapter the run starts from B = 0 and from A as the plan's evolve.seed draws it; only
    the base model's config.json is read for that.
    """
    with answering(output):
        from federation.errors import PlanError
        from federation.plan.rules import problems_of_start
        from server.cli.base_model import first_adapter
        from server.cli.client import CALL_TIMEOUT_S, connect, start_parts
        from server.cli.preflight import ask_silos

        plan_toml, parsed = read_plan_file(path)
        if early := problems_of_start(parsed, time.time()):
            raise PlanError(early)
        if adapter is None:
            content, source = first_adapter(parsed, base_config)
            say(f"initial adapter: A drawn by seed {parsed.evolve.seed}, B = 0, from {source}")
        else:
            content = adapter.read_bytes()
        token = submit_token or secrets.token_hex(16)
        parts = start_parts(
            plan=plan_toml,
            adapter=content,
            submit_token=token,
            federation=federation,
            suite=int(suite.value[1:]),
        )
        with connect(data) as stub:
            if not await_silos:
                _require_silos(stub, parsed)
            if not without_preflight:
                asked = ask_silos(
                    stub, plan_toml=plan_toml, submit_token=token, federation=federation
                )
                asked.require_quorum(path, await_silos=await_silos, await_approval=await_approval)
            timeout_s = CALL_TIMEOUT_S + len(content) / SLOWEST_BYTES_PER_S
            answer = stub.StartRun(parts, timeout=timeout_s)
        run_id, behind = answer.run_id, answer.behind
        if suite is Suite.V1:
            say(f"note: {NOT_POST_QUANTUM}: whoever records it may read it in decades")
        show_result(output, f"run {run_id}" + (f", queued behind {behind}" if behind else ""))
        if wait:
            _watch(data, run_id, Stream(output.value))
        else:
            say(f"next: chorale run watch {run_id}")
        succeed(output, {"run_id": run_id, "behind": behind})


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

    A run that is queued or paused is watched too. Ends with the run: exit code 0 if it finished, 1
    if it failed or was aborted. A coordinator that restarts is waited for, one that never answered
    is not. Success is shown with the standard error of its noise, or as below noise; JSON has the
    ratio as it was summed, its standard_error and below_noise, and collapse: null, or the rounds
    between which the agent's success fell for good.
    """
    with answering(Format.JSON if output is Stream.JSON else Format.TEXT):
        last = _watch(data, run_id, output)
        succeed(Format.JSON if output is Stream.JSON else Format.TEXT, last)


@app.command("list")
def list_runs(
    federation: Federation = "", data: Data = DEFAULT_DATA, output: Output = Format.TEXT
) -> None:
    """Every run, oldest first."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        with connect(data) as stub:
            if federation:
                require_federation(stub, federation)
            runs = stub.ListRuns(admin_pb2.ListRunsRequest(), timeout=CALL_TIMEOUT_S).runs
        for run in runs:
            show_result(
                output,
                f"{run.run_id:<32} {run.state:<9} {place_of(run, run.round, run.step)}  "
                f"adapter {run.adapter_sha256.hex()[:16]}"
                + (f"  behind {run.behind}" if run.behind else "")
                + (f"  {NOT_POST_QUANTUM}" if run.suite == 1 else ""),
            )
        if not runs:
            say("no runs yet: chorale run start PLAN")
        succeed(output, {"runs": [plain(run) for run in runs]})


@app.command("credit")
def credit(
    run_id: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write it here as well, as Markdown.")
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Report who took part in a run, what is credited to whom, and what that cannot say.

    For each silo: rounds asked, ready, in sums, lost and in which phase, sat out, seconds waited
    for, bytes, its share of the sums, and an equal part of what each round with it in the sum
    changed in success, with the standard error of the noise. Skipped, quarantined, bisected and
    rolled-back rounds credit nobody; the credits add up to the run's change. With groups also how
    far each group's published sum goes along the combined update.

    It is made from the signed chain and the coordinator's public figures, on its own machine: no
    silo is asked, and nothing is summed for it. An equal split is a convention: a silo that uploads
    zeros gets the same.
    """
    with answering(output):
        from ops.files import replace_file
        from server.config import CoordinatorConfig
        from server.credit.report import report_of
        from server.credit.text import as_json, as_lines, as_markdown
        from server.store import Store
        from server.store.blobs.opening import open_blobs
        from server.store.served import database_in_force

        config = CoordinatorConfig.load(data)
        store = Store(database_in_force(config))
        try:
            report = report_of(store, open_blobs(config), config.paths.audit, run_id)
        finally:
            store.close()
        if out is not None:
            replace_file(out, [as_markdown(report).encode()], mode=0o600)
            say(f"wrote {out}")
        show_result(output, *as_lines(report))
        succeed(output, {**as_json(report), "report": None if out is None else str(out)})


@app.command("pause")
def pause(run_id: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Let a run rest until chorale run resume; the next one in the queue begins.

    An open attempt is given up, unless silos have agreed on its sum: that one is finished first.
    What the silos charged stays charged. A paused run outlives restarts.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            request = admin_pb2.PauseRunRequest(run_id=run_id)
            state = stub.PauseRun(request, timeout=CALL_TIMEOUT_S).state
        show_result(
            output,
            f"{run_id} is paused"
            if state == "paused"
            else f"{run_id} is {state}: the sum that silos have agreed on is finished first",
        )
        say(f"next: chorale run resume {run_id}")
        succeed(output, {"run_id": run_id, "state": state})


@app.command("resume")
def resume(run_id: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Let a paused run go on: at once, or before all that wait in the queue."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            request = admin_pb2.ResumeRunRequest(run_id=run_id)
            behind = stub.ResumeRun(request, timeout=CALL_TIMEOUT_S).behind
        show_result(output, f"{run_id} goes on" + (f" when {behind} is over" if behind else ""))
        say(f"next: chorale run watch {run_id}")
        succeed(output, {"run_id": run_id, "behind": behind})


@app.command("abort")
def abort(run_id: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Stop a run for good, whether it runs, waits or is paused.

    Its adapters stay; what the silos charged stays charged.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.AbortRun(admin_pb2.AbortRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)
        show_result(output, f"aborted {run_id}")
        succeed(output, {"run_id": run_id})


def _require_silos(stub: AdminServiceStub, parsed: Plan) -> None:
    """Refuse to start a run that would wait for silos from its first round on.

    Who may take part at all is the coordinator's own question; it asks it of every start.

    Raises:
        CommandError: Too few silos of the roster were heard of lately.
    """
    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S
    from server.members.silence import Member, silence
    from server.states import SiloState

    listed = stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=CALL_TIMEOUT_S).silos
    members = [
        Member(
            silo_id=silo.silo_id,
            state=SiloState(silo.state),
            last_seen_unix_s=silo.last_seen_unix_s,
        )
        for silo in listed
        if silo.state in {SiloState.ROSTERED, SiloState.SITTING_OUT}
    ]
    quorum = parsed.rounds.ready_quorum(parsed.secure_aggregation.n_min)
    reason = silence(members, quorum, time.time()) if len(members) >= quorum else ""
    if reason:
        raise CommandError(
            f"this run would wait from its first round on: {reason}",
            code="silos_silent",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale silo list",
        )


def _watch(data: Path, run_id: str, output: Stream) -> dict[str, Any]:
    """Follow a run to its end; return its last status."""
    import grpc

    from federation.text import write
    from server.cli.watch import Panel, follow, sitting_out, status_json

    last: dict[str, Any] = {}
    out: tuple[str, ...] = ()
    at: tuple[int, ...] = ()
    with Panel(live=output is not Stream.JSONL) as panel:
        for status in follow(data, run_id, waiting=panel.wait):
            last, current = status_json(status), status.current
            if at != (at := (current.round, current.step, current.attempt)):
                # It changes with an attempt; who is away now is asked at the next one.
                with contextlib.suppress(grpc.RpcError):
                    out = sitting_out(data)
            panel.show(status, out if status.run.state in {"running", "pausing"} else ())
            last["collapse"] = panel.collapse
            if output is Stream.JSONL:
                write(sys.stdout, json.dumps(last, allow_nan=False) + "\n")
    if output is not Stream.JSONL:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show_result(Format(output.value), *panel.end(width))
    state = last["run"]["state"]
    if state != "finished":
        raise CommandError(
            f"run {run_id} ended as {state}: {last.get('error', '')}",
            code=f"run_{state}",
            exit_code=Exit.SERVER,
            next_step="chorale audit tail shows why",
        )
    return last
