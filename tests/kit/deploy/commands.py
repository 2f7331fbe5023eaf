"""Whether a command line exists: its words are parsed by the console script's own parser."""

import os
from contextlib import contextmanager
from importlib import import_module

import typer

PROGRAMS = {
    "chorale": "server.cli.main",
    "chorale-coordinator": "server.cli.coordinator",
    "chorale-silo": "silo_agent.cli.main",
}


def require_command(words):
    """Parse a command line to its leaf, and run nothing.

    Raises:
        AssertionError: There is no such program or command, or its parser refuses the words.
    """
    program, *rest = words
    assert program in PROGRAMS, f"{program} is no command of ours"
    command = typer.main.get_command(import_module(PROGRAMS[program]).app)
    with _no_environment():
        while hasattr(command, "commands"):
            if command.invoke_without_command and (not rest or rest[0].startswith("-")):
                break
            assert rest, f"{words} names a group of commands"
            name, *rest = rest
            assert name in command.commands, f"{words}: there is no {name}"
            command = command.commands[name]
        try:
            command.make_context(words[-1], list(rest))
        except Exception as error:
            raise AssertionError(f"{words}: {error}") from error


@contextmanager
def _no_environment():
    """Without variables that would stand in for an option."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("CHORALE")}
    try:
        yield
    finally:
        os.environ.update(kept)
