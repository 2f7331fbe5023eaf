"""What the runs of one or more experiments say together.

Invariants:

* Only finished runs count, those with a `run` line. Unfinished ones are named, never mixed in.
* A run that was interrupted and repeated wrote some lines twice: the later line counts, and how
  many were replaced is said. A finished run has one `run` line.
* A setting belongs to the experiment that its `run` lines name.

Covered: files on this machine, up to 1 GiB, plain or gzipped (as `docs/experiments/data` keeps
them). Not covered: whether a result is true.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Self, cast

from lab.report.errors import ReportError, ResultsError
from lab.report.lines import (
    MAX_LINE_BYTES,
    EvalLine,
    Line,
    LineError,
    RoundLine,
    RunLine,
    parse_line,
)

__all__ = ["Experiment", "Results", "load_results"]

FILE_NAME: Final = "results.jsonl"
PACKED_NAME: Final = f"{FILE_NAME}.gz"
_MAX_FILE_BYTES: Final = 1 << 30
_Key = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """The finished runs of one experiment."""

    name: str
    """The experiment file's name."""
    runs: tuple[RunLine, ...]
    """In the order of the file."""
    rounds: tuple[RoundLine, ...]
    """Of finished runs."""
    evals: tuple[EvalLine, ...]
    """Of finished runs."""

    @property
    def settings(self) -> tuple[str, ...]:
        """In the order in which they were first finished."""
        return tuple(dict.fromkeys(run.setting for run in self.runs))

    def method_of(self, setting: str) -> str:
        """The method that a setting runs."""
        return next(run.method for run in self.runs if run.setting == setting)

    def seeds_of(self, setting: str) -> tuple[int, ...]:
        """The seeds at which a setting is finished, ascending."""
        return tuple(sorted(run.seed for run in self.runs if run.setting == setting))


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Everything that was read."""

    experiments: tuple[Experiment, ...]
    """In the order in which they first appear."""
    unfinished: tuple[tuple[str, int], ...]
    """Settings and seeds that have lines but no `run` line."""
    replaced: int
    """Lines of interrupted runs that were written again."""

    def of_label(self, label: str) -> Self:
        """The same with what was judged on tasks of one label alone.

        Raises:
            ReportError: Nothing was.
        """
        kept = tuple(
            replace(found, evals=tuple(line for line in found.evals if line.label == label))
            for found in self.experiments
        )
        if not any(found.evals for found in kept):
            raise ReportError(f"nothing was judged on tasks of the label {label!r}")
        return replace(self, experiments=kept)


def load_results(directories: Sequence[Path]) -> Results:
    """Read `results.jsonl` of each directory, or `results.jsonl.gz` where there is no other.

    Raises:
        ResultsError: A line breaks the contract.
        ReportError: A directory has no results file, or no run is finished.
    """
    experiments: dict[str, list[Experiment]] = {}
    unfinished: list[tuple[str, int]] = []
    replaced = 0
    for directory in directories:
        path = directory / FILE_NAME
        if not path.exists() and path.with_name(PACKED_NAME).exists():
            path = path.with_name(PACKED_NAME)
        found = _read(path)
        replaced += found.replaced
        unfinished += found.unfinished
        for experiment in found.experiments:
            experiments.setdefault(experiment.name, []).append(experiment)
    if not experiments:
        raise ReportError("no run is finished: there is nothing to report")
    return Results(
        experiments=tuple(_joined(parts) for parts in experiments.values()),
        unfinished=tuple(dict.fromkeys(unfinished)),
        replaced=replaced,
    )


def _read(path: Path) -> Results:
    if not path.is_file():
        raise ReportError(f"{path} is not a file")
    kept: dict[_Key, Line] = {}
    experiment_of: dict[str, str] = {}
    replaced = 0
    with _opened(path) as file:
        number, size = 0, 0
        while text := file.readline(MAX_LINE_BYTES + 1):
            number, size = number + 1, size + len(text)
            if size > _MAX_FILE_BYTES:
                raise ResultsError(path, number, f"larger than {_MAX_FILE_BYTES} bytes")
            if len(text) > MAX_LINE_BYTES:
                raise ResultsError(path, number, f"longer than {MAX_LINE_BYTES} bytes")
            try:
                line = parse_line(text)
            except LineError as error:
                raise ResultsError(path, number, str(error)) from error
            key = _key(line)
            if isinstance(line, RunLine):
                if key in kept:
                    raise ResultsError(path, number, "this run was already finished")
                if experiment_of.setdefault(line.setting, line.experiment) != line.experiment:
                    raise ResultsError(path, number, "this setting belongs to another experiment")
            replaced += key in kept
            kept[key] = line
    return _grouped(kept.values(), experiment_of, replaced)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's lines, decompressed where it is packed.

    Raises:
        ResultsError: It is not what its name says.
    """
    try:
        with gzip.open(path) if path.name == PACKED_NAME else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ResultsError(path, 0, f"is not a whole gzip file: {error}") from error


def _key(line: Line) -> _Key:
    if isinstance(line, RunLine):
        return ("run", line.setting, line.seed)
    if isinstance(line, RoundLine):
        return ("round", line.setting, line.seed, line.round)
    return (
        "eval", line.setting, line.seed, line.round, line.silo, line.scope, line.environment,
        line.label, line.temperature,
    )  # fmt: skip


def _grouped(lines: Iterable[Line], experiment_of: dict[str, str], replaced: int) -> Results:
    lines = list(lines)
    done = {(line.setting, line.seed) for line in lines if isinstance(line, RunLine)}
    experiments = []
    for name in dict.fromkeys(experiment_of.values()):
        own = [
            line
            for line in lines
            if experiment_of.get(line.setting) == name and (line.setting, line.seed) in done
        ]
        experiments.append(
            Experiment(
                name=name,
                runs=tuple(line for line in own if isinstance(line, RunLine)),
                rounds=tuple(line for line in own if isinstance(line, RoundLine)),
                evals=tuple(line for line in own if isinstance(line, EvalLine)),
            )
        )
    started = dict.fromkeys((line.setting, line.seed) for line in lines)
    return Results(
        experiments=tuple(experiments),
        unfinished=tuple(run for run in started if run not in done),
        replaced=replaced,
    )


def _joined(parts: Sequence[Experiment]) -> Experiment:
    runs = tuple(run for part in parts for run in part.runs)
    keys = [(run.setting, run.seed) for run in runs]
    if len(set(keys)) != len(keys):
        raise ReportError(f"two directories have the same run of {parts[0].name}")
    return Experiment(
        name=parts[0].name,
        runs=runs,
        rounds=tuple(line for part in parts for line in part.rounds),
        evals=tuple(line for part in parts for line in part.evals),
    )
