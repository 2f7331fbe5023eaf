"""``chorale-lab partition``: who has which tasks, and which tasks the base solves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed

if TYPE_CHECKING:
    from lab.experiment.config import Experiment, Run
    from lab.experiment.tasks.panels import Panel
    from lab.experiment.tasks.report import PartitionReport

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="How tasks are dealt to silos, which the base solves, and which are judged on.",
)
_SHOWN_IDS = 6
_MEASURES = {"preference": "omega", "coverage": "xi", "hardness": "xi_hard"}
_File = Annotated[Path, typer.Argument(help="Experiment file, TOML.", exists=True, dir_okay=False)]


@app.callback()
def partition() -> None:
    """How tasks are dealt to silos, which the base solves, and which are judged on."""


@app.command()
def show(
    experiment: _File,
    seeds: Annotated[
        int, typer.Option(help="Dealings to take the mean of, from the table's seed on.", min=1)
    ] = 20,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=VALUE",
            help="Say also which dial has this dispersion; repeat for preference, coverage, "
            "hardness.",
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Say how unlike the silos are, beside what the formulas expect.

    For every partition of the file and every environment: how many tasks silos have, the dispersion
    of their types, of their sizes and of what the base solves, expected and measured, and whether
    types and solved tasks are independent, on which it rests that one dial leaves the others alone.

    \b
    chorale-lab partition show experiment.toml
    chorale-lab partition show experiment.toml --target preference=0.4
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output), _told():
        from lab.experiment.tasks.report import report_partition

        targets = _targets(target or [])
        runs = _runs(experiment)
        found: dict[Any, list[str]] = {}
        for run in runs:
            if run.partition is not None:
                found.setdefault(run.partition, []).append(run.setting)
        if not found:
            raise CommandError(
                f"{experiment} has no partition",
                code="experiment",
                exit_code=Exit.SERVER,
                hint="add [partition], or partition = {...} to a [[setting]]",
            )
        data = []
        for table, settings in found.items():
            for report in report_partition(runs[0], table, seeds=seeds, targets=targets):
                show_result(output, *_lines(report, list(dict.fromkeys(settings)), seeds))
                data.append({"settings": list(dict.fromkeys(settings)), **_data(report)})
        succeed(output, {"partitions": data, "seeds": seeds})


@app.command()
def judged(experiment: _File, output: Output = Format.TEXT) -> None:
    """Say which held-out tasks the file judges on, with the digest of each panel.

    A panel is the tasks of one environment. Its SHA-256 is over environment, task ids and what each
    task opens with, so that equal digests are equal tasks. Nothing is played, and no model is read.

    \b
    chorale-lab partition judged experiment.toml
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output), _told():
        from lab.experiment.config import load_experiment
        from lab.experiment.tasks.panels import panels_of

        loaded = load_experiment(experiment)
        base_dir = (experiment.resolve().parent / loaded.base).resolve()
        found: dict[tuple[str, str], tuple[Panel, list[str]]] = {}
        for run in {
            run.setting: run for run in loaded.runs(base_dir=base_dir, base_sha256="")
        }.values():
            for panel in panels_of(run):
                key = panel.environment, panel.sha256
                found.setdefault(key, (panel, []))[1].append(run.setting)
        data = []
        for panel, settings in found.values():
            purpose = panel.purpose or "no purpose: the first tasks of the split"
            show_result(
                output,
                f"{panel.environment}: {len(panel.opened)} tasks, {purpose}; {panel.distinct} open "
                f"differently; judged in {', '.join(settings)}",
                f"  sha256 {panel.sha256}",
                f"  task ids {_ids(panel)}",
            )
            data.append(
                {
                    "environment": panel.environment,
                    "purpose": panel.purpose,
                    **panel.described,
                    "distinct": panel.distinct,
                    "task_ids": [one.task_id for one in panel.opened],
                    "settings": settings,
                }
            )
        succeed(output, {"panels": data})


def _ids(panel: Panel) -> str:
    ids = [one.task_id for one in panel.opened]
    if ids == list(range(ids[0], ids[0] + len(ids))):
        return f"{ids[0]} to {ids[-1]}"
    shown = ", ".join(map(str, ids[:_SHOWN_IDS]))
    return (
        f"{shown} … {ids[-1]} (all of them with --format json)" if len(ids) > _SHOWN_IDS else shown
    )


