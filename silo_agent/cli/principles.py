"""``chorale-silo principles``: read, edit and delete what this silo's model wrote of its tries.

Principles are there where a plan says ``play = "principles"``. Each run has its own, in
``evolve/RUN/principles.sqlite``; the next round's tries read what an operator left. The commands
run while the daemon is stopped, as those of ``chorale-silo buffer`` do.

Texts are shown to whoever calls these commands, and go nowhere else: into no log and no message.

Covered: list, show, edit, delete. Not covered: what was learned from tries that read a principle,
which an adapter cannot forget; those tries, which ``chorale-silo buffer delete`` reaches.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering
from silo_agent.cli.stores import daemon_stopped, principles_of, typed

if TYPE_CHECKING:
    from pathlib import Path

    from evolution.principle import Principle

__all__ = ["principles_app"]

_LIST = "chorale-silo principles list"

principles_app = typer.Typer(
    help="What this silo's model wrote of its tries. Nothing of it leaves this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Name = Annotated[str, typer.Argument(help=f"Of a principle, as `{_LIST}` shows it.")]
OfRun = Annotated[
    str, typer.Option("--run", help="The run's directory, where several have one of that name.")
]


@principles_app.command("list")
def principles_list(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Every principle of every run, those that helped most first."""
    with answering(output), typed():
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        with daemon_stopped(config.data_dir):
            found = [
                (run, one) for run, kept in principles_of(config.data_dir) for one in kept.listed()
            ]
        for run, one in found:
            show_result(output, f"{one.id}  {_figures(one)}  {_place(run, one)}", f"  {one.text}")
        if not found:
            show_result(output, "no principles: no run here has a play that keeps some")
        succeed(output, {"principles": [_data(run, one) for run, one in found]})


@principles_app.command("show")
def principles_show(
    name: Name, run: OfRun = "", data: Data = DEFAULT_DATA, output: Output = Format.TEXT
) -> None:
    """One principle, with the conversations that it was made of."""
    with answering(output), typed():
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        with daemon_stopped(config.data_dir):
            of, one = _one(config.data_dir, name, run)
        show_result(output, one.text, f"{_figures(one)}, {_place(of, one)}, round {one.round}")
        show_result(output, *(f"made of {conversation}" for conversation in one.made_of))
        succeed(output, _data(of, one))


@principles_app.command("edit")
def principles_edit(
    name: Name,
    text: Annotated[
        str,
        typer.Option(
            help="The new text. Without it a line of standard input is read: other accounts can "
            "read the arguments of a command.",
            show_default=False,
        ),
    ] = "",
    run: OfRun = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Put your own text in the place of the model's.

    It is marked as edited, its uses are counted anew, and the model never
    changes it nor adds to it. Where a run protects each user by itself nothing
    is edited: what you know of others may not stand in a user's tries.
    """
    with answering(output), typed():
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        with daemon_stopped(config.data_dir):
            of, before = _one(config.data_dir, name, run)
            said = text or _read_line(before)
            for other, kept in principles_of(config.data_dir):
                if other == of:
                    kept.edit(name, said)
            _, one = _one(config.data_dir, name, of)
        show_result(output, f"edited {one.id}: {one.text}")
        succeed(output, _data(of, one))


@principles_app.command("delete")
def principles_delete(
    name: Name, run: OfRun = "", data: Data = DEFAULT_DATA, output: Output = Format.TEXT
) -> None:
    """Forget one principle, and overwrite what was there.

    The model may write the like of it again; edit it where you want another
    text to stand in its place. Adapters that learned from tries that read it
    stay as they are.
    """
    with answering(output), typed():
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        with daemon_stopped(config.data_dir):
            of, _ = _one(config.data_dir, name, run)
            for other, kept in principles_of(config.data_dir):
                if other == of:
                    kept.delete(name)
        show_result(output, f"deleted {name}")
        succeed(output, {"id": name, "run": of, "deleted": True})


def _one(data_dir: Path, name: str, run: str) -> tuple[str, Principle]:
    """A principle and the directory of its run; a CommandError unless there is exactly one."""
    found = [
        (of, one)
        for of, kept in principles_of(data_dir)
        if run in {"", of} and (one := kept.get(name)) is not None
    ]
    if len(found) > 1:
        raise CommandError(
            f"{len(found)} runs have a principle {name!r}",
            code="principle_of_several",
            exit_code=Exit.ARGUMENTS,
            hint="runs that began alike can have written the same",
            next_step=f"name one of them with --run: {', '.join(of for of, _ in found)}",
        )
    if not found:
        raise CommandError(
            f"there is no principle {name!r}" + (f" of run {run!r}" if run else ""),
            code="unknown_principle",
            exit_code=Exit.ARGUMENTS,
            next_step=f"{_LIST} shows those that there are",
        )
    return found[0]


def _read_line(before: Principle) -> str:
    if sys.stdin.isatty():
        try:
            return str(typer.prompt("the new text", default=before.text, err=True)).strip()
        except typer.Abort:
            return ""
    # A character more than any text may have, so that a longer one is refused and not cut.
    from evolution.principle import MOST_CHARS

    return sys.stdin.readline(MOST_CHARS + 2).strip()


def _figures(one: Principle) -> str:
    edited = ", edited" if one.edited else ""
    return f"score {one.score:.2f} ({one.successes} of {one.uses} tries succeeded{edited})"


def _place(run: str, one: Principle) -> str:
    whose = f"of {one.subject}" if one.subject else "of nobody"
    return f"{one.environment}, {whose}, run {run}"


def _data(run: str, one: Principle) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "made_of": list(one.made_of), "score": one.score, "run": run}
