"""A grid of runs: several at a time, each in its own process, each written down when it is done.

Invariants:
    1. Only this process writes results (``results.py``); workers leave theirs in files.
    2. A finished run is never run again and never lost; one that was interrupted goes on after the
       last round that it finished (``state.py``). What was kept for that is removed once its rows
       are on the disk.
    3. A run that fails ends alone: the others go on, and the failure is reported at the end with
       its log.
    4. What would fail every run of a setting, such as an unknown aggregation, is found before the
       first one starts.

Covered: one machine, with as many workers as asked. Not covered: several machines; give each its
own ``--only`` and ``--out``, and report on both directories.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from federation.errors import FederationError
from lab.experiment.config import Run
from lab.experiment.engines.choice import EngineChoice
from lab.experiment.errors import ExperimentFileError
from lab.experiment.results import Results
from lab.experiment.state import remove_states
from lab.experiment.worker import ROWS, RUN, arguments_of

__all__ = ["Outcome", "require_aggregations", "run_all"]

_JUDGING_ROUNDS: Final = 1.0
"""What a run costs beside its rounds, in rounds; only the estimate of what is left uses it."""
_PROCESS: Final = EngineChoice()
_LOG: Final = "log.txt"
_THREADS: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a grid."""

    finished: int
    """Runs that were finished this time."""
    skipped: int
    """Runs that had been finished before."""
    failed: tuple[str, ...]
    """One line for each run that failed."""


def require_aggregations(runs: Sequence[Run]) -> None:
    """Make each aggregation that will be needed once.

    Raises:
        ExperimentFileError: One is unknown, or its options are wrong.
    """
    from evolution.model.lora import initial_adapter
    from lab.experiment.methods import METHODS
    from lab.experiment.single_run import aggregation_of

    problems = []
    for run in {run.setting: run for run in runs}.values():
        if METHODS[run.method].topology != "federated":
            continue
        first = initial_adapter(
            run.base,
            run.rank,
            run.alpha,
            run.seed,
            run.target,
            value_head=run.evolve.made.shares_value_head,
        )
        try:
            aggregation_of(run, first, silos=len(run.silos))
        except (ValueError, FederationError) as error:
            problems.append(f"setting {run.setting!r}: aggregation: {error}")
    if problems:
        raise ExperimentFileError(problems)


def run_all(
    runs: Sequence[Run],
    results: Results,
    *,
    workers: int,
    say: Callable[[str], None],
    choice: EngineChoice = _PROCESS,
) -> Outcome:
    """Run what is not done yet, in this order, ``workers`` at a time in processes of their own.

    ``say`` takes a line of progress; ``choice`` is where the members of each run work.
    """
    todo = [run for run in runs if (run.setting, run.seed) not in results.done]
    for run in runs:
        if (run.setting, run.seed) in results.done:
            # Of a process that was ended between writing the rows and removing it.
            remove_states(results.run_directory(run))
    grid = _Grid(todo=todo, results=results, workers=workers, say=say, choice=choice)
    if todo:
        say(f"{len(todo)} runs to do, {len(runs) - len(todo)} done before")
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            for future in [pool.submit(grid.play, run) for run in todo]:
                future.result()
        except BaseException:
            grid.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return Outcome(finished=grid.finished, skipped=len(runs) - len(todo), failed=tuple(grid.failed))


@dataclass(kw_only=True, slots=True)
class _Grid:
    """The state of a grid, shared by the threads that wait for workers."""

    todo: Sequence[Run]
    results: Results
    workers: int
    say: Callable[[str], None]
    choice: EngineChoice
    finished: int = 0
    failed: list[str] = field(default_factory=list)
    _ended: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _processes: set[subprocess.Popen[str]] = field(default_factory=set)
    _stopped: bool = False
    _started_s: float = field(default_factory=time.monotonic)
    _work_done: float = 0.0

    def play(self, run: Run) -> None:
        """Start a worker, relay its progress, take its rows."""
        directory = self.results.run_directory(run)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ROWS).unlink(missing_ok=True)
        (directory / RUN).write_text(run.model_dump_json(indent=1))
        code = self._work(run, directory)
        with self._lock:
            self._ended += 1
            if self._stopped:
                return
            if code or not (directory / ROWS).exists():
                self.failed.append(
                    f"{run.setting}, seed {run.seed}: exit code {code}: "
                    f"{_last_line(directory / _LOG)} (see {directory / _LOG})"
                )
                self.say(f"FAILED {self.failed[-1]}")
                return
            rows = [json.loads(line) for line in (directory / ROWS).read_text().splitlines()]
            self.results.append(rows)
            (directory / ROWS).unlink()
            remove_states(directory)
            self.finished += 1
            self._work_done += _JUDGING_ROUNDS
            self.say(
                f"{self._where(run)} done in {rows[-1]['wall_s']:.0f} s "
                f"[{self._ended} of {len(self.todo)} runs{self._left()}]"
            )

    def stop(self) -> None:
        """End all workers; next time each goes on after its last finished round."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()

    def _work(self, run: Run, directory: Path) -> int:
        with (directory / _LOG).open("w") as log:
            with self._lock:
                if self._stopped:
                    return 1
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "lab.experiment.worker", str(directory)),
                        *arguments_of(self.choice),
                    ],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **_THREADS},
                )
                self._processes.add(process)
            with process:
                for line in process.stdout or ():
                    self._relay(run, line)
            with self._lock:
                self._processes.discard(process)
            return process.returncode

    def _relay(self, run: Run, line: str) -> None:
        told = json.loads(line)
        with self._lock:
            self._work_done += 1
            explored = ""
            if told["episodes"]:
                explored = f", explored {100 * told['successes'] / told['episodes']:.1f} %"
            self.say(
                f"{self._where(run)} round {told['round']}/{run.rounds}{explored}, "
                f"{told['wall_s']:.1f} s{self._left()}"
            )

    def _where(self, run: Run) -> str:
        return f"{run.setting} seed {run.seed}:"

    def _left(self) -> str:
        """How long the rest may take, as rounds cost on average so far."""
        work = sum(run.rounds + _JUDGING_ROUNDS for run in self.todo)
        if not self._work_done:
            return ""
        passed_s = time.monotonic() - self._started_s
        left_s = passed_s * max(0.0, work - self._work_done) / self._work_done
        return f", about {left_s / 60:.0f} min left"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "no message"
