"""``python -m tests.system.chaos.matrix``: kill -9 at every phase, and what every party then has.

Every cell of ``cells.py`` three times on SQLite and once on PostgreSQL, once on SQLite in a run of
suite v1, and six kills under real training. One run serves many kills, a round each; each kill is
judged by its own round (``verdict.py``), and each run as a whole. Progress goes to stderr; the
matrix to stdout, and as its last line the figures as JSON. Ends with status 1 unless every kill
happened and did no harm.

    --only PART     cells whose name (role.phase.instant) or run holds PART; repeatable
    --store STORE   sqlite, postgresql or suite-v1 alone; real training runs on SQLite
    --repeat N      how often of each
    --workers N     runs at once; most of a run is waiting
    --dir DIRECTORY where the runs are left; without it they are deleted unless one failed
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import math
import resource
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.loopback import LoopbackFederation
from server.store import Store
from tests.kit import postgresql_server
from tests.system.chaos import constant_run, learning_run
from tests.system.chaos.cells import CELLS, COORDINATOR, REAL_TRAINING, Cell
from tests.system.chaos.drive import Drive, Kill
from tests.system.chaos.evidence import Evidence, gather
from tests.system.chaos.verdict import Judge

POSTGRESQL, SUITE_V1, STANDBY = "postgresql", "suite-v1", "standby"
REPEATS = {"sqlite": 3, POSTGRESQL: 1, SUITE_V1: 1, STANDBY: 1}
TRAINING = "real training"
LEAST_DEADLINE_S = 8
DATABASE = "CHORALE_COORDINATOR_DATABASE_URL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One run to be made."""

    name: str
    column: str
    """sqlite, postgresql, suite-v1 or real training."""
    cells: tuple[Cell, ...]
    number: int = 0
    """Turns the order in which silos die."""


@dataclass(kw_only=True, slots=True)
class Judged:
    """One kill."""

    run: Planned
    kill: Kill
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """From the death until everybody had adopted the round's record."""


def say(text: str) -> None:
    print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def kills_of(run: Planned, silos: tuple[str, ...]) -> tuple[Kill, ...]:
    kills = []
    for number, cell in enumerate(run.cells, 1):
        silo = silos[(number + run.number) % len(silos)]
        victim = COORDINATOR if cell.role == COORDINATOR else silo
        kills.append(Kill(cell=cell, round=number, victim=victim, asks=silo if cell.renews else ""))
    return tuple(kills)


def perform(run: Planned, directory: Path, server: postgresql_server.PostgresqlServer | None):
    """Make a run and judge it."""
    made = learning_run if run.column == TRAINING else constant_run
    database = "" if server is None else server.url(server.database())
    environment = {DATABASE: database} if database else {}
    with LoopbackFederation(directory=directory / run.name, environment=environment) as loopback:
        drive = Drive(
            loopback=loopback,
            silos=made.SILOS,
            kills=kills_of(run, made.SILOS),
            say=lambda text: say(f"[{run.name}] {text}"),
            environment=environment,
            suite="v1" if run.column == SUITE_V1 else "v2",
            standby=run.column == STANDBY,
        )
        loopback.found()
        began = time.monotonic()
        drive.start(COORDINATOR)
        # Long enough for a daemon to be back within its phase, on a machine as busy as this one.
        deadline_s = max(LEAST_DEADLINE_S, math.ceil(3 * (time.monotonic() - began)))
        say(f"[{run.name}] {len(run.cells)} kills, phases of at most {deadline_s} s")
        plan, adapter = made.prepare(loopback, len(run.cells), phase_deadline_s=deadline_s)
        drive.through(plan, adapter)
        loopback.stop()
    store = Store(database or f"sqlite:///{loopback.data_dir / 'coordinator.db'}")
    try:
        evidence = gather(drive, store)
        constant = made is constant_run
        judge = Judge(
            drive,
            evidence,
            store,
            dimension=constant_run.DIMENSION if constant else 0,
            members=constant_run.members if constant else None,
        )
        judged = [
            Judged(
                run=run,
                kill=kill,
                faults=judge.faults(kill),
                seconds=seconds_of(kill, evidence),
            )
            for kill in drive.kills
        ]
        # A drive that broke off says itself which rounds are missing.
        wrong = [drive.trouble] if drive.trouble else judge.faults_of_run()
    finally:
        store.close()
    for one in judged:
        one.faults += [] if drive.trouble else wrong
    for fault in wrong:
        say(f"[{run.name}] FAULT of the run: {fault}")
    say(f"[{run.name}] {sum(not one.faults for one in judged)} of {len(judged)} passed")
    return judged


def attempt(run: Planned, directory: Path, server) -> list[Judged]:
    """Make a run; whatever breaks it fails its kills and none of another run."""
    try:
        return perform(run, directory, server if run.column == POSTGRESQL else None)
    except Exception as error:  # noqa: BLE001  # it is printed, and every kill of the run fails
        traceback.print_exc()
        silos = constant_run.SILOS
        return [
            Judged(run=run, kill=kill, faults=[f"{type(error).__name__}: {error}"])
            for kill in kills_of(run, silos)
        ]


