"""One run in a process of its own: ``python -m lab.experiment.worker DIRECTORY [OPTIONS]``.

Reads ``run.json`` of the directory; prints one JSON object per finished round to standard output;
leaves ``rows.jsonl`` and the final adapters there. A process for each run keeps one run's failure,
threads and memory from the others. What was kept of the run by a worker that was ended is taken up,
and each round's state is kept (``state.py``); who has taken the rows removes it. The options say
where members work (``engines/choice.py``).

Covered: what happens inside. Not covered: results as a whole; only ``runner.py`` writes those.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import structlog

from lab.experiment.config import read_run
from lab.experiment.engines.choice import EngineChoice, EngineKind
from lab.experiment.federation_round import RoundFigures
from lab.experiment.single_run import play_run, versions_of
from lab.experiment.state import RunStates

__all__ = ["ROWS", "RUN", "arguments_of", "asked", "main"]

RUN = "run.json"
ROWS = "rows.jsonl"


def arguments_of(choice: EngineChoice) -> list[str]:
    """What a worker is started with, after its directory, to work as ``choice`` says."""
    return [
        *("--engine", choice.kind),
        *("--actors", str(choice.actors)),
        *("--gpus-per-actor", str(choice.gpus_per_actor)),
    ]


def main(directory: Path, choice: EngineChoice, progress: TextIO) -> None:
    """Run what the directory's ``run.json`` describes, and tell ``progress`` of each round.

    Raises:
        ExperimentError: It cannot be run as asked.
    """
    run = read_run(directory / RUN)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    states = RunStates(directory=directory, run=run, versions=versions_of(run), say=_log)
    with tempfile.TemporaryDirectory(prefix="chorale-lab-") as scratch:
        result = play_run(
            run, Path(scratch), progress=partial(_tell, progress), states=states, choice=choice
        )
    result.write_adapters(directory)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in result.rows)
    part = directory / f"{ROWS}.part"
    part.write_text(text)
    # A file of that name is whole: whoever finds one need not ask whether this process ended well.
    part.replace(directory / ROWS)


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _tell(progress: TextIO, number: int, figures: RoundFigures, wall_s: float) -> None:
    told = {
        "round": number,
        "successes": figures.successes.total(),
        "episodes": figures.episodes.total(),
        "wall_s": wall_s,
    }
    progress.write(json.dumps(told) + "\n")
    progress.flush()


def asked(arguments: Sequence[str]) -> tuple[Path, EngineChoice]:
    """The directory and the engine that a worker was started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--engine", type=EngineKind, default=EngineKind.PROCESS)
    parser.add_argument("--actors", type=int, default=0)
    parser.add_argument("--gpus-per-actor", type=float, default=0.0)
    given = parser.parse_args(arguments)
    return given.directory, EngineChoice(
        kind=given.engine, actors=given.actors, gpus_per_actor=given.gpus_per_actor
    )


def _standard_output() -> TextIO:
    """Standard output, which ``runner.py`` reads, for progress alone.

    Whatever else writes there, as Ray does, writes to the log from here on; and processes that are
    started do not keep it open when this one is gone.
    """
    kept = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return kept


if __name__ == "__main__":
    with _standard_output() as output:
        main(*asked(sys.argv[1:]), output)
