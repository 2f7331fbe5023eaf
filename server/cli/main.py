"""``chorale``: the admin's command line.

The contract of every command is ``ops/cli/envelope.py``'s. Heavy packages are imported inside the
commands, so that ``--help`` answers at once. Commands of other packages arrive by the
entry-point group ``chorale.commands`` (each a function with typer's annotations) and are loaded
only when called: the server knows no name of the lab. None of them takes the place of a command of
this package, so where one of these is called the others are not looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ops.cli.envelope import Answered, Exit, command_line, run_app, say
from server.cli import (
    adapter,
    audit,
    backup,
    budget,
    certificates,
    deploy,
    doctor,
    federation,
    root,
    run,
    silo,
    sizing,
    transcript,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["app", "main"]

GROUP: Final = "chorale.commands"

app = command_line(
    name="chorale",
    help_text=(
        "Federations of organisations that evolve one agent together and share no data.\n\n"
        "First steps: chorale root init (elsewhere), chorale init, chorale-coordinator serve, "
        "chorale federation create, chorale invite, chorale roster propose, chorale root sign, "
        "chorale roster publish, chorale plan new, chorale run start."
    ),
)
app.add_typer(root.app)
app.command("init")(federation.init)
app.command("doctor")(doctor.doctor)
app.add_typer(federation.federation_app, name="federation")
app.command("invite")(federation.invite)
app.add_typer(silo.app, name="silo")
app.add_typer(certificates.ca_app, name="ca")
app.add_typer(federation.roster_app, name="roster")
app.add_typer(sizing.app, name="plan")
app.add_typer(run.app, name="run")
app.add_typer(adapter.app, name="adapter")
app.command("budget")(budget.budget)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.add_typer(audit.app, name="audit")
app.add_typer(transcript.app, name="transcript")
app.command("verify-transcript")(transcript.verify)
app.add_typer(certificates.admin_app, name="admin")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """Run the command line."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    own = _own()
    if called not in own:
        _add_others(called, own)
    run_app(app)


def _own() -> set[str]:
    """Names of the commands and groups of this package."""
    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        names.append(group.name)
        if group.typer_instance is not None:
            names.append(group.typer_instance.info.name)
    return {name for name in names if isinstance(name, str)}


def _add_others(called: str, own: set[str]) -> None:
    """Load the command of another package that is called, and list the rest."""
    # It looks through all installed packages, which takes as long as --help does besides.
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name == called:
            app.command(entry.name)(_load(entry))
        elif entry.name not in own:
            app.command(entry.name, help=f"See chorale {entry.name} --help.")(_listed)


def _load(entry: EntryPoint) -> Callable[..., Any]:
    try:
        command: Callable[..., Any] = entry.load()
    except ImportError as error:
        say(f"error: chorale {entry.name} needs more packages: {error}")
        say("hint: pip install 'chorale[lab]'")
        raise Answered(int(Exit.ARGUMENTS)) from error
    return command


def _listed() -> None:
    """Name a command in the list; the one that is called is loaded instead."""


if __name__ == "__main__":
    main()