def seconds_of(kill: Kill, evidence: Evidence) -> float:
    times = [
        dt.datetime.fromisoformat(one["at"]).timestamp()
        for silo in evidence.silos.values()
        for one in silo.events("record_adopted", kill.round)
    ]
    return max(times, default=kill.fell_at) - kill.fell_at


def lines_of(judged: list[Judged]) -> Iterator[str]:
    """The matrix."""
    head = f"{'phase':22} {'role':12} {'killed when':38} {'sqlite':>7} {'postgresql':>11} "
    yield head + f"{'suite v1':>9} {'standby':>8} {'s':>6}"
    for cell in CELLS:
        found = [one for one in judged if one.kill.cell == cell and one.run.column != TRAINING]
        if found:
            shown = [score([o for o in found if o.run.column == store]) for store in REPEATS]
            scores = f"{shown[0]:>7} {shown[1]:>11} {shown[2]:>9} {shown[3]:>8}"
            yield f"{_row(cell)} {scores} {_mean(found):>6}"
    trained = [one for one in judged if one.run.column == TRAINING]
    if trained:
        yield f"{'under real training':22} {'':12} {'':38} {'sqlite':>7}"
    for one in trained:
        yield f"{_row(one.kill.cell)} {score([one]):>7} {'':>30} {_mean([one]):>6}"
    by_fault: dict[str, list[str]] = defaultdict(list)
    for one in judged:
        for fault in one.faults:
            by_fault[fault].append(f"{one.run.name} {one.kill.cell.name}")
    for fault, where in by_fault.items():
        yield f"FAULT {fault}: {', '.join(where[:4])}{' …' if len(where) > 4 else ''}"


def _row(cell: Cell) -> str:
    return f"{cell.phase:22} {cell.role:12} {cell.what:38}"


def _mean(found: list[Judged]) -> str:
    times = [one.seconds for one in found if one.seconds]
    return f"{statistics.mean(times):.1f}" if times else "-"


def score(found: list[Judged]) -> str:
    return f"{sum(not one.faults for one in found)}/{len(found)}" if found else "-"


def figures(judged: list[Judged], seconds: float) -> dict[str, object]:
    counts = {
        column.replace(" ", "_").replace("-", "_"): score(
            [one for one in judged if one.run.column == column]
        )
        for column in (*REPEATS, TRAINING)
    }
    passed = sum(not one.faults for one in judged)
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "kills": len(judged),
        "passed": passed,
        **counts,
        "seconds": round(seconds),
        "cpu_seconds": round(cpu.ru_utime + cpu.ru_stime),
    }


def cells_of(column: str) -> tuple[Cell, ...]:
    """A standby makes a difference to the coordinator's deaths."""
    return tuple(cell for cell in CELLS if column != STANDBY or cell.role == COORDINATOR)


def planned(options: argparse.Namespace) -> list[Planned]:
    def chosen(cells: tuple[Cell, ...], name: str) -> tuple[Cell, ...]:
        only = options.only
        return tuple(c for c in cells if not only or any(p in c.name or p in name for p in only))

    stores = [options.store] if options.store else list(REPEATS)
    runs = [
        Planned(name=f"{store}-{number}", column=store, cells=cells_of(store), number=number)
        for store in stores
        for number in range(1, (options.repeat or REPEATS[store]) + 1)
    ]
    if options.store in {None, "sqlite"}:
        runs.append(Planned(name="real-training", column=TRAINING, cells=REAL_TRAINING))
    found = [
        Planned(name=run.name, column=run.column, number=run.number, cells=cells)
        for run in runs
        if (cells := chosen(run.cells, run.name))
    ]
    # With a part of a name, real training is asked for by its own.
    asked = {"real-training"} if not options.only else set(options.only)
    return [run for run in found if run.column != TRAINING or run.name in asked]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.chaos.matrix")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--store", choices=tuple(REPEATS))
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args(arguments)
    runs, started = planned(options), time.monotonic()
    if not runs:
        parser.error("no cell has such a name")
    directory = options.dir or Path(tempfile.mkdtemp(prefix="chorale-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        server = None
        if any(run.column == POSTGRESQL for run in runs):
            if reason := postgresql_server.unavailable():
                print(reason, file=sys.stderr)
                return 1
            server = postgresql_server.PostgresqlServer()
            stack.callback(server.close)
        with ThreadPoolExecutor(options.workers) as pool:
            parts = pool.map(lambda run: attempt(run, directory, server), runs)
            judged = [one for part in parts for one in part]
    for line in lines_of(judged):
        print(line)
    said = figures(judged, time.monotonic() - started)
    failed = said["kills"] != said["passed"]
    if options.dir or failed:
        say(f"the runs are in {directory}")
    else:
        shutil.rmtree(directory)
    print(json.dumps(said, separators=(",", ":")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
