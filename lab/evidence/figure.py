"""One figure of two settings, and their difference at equal seeds.

A figure says where success is read: at which temperature, after which round, and on which tasks.

    all      the mean over environments of the tasks that a row is judged on (``scores.py``)
    own      the mean over silos of the tasks of their shards (``silos.py``)
    unseen   the mean over silos of the tasks of their families that they never saw

Invariants: both settings are read at the same temperature, on the same tasks, at equal seeds; a
setting without rounds, such as the base model, is read as it is at any round.

Covered: what a report compares. Not covered: plateaus, and figures over silos of one setting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from lab.evidence.errors import FigureError
from lab.report.errors import ReportError
from lab.report.paired import Difference
from lab.report.results import Experiment
from lab.report.scores import Row, compare, counted_environments, rows_of
from lab.report.silos import Option, Silos

__all__ = ["LAST", "Figure", "difference_of"]

LAST: Final = "last"


class Figure(BaseModel):
    """Where success is read."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    tasks: Literal["all", "own", "unseen"] = "all"
    """Which tasks; see the module."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Of the judge; 0 is greedy."""
    round: Annotated[int, Field(ge=0, le=10_000)] | Literal["last"] = "last"
    """After which round; ``last`` is each run's last judged one."""

    @property
    def words(self) -> str:
        """As a table says it."""
        at = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        when = "last round" if self.round == LAST else f"round {self.round}"
        return f"{self.tasks} tasks, {at}, {when}"


def difference_of(
    experiment: Experiment, setting: str, reference: str, figure: Figure
) -> Difference:
    """Setting minus reference, as a rate, at the seeds that both have.

    A setting with several kinds of adapters is named with the kind, as reports name its rows:
    ``fedse (personal)``.

    Raises:
        FigureError: One of them is not there, or they were not judged on the same tasks.
    """
    if figure.round != LAST:
        experiment = _at(experiment, figure.round)
    try:
        if figure.tasks == "all":
            counted = counted_environments(experiment)
            rows = rows_of(experiment)
            first, second = (_row(rows, name, figure) for name in (setting, reference))
            return compare(first, second, figure.temperature, counted).macro
        silos = Silos(experiment, figure.temperature)
        option, alone = (_option(silos, name, figure) for name in (setting, reference))
        if not silos.indices:
            raise FigureError("no line says which tasks a silo owns")
        return silos.gain(option, alone, figure.tasks)
    except ReportError as error:
        raise FigureError(f"{setting} − {reference}, {figure.words}: {error}") from error


def _at(experiment: Experiment, number: int | str) -> Experiment:
    still = {run.setting for run in experiment.runs if run.rounds == 0}
    return replace(
        experiment,
        evals=tuple(
            line for line in experiment.evals if line.round == number or line.setting in still
        ),
    )


def _row(rows: tuple[Row, ...], name: str, figure: Figure) -> Row:
    for row in rows:
        if row.name == name:
            return row
    known = ", ".join(row.name for row in rows)
    raise FigureError(
        f"no finished run was judged as {name!r} ({figure.words}); there are: {known or 'none'}"
    )


def _option(silos: Silos, name: str, figure: Figure) -> Option:
    for option in silos.options:
        own = [found for found in silos.options if found.setting == option.setting]
        whole = len(own) == 1 or option.scope == "global"
        if name == option.name or (whole and name == option.setting):
            return option
    known = ", ".join(option.name for option in silos.options)
    raise FigureError(
        f"no finished run was judged as {name!r} ({figure.words}); there are: {known or 'none'}"
    )
