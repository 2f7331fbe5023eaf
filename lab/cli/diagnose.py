"""``chorale-lab diagnose``: whether silos can share an adapter, and what has come of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed

if TYPE_CHECKING:
    from evolution.diagnose.diagnosis import Budget
    from lab.diagnose.observed import Observed
    from lab.experiment.config import Run

__all__ = ["diagnose"]


def diagnose(
    experiment: Annotated[
        Path, typer.Argument(help="Experiment file, TOML.", exists=True, dir_okay=False)
    ],
    out: Annotated[Path, typer.Option(help="Directory for the reports.", file_okay=False)],
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Probe this setting before it runs; repeat it for several."),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory with results.jsonl: say which pattern each setting has shown; repeat.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="GRPO steps of a probe in each environment.", min=1, max=64)
    ] = 2,
    episodes: Annotated[
        int, typer.Option(help="Episodes of T1 and T3 in each environment.", min=6, max=10_000)
    ] = 32,
    silos: Annotated[
        int, typer.Option(help="Silos to compare with each other, at most.", min=2, max=32)
    ] = 4,
    seed: Annotated[int, typer.Option(help="Decides every draw of the probes.", min=0)] = 0,
    temperature: Annotated[
        float | None, typer.Option(help="Of the curves of --results; the lowest one judged.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=BASELINE", help="Compare a setting with this one; repeat."),
    ] = None,
    dial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=VALUE",
            help="Its value of a divergence dial, for the slack of pattern C; repeat.",
        ),
    ] = None,
    horizon: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=STEPS", help="Its horizon, for the same; repeat."),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Probe settings before they run, and say which pattern those that ran have shown.

    Before: a few steps of GRPO in each environment, then T1 (do kernels agree where policies go),
    T2 (are the same actions best), T3 (does the environment show), where all fail a short federated
    probe beside the theorem's floor, and a predicted pattern A to D with what to do about it.

    After, with --results: the pattern by a written rule, blind to the prediction, and the dominant
    slack. The last line is JSON: predicted and observed patterns side by side.

    \b
    chorale-lab diagnose experiment.toml --setting catalog --out diagnosis
    chorale-lab diagnose experiment.toml --results out --out diagnosis

    Ended at any time, the same command goes on: adapters of the probes are kept in --out.
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output):
        from evolution.diagnose.diagnosis import Budget
        from evolution.errors import EvolutionError
        from lab.experiment.errors import ExperimentError
        from lab.report.errors import ReportError

        budget = Budget(steps=steps, episodes=episodes, seed=seed)
        try:
            runs = _runs(experiment, setting or [])
            if not runs and not results:
                raise _wrong("there is nothing to do: name a --setting, or --results")
            observed = None
            if results:
                observed = _observe(results, out, temperature, baseline, dial, horizon)
            for run in runs:
                _probe(run, out, budget, silos=silos, output=output)
        except (ExperimentError, ReportError, EvolutionError) as error:
            raise CommandError(
                str(error),
                code="diagnosis",
                exit_code=Exit.SERVER,
                hint="the text names what to correct",
            ) from error
        from lab.diagnose.document import predictions, summary, write_summary

        said = summary(predictions(out), observed)
        write_summary(out, said, observed)
        if observed is not None:
            for one in observed.seen:
                letter = one.assigned.pattern or "no pattern"
                show_result(output, f"{one.setting}: observed {letter}: {one.assigned.why}")
            for name, why in observed.left_out.items():
                show_result(output, f"{name}: no pattern: {why}")
            show_result(output, json.dumps(said, separators=(",", ":"), allow_nan=False))
        succeed(output, {"out": str(out), **said})


def _runs(experiment: Path, settings: list[str]) -> list[Run]:
    """The named settings at their first seed."""
    import difflib

    from evolution.model.identity import base_sha256
    from lab.experiment.config import load_experiment
    from lab.experiment.errors import ExperimentError

    loaded = load_experiment(experiment)
    known = [row.name for row in loaded.setting]
    for name in settings:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ExperimentError(
                f"--setting: there is no setting {name!r}; the nearest is {nearest!r}"
            )
    if not settings:
        return []
    base_dir = (experiment.resolve().parent / loaded.base).resolve()
    runs = loaded.runs(base_dir=base_dir, base_sha256=base_sha256(base_dir))
    first = {run.setting: run for run in reversed(runs)}
    return [first[name] for name in dict.fromkeys(settings)]


def _probe(run: Run, out: Path, budget: Budget, *, silos: int, output: Format) -> None:
    from evolution.diagnose.report import verdicts
    from lab.diagnose.document import KEPT, write_probes
    from lab.diagnose.setting import compared, diagnose_setting, task_chi2

    asked = compared(run, most=silos, tasks=budget.tasks)
    say(f"{run.setting}: comparing {', '.join(world.name for world in asked.worlds)}")
    out.mkdir(parents=True, exist_ok=True)
    found = diagnose_setting(run, asked, budget=budget, kept=out / KEPT, say=say)
    report = write_probes(out, run.setting, found, chi2=task_chi2(run), kinds=asked.kinds)
    for line in verdicts(found):
        show_result(output, f"{run.setting}: {line}")
    say(f"report: {report}")


def _observe(
    results: list[Path],
    out: Path,
    temperature: float | None,
    baseline: list[str] | None,
    dial: list[str] | None,
    horizon: list[str] | None,
) -> Observed:
    from lab.diagnose.document import write_observed
    from lab.diagnose.observed import Asked, observe
    from lab.report.errors import ReportError
    from lab.report.results import load_results

    loaded = load_results(results)
    if len(loaded.experiments) > 1:
        names = ", ".join(found.name for found in loaded.experiments)
        raise ReportError(f"--results: these are of several experiments ({names}): name one's")
    asked = Asked(
        temperature=temperature,
        baselines=_pairs("baseline", baseline),
        dial={name: _number("dial", one) for name, one in _pairs("dial", dial).items()},
        horizons={
            name: _number("horizon", one) for name, one in _pairs("horizon", horizon).items()
        },
    )
    observed = observe(loaded.experiments[0], asked)
    out.mkdir(parents=True, exist_ok=True)
    say(f"page: {write_observed(out, observed)}")
    return observed


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    found = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise _wrong(f"--{option} takes SETTING=VALUE; got {one!r}")
        found[name] = value
    return found


def _number(option: str, text: str) -> float:
    import math

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(f"--{option} takes a number; got {text!r}")
    return value


def _wrong(text: str) -> CommandError:
    return CommandError(text, code="arguments", exit_code=Exit.ARGUMENTS)
