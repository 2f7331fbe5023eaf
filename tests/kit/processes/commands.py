"""Every command of every program, found by walking them."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

PROGRAMS = {
    "chorale": "server.cli.main",
    "chorale-coordinator": "server.cli.coordinator",
    "chorale-silo": "silo_agent.cli.main",
    "chorale-lab": "lab.cli.main",
}
LAB_COMMANDS = ("demo", "report")
"""Commands of ``chorale`` that come by entry point, loaded when they are called."""
BESIDES = ("error: ", "hint: ", "next", "note: ", "warning: ", "then: ")
"""How a line begins that is no result."""


@dataclass(frozen=True)
class Leaf:
    path: tuple[str, ...]
    command: Any

    @property
    def program(self):
        return self.path[0]

    @property
    def words(self):
        return self.path[1:]

    def __str__(self):
        return "-".join(self.path)


def tree(program):
    root = typer.main.get_command(import_module(PROGRAMS[program]).app)
    if program == "chorale":
        lab = typer.Typer()
        for name in LAB_COMMANDS:
            lab.command(name)(getattr(import_module("lab.demo.command"), name))
        root.commands |= typer.main.get_command(lab).commands
    return root


def walk(path, command):
    yield Leaf(path, command)
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from walk((*path, name), child)


NODES = [node for program in PROGRAMS for node in walk((program,), tree(program))]
LEAVES = [node for node in NODES if not hasattr(node.command, "commands")]
