"""``chorale-lab run``: an experiment over settings and seeds, resumable."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.program import answering
from lab.cli.register import registration_told
from lab.experiment.engines.choice import EngineChoice, EngineKind, require_engine
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed

if TYPE_CHECKING:
    from lab.experiment.config import Run

__all__ = ["run"]


def run(
    experiment: Annotated[
        Path, typer.Argument(help="Experiment file, TOML.", exists=True, dir_okay=False)
    ],
    out: Annotated[
        Path,
        typer.Option(help="Directory for the results; continued if it exists.", file_okay=False),
    ],
    workers: Annotated[
        int, typer.Option(help="Runs at a time, each a process with one thread.", min=1, max=256)
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run this setting alone; repeat it for several.", show_default=False),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Run this seed alone; repeat it for several.", show_default=False),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would run, and stop.")] = False,
    force_new: Annotated[
        bool,
        typer.Option("--force-new", help="Set existing results aside and start again."),
    ] = False,
    registration: Annotated[
        Path | None,
        typer.Option(
            help="What was registered of it (chorale-lab register): whatever departs is refused.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        EngineKind,
        typer.Option(help="Where a run's silos work: one after another, or side by side on Ray."),
    ] = EngineKind.PROCESS,
    actors: Annotated[
        int, typer.Option(help="With ray: processes of each run; 0 is one for each core.")
    ] = 0,
    gpus_per_actor: Annotated[
        float, typer.Option(help="With ray: a part of one GPU, or several whole ones.")
    ] = 0.0,
    output: Output = Format.TEXT,
) -> None:
    """Run whole federations on one machine, for every setting and every seed of a file.

    An experiment file names a base model, silos with their environments and shards, and one row per
    setting: a method with what differs from the file's tables. The silos and their rounds are the
    product's own code; sums are fixed point modulo 2^32, plain or under real masks with the same
    bits.

    \b
    chorale-lab run experiments/fedse-shards.toml --out out --workers 2
    chorale-lab report out

    \b
    Methods, and what each learns from:
      pretrained         nothing: the base model
      local_static       each silo alone, its demonstrations
      local_evolution    each silo alone, its successes
      central_static     one silo with all demonstrations
      central_evolution  one silo with all tasks
      fedit              federated, demonstrations only
      fedse              federated self-evolution
      fedse_personal     and an adapter of each silo's own
      fedsa              and factors B of each silo's own
      clustered          one federation per family of 3 silos or more

    With --engine ray each run starts a Ray cluster of its own on this machine and ends it; its
    results are those of --engine process, bit for bit. It needs: pip install 'chorale[ray]'.

    End it at any time, by Ctrl-C or SIGTERM: finished runs are in results.jsonl, the others go on
    next time after the last round that they finished.
    Settings and seeds may be added to the file later; a finished run whose values were changed is
    refused, never overwritten.
    With --registration nothing runs that departs from what was registered: another file, setting,
    seed or panel. The directory keeps the registration and is held to it from then on.

    Exit code 1 if a run failed or the file is wrong.
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output), _sigterm_interrupts(), registration_told():
        from lab.experiment.errors import EngineError, ExperimentError

        choice = EngineChoice(kind=engine, actors=actors, gpus_per_actor=gpus_per_actor)
        try:
            require_engine(choice)
        except EngineError as error:
            raise CommandError(str(error), code="engine", exit_code=Exit.ARGUMENTS) from error
        try:
            failed = _run(
                experiment,
                out,
                workers=workers,
                only=only or [],
                seeds=seed or [],
                check=check,
                output=output,
                force_new=force_new,
                choice=choice,
                registered=registration,
            )
        except ExperimentError as error:
            raise CommandError(
                str(error),
                code="experiment",
                exit_code=Exit.SERVER,
                hint="the text names what to correct; --check says what would run",
            ) from error
        except KeyboardInterrupt:
            say("interrupted: the same command goes on with what is not finished")
            raise
        for line in failed:
            say(f"failed: {line}")
        if failed:
            raise CommandError(
                f"{len(failed)} runs failed",
                code="runs_failed",
                exit_code=Exit.SERVER,
                next_step="the same command goes on with the failed ones",
            )
        succeed(output, {"results": str(out)})


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """What a job scheduler or ``kill`` sends ends the workers too, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(
    experiment: Path,
    out: Path,
    *,
    workers: int,
    only: list[str],
    seeds: list[int],
    check: bool,
    output: Format,
    force_new: bool,
    choice: EngineChoice,
    registered: Path | None,
) -> tuple[str, ...]:
    from evolution.errors import BaseModelError
    from evolution.model.identity import base_sha256
    from lab.evidence.register import (
        hold_directory,
        require_no_new_start,
        require_registered,
    )
    from lab.evidence.registration import read_registration
    from lab.experiment.config import load_experiment
    from lab.experiment.errors import ExperimentError
    from lab.experiment.results import Results
    from lab.experiment.runner import require_aggregations, run_all

    loaded = load_experiment(experiment)
    base_dir = (experiment.resolve().parent / loaded.base).resolve()
    try:
        runs = loaded.runs(base_dir=base_dir, base_sha256=base_sha256(base_dir))
    except BaseModelError as error:
        raise ExperimentError(f"base: {error}") from error
    chosen = _chosen(runs, only, seeds)
    held = None if registered is None else read_registration(registered)
    if held is not None:
        require_registered(held, experiment.read_bytes(), chosen)
    require_aggregations(chosen)
    if check:
        for one in chosen:
            show_result(output, f"{one.setting} seed {one.seed}: {one.method}, {one.rounds} rounds")
        return ()
    with Results(out) as results:
        if force_new:
            require_no_new_start(out)
            if aside := results.set_aside():
                say(f"set aside: {aside}")
        results.require_same(runs)
        hold_directory(out, held, finished=len(results.done))
        results.keep_file(experiment.read_bytes())
        outcome = run_all(chosen, results, workers=workers, say=say, choice=choice)
    show_result(
        output,
        f"{outcome.finished} runs finished, {outcome.skipped} were finished before, "
        f"{len(outcome.failed)} failed: {out / 'results.jsonl'}",
    )
    return outcome.failed


def _chosen(runs: list[Run], only: list[str], seeds: list[int]) -> list[Run]:
    """The runs of the settings and seeds that were asked for; all where none was."""
    import difflib

    from lab.experiment.errors import ExperimentError

    settings = list(dict.fromkeys(run.setting for run in runs))
    for name in only:
        if name not in settings:
            nearest = difflib.get_close_matches(name, settings, n=1, cutoff=0.0)[0]
            raise ExperimentError(
                f"--only: there is no setting {name!r}; the nearest is {nearest!r}"
            )
    known = sorted({run.seed for run in runs})
    for number in seeds:
        if number not in known:
            raise ExperimentError(f"--seed: the file has the seeds {known}, not {number}")
    return [
        run
        for run in runs
        if (not only or run.setting in only) and (not seeds or run.seed in seeds)
    ]
