"""Where ``chorale-silo join`` takes the invite from.

An argument stands in the list of processes, which other accounts of the machine can read, and an
invite is a secret until it is redeemed. So it may also come on standard input or be typed.
"""

from __future__ import annotations

import sys
from typing import Final

import typer

from federation.membership.invite import MAX_CHARS
from silo_agent.cli.envelope import CommandError, Exit

__all__ = ["STDIN", "read_invite"]

STDIN: Final = "-"


def read_invite(given: str) -> str:
    """The invite itself.

    Args:
        given: The argument: an invite, ``-`` for a line of standard input, or nothing to be asked.

    Raises:
        CommandError: Nothing is given and nobody can be asked, or nothing came.
    """
    if given == STDIN:
        invite = sys.stdin.readline(MAX_CHARS + 2).strip()
    elif given:
        invite = given
    elif sys.stdin.isatty():
        try:
            invite = str(typer.prompt("the invite, which is not shown", hide_input=True, err=True))
        except typer.Abort:
            invite = ""
    else:
        invite = ""
    if not invite.strip():
        raise CommandError(
            "no invite was given",
            code="invite_absent",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale-silo join - reads it from standard input, one line",
        )
    return invite.strip()