@app.command()
def flags(
    experiment: _File,
    out: Annotated[Path, typer.Option(help="File to write; it must not be there yet.")],
    pool: Annotated[
        int | None,
        typer.Option(help="Training tasks of each environment; the file's largest pool.", min=1),
    ] = None,
    tries: Annotated[int, typer.Option(help="Tries at each task.", min=1, max=1024)] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=10)] = 0.0,
    threshold: Annotated[
        float, typer.Option(help="Success rate from which a task counts as solved.", min=0, max=1)
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Decides every draw.", min=0)] = 0,
    output: Output = Format.TEXT,
) -> None:
    """Play the training tasks of a pool with the base, and write down which it solves.

    The kinds hardness and joint of [partition] deal by this file (key solved). Held-out tasks are
    not played. Base, environments and [rollout] are the experiment's.

    \b
    chorale-lab partition flags experiment.toml --out flags.jsonl
    chorale-lab partition flags experiment.toml --out flags.jsonl --tries 4 --temperature 0.4
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output), _told():
        from lab.experiment.config import load_experiment
        from lab.experiment.tasks.flags import write_flags
        from lab.experiment.tasks.reference import Asked, play_base

        loaded = load_experiment(experiment)
        asked = Asked(
            pool=pool or _largest_pool(loaded),
            tries=tries,
            temperature=temperature,
            threshold=threshold,
        )
        if tries > 1 and temperature == 0:
            raise _wrong("--tries: greedy tries are all the same: give --temperature, or one try")
        if out.exists():
            raise _wrong(f"--out: {out} is there already: choose another name, or remove it")
        run = _reference(experiment, loaded).model_copy(update={"seed": seed})
        found = play_base(run, asked, say=say)
        sha256 = write_flags(out, found)
        solved = sum(flag.solved for flag in found)
        show_result(output, f"{out}: {solved} of {len(found)} tasks solved, sha256 {sha256}")
        succeed(output, {"out": str(out), "tasks": len(found), "solved": solved, "sha256": sha256})


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with an experiment or its partition, as an answer."""
    from evolution.errors import RolloutError
    from lab.experiment.errors import ExperimentError
    from lab.partitions.errors import PartitionError

    try:
        yield
    except (ExperimentError, PartitionError, RolloutError) as error:
        raise CommandError(
            str(error),
            code="experiment",
            exit_code=Exit.SERVER,
            hint="the text names what to correct",
        ) from error


def _wrong(text: str) -> CommandError:
    return CommandError(text, code="arguments", exit_code=Exit.ARGUMENTS)


def _runs(experiment: Path, loaded: Experiment | None = None) -> list[Run]:
    from evolution.model.identity import base_sha256
    from lab.experiment.config import load_experiment

    loaded = loaded or load_experiment(experiment)
    base_dir = (experiment.resolve().parent / loaded.base).resolve()
    return loaded.runs(base_dir=base_dir, base_sha256=base_sha256(base_dir))


def _reference(experiment: Path, loaded: Experiment) -> Run:
    """The base model alone: no partition, whose file of flags may not be there yet."""
    from lab.experiment.tables import SettingTable

    bare = SettingTable(name="reference", method="pretrained")
    update = {"setting": (bare,), "partition": None, "per_round": 0}
    return _runs(experiment, loaded.model_copy(update=update))[0]


def _largest_pool(loaded: Experiment) -> int:
    from lab.experiment.tasks.partition import overridden_partition

    tables = [loaded.partition] + [
        overridden_partition(loaded.partition, row.partition, f"setting.{index}.partition")
        for index, row in enumerate(loaded.setting)
    ]
    pools = [table.pool for table in tables if table is not None]
    if not pools:
        raise _wrong("--pool: the file has no partition, so say how many tasks are to be played")
    return max(pools)


def _targets(given: list[str]) -> dict[str, float]:
    found = {}
    for one in given:
        measure, _, value = one.partition("=")
        try:
            found[measure] = float(value)
        except ValueError:
            measure = ""
        if measure not in _MEASURES:
            raise _wrong(f"--target takes MEASURE=VALUE, of {', '.join(_MEASURES)}; got {one!r}")
    return found


def _lines(report: PartitionReport, settings: list[str], seeds: int) -> list[str]:
    table, sizes = report.table, report.sizes
    dials = [
        f"{name} = {value:g}"
        for name in _MEASURES.values()
        if (value := getattr(table, name)) is not None
    ]
    size = f"{sizes[0]}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    whose = f"{', '.join(settings)}: {table.kind} of {report.environment}, {', '.join(dials)}"
    who = f"{len(sizes)} silos with {size} tasks each; {report.union} of {table.pool} are in use"
    if report.moved:
        who += f"; {report.moved} are of another type than was drawn, which had run out"
    head = f"{'dispersion':12}{'formula':>10}{'expected':>10}{f'seed {table.seed}':>12}"
    lines = [whose, who, f"{head}  mean of {seeds} seeds"]
    for one in report.measures:
        error = "" if one.standard_error is None else f" ± {one.standard_error:.4f}"
        lines.append(
            f"{one.name:12}{one.formula:10.4f}{one.expected:10.4f}{one.measured:12.4f}  "
            f"{one.mean:.4f}{error}"
        )
    for name, value in report.dials.items():
        lines.append(f"the target of {name} is expected at {_MEASURES[name]} = {value:.6g}")
    if (test := report.independence) is not None:
        few = "" if test.is_reliable else "; too few tasks of a type to rely on it"
        lines.append(
            f"types and solved tasks: chi2 = {test.chi2:.2f} with {test.degrees} degrees, p = "
            f"{test.p_value:.3g}; a type's share of solved tasks is up to "
            f"{100 * test.deviation:.1f} points off the pool's{few}"
        )
    return lines


def _data(report: PartitionReport) -> dict[str, Any]:
    return {**asdict(report), "table": report.table.described()}
