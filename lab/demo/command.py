"""``chorale demo`` and ``chorale report``.

Both arrive in ``chorale`` through the entry-point group ``chorale.commands`` when the lab's
requirements are installed, because the server package never imports the lab.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.demo.scenario import Control, DemoSettings, Scenario

__all__ = ["demo", "report"]

DEFAULT_OUT = Path("demo-out")
OUTCOME = "outcome.json"
REPORT = "report.html"
MARKER = ".chorale-demo"
"""Says that a directory is a demo's own and may be emptied."""
LOG_WIDTH = 120
NEEDED = ("torch", "transformers", "peft", "gymnasium", "minigrid", "matplotlib")


def demo(
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for everything the demo makes; emptied first.", file_okay=False
        ),
    ] = DEFAULT_OUT,
    scenario: Annotated[
        Scenario, typer.Option(help="shards: one family dealt out; environments: one each.")
    ] = Scenario.SHARDS,
    rounds: Annotated[int, typer.Option(help="Rounds.", min=1, max=100)] = 8,
    episodes: Annotated[
        int, typer.Option(help="Episodes per silo and round, a multiple of 4.", min=4)
    ] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the plan.", min=0)] = 0,
    no_learning: Annotated[
        bool, typer.Option("--no-learning", help="Control: every delta is zero.")
    ] = False,
    no_exploration: Annotated[
        bool, typer.Option("--no-exploration", help="Control: no new trajectories.")
    ] = False,
    kill: Annotated[bool, typer.Option(help="Kill one silo in the middle of a round.")] = True,
    alone: Annotated[bool, typer.Option(help="Also run each silo alone.")] = True,
) -> None:
    """Run a whole federation on this machine and show that it learns.

    Four silos and a coordinator run as separate processes over mutual TLS, with masks and noise on.
    One silo is killed in the middle of a round and comes back. Takes a few minutes.
    """
    if no_learning and no_exploration:
        raise typer.BadParameter("choose one control: --no-learning or --no-exploration")
    _require_packages()
    from lab.demo.progress import Progress
    from lab.demo.report import print_tables, save_outcome, write_html
    from lab.demo.run import Demo, DemoError
    from lab.loopback import LoopbackError

    control = (
        Control.NO_LEARNING
        if no_learning
        else Control.NO_EXPLORATION
        if no_exploration
        else Control.NONE
    )
    settings = DemoSettings(
        scenario=scenario, control=control, rounds=rounds, episodes=episodes, seed=seed
    )
    _empty(out)
    progress = Progress()
    stage = Demo(directory=out, settings=settings, progress=progress, kill=kill, alone=alone)
    try:
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
    if control is Control.NONE:
        question, verdict = "together beats base and alone, intervals apart", outcome.better(1.0)
    else:
        question, verdict = "the control stays inside the base's interval", outcome.unmoved(1.0)
    console.print(f"{question} (temperature 1): {'yes' if verdict else 'no'}")
    sys.stdout.write(
        json.dumps(
            {
                "scenario": scenario.value,
                "control": control.value,
                "success": {who: round(interval.rate, 4) for who, interval in headline.items()},
                "question": question,
                "answer": verdict,
                "epsilon": outcome.epsilon,
                "seconds": {stage: round(s, 1) for stage, s in outcome.seconds.items()},
            }
        )
        + "\n"
    )


def report(
    out: Annotated[Path, typer.Argument(help="Directory of a finished demo.")] = DEFAULT_OUT,
) -> None:
    """Print a finished demo's tables again and rewrite its HTML page."""
    from lab.demo.report import load_outcome, print_tables, write_html

    path = out / OUTCOME
    if not path.exists():
        raise typer.BadParameter(f"{path} does not exist: run `chorale demo --out {out}` first")
    outcome, settings = load_outcome(path)
    print_tables(outcome, settings, _console())
    write_html(outcome, settings, out / REPORT)
    typer.echo(f"report: {out / REPORT}", err=True)


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


def _console() -> Console:
    """Standard output; wide enough for the table where there is no terminal to fit into."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)


def _empty(out: Path) -> None:
    """Empty a directory that an earlier demo made; refuse any other that holds something."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise typer.BadParameter(f"{out} holds something that no demo made: choose another")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
