"""One run in a process of its own: ``python -m lab.experiment.worker DIRECTORY``.

Reads ``run.json`` of the directory; prints one JSON object per finished round to standard output;
leaves ``rows.jsonl`` and the final adapters there. A process for each run keeps one run's failure,
threads and memory from the others. What was kept of the run by a worker that was ended is taken up,
and each round's state is kept (``state.py``); who has taken the rows removes it.

Covered: what happens inside. Not covered: results as a whole; only ``runner.py`` writes those.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import structlog

from lab.experiment.config import read_run
from lab.experiment.federation_round import RoundFigures
from lab.experiment.single_run import play_run, versions_of
from lab.experiment.state import RunStates

__all__ = ["ROWS", "RUN", "main"]

RUN = "run.json"
ROWS = "rows.jsonl"


def main(directory: Path) -> None:
    """Run what the directory's ``run.json`` describes.

    Raises:
        ExperimentError: It cannot be run as asked.
    """
    run = read_run(directory / RUN)
    # Standard output is for progress, and ``runner.py`` reads it.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    states = RunStates(directory=directory, run=run, versions=versions_of(run), say=_log)
    with tempfile.TemporaryDirectory(prefix="chorale-lab-") as scratch:
        result = play_run(run, Path(scratch), progress=_tell, states=states)
    result.write_adapters(directory)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in result.rows)
    part = directory / f"{ROWS}.part"
    part.write_text(text)
    # A file of that name is whole: whoever finds one need not ask whether this process ended well.
    part.replace(directory / ROWS)


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _tell(number: int, figures: RoundFigures, wall_s: float) -> None:
    told = {
        "round": number,
        "successes": figures.successes.total(),
        "episodes": figures.episodes.total(),
        "wall_s": wall_s,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
