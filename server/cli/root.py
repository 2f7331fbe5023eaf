"""``chorale root``: the consortium root, on another machine or user than the coordinator's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.envelope import Format, Output, answering, say, succeed

__all__ = ["app"]

app = typer.Typer(
    name="root",
    help=(
        "The consortium root key, which signs rosters. Keep it on another machine or user than the "
        "coordinator's: whoever holds both can invent silos."
    ),
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Option("--dir", help="The root's own directory, never on the coordinator's host.")
]


@app.command("init")
def init(directory: Directory, output: Output = Format.TEXT) -> None:
    """Make the root key. Give root.pub, and nothing else, to the coordinator."""
    with answering(output):
        from server.keys import read_public_key
        from server.root import create_root

        public = create_root(directory)
        say(f"made the consortium root in {directory}; keep it offline and backed up")
        say(f"next: carry {public} to the coordinator: chorale init --root-certificate root.pub …")
        succeed(output, {"root_public_key": str(public), "root_key": read_public_key(public).hex()})


@app.command("sign")
def sign(
    *,
    roster: Annotated[Path, typer.Argument(help="From chorale roster propose.")],
    directory: Directory,
    out: Annotated[
        Path | None, typer.Option("--out", help="The signed file; ROSTER.signed.json if not given.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; you checked the keys.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Show a proposed roster, ask, and sign it.

    Compare each key's fingerprint with what its silo reports over another channel. A roster that
    lists a silo nobody knows is how a coordinator would see through the masks.
    """
    with answering(output):
        from server.root import sign as sign_roster
        from server.roster_file import read_roster, roster_message, write_roster

        target = out or roster.with_name(f"{roster.stem}.signed.json")

        def confirm(text: str) -> bool:
            say(*text.splitlines())
            try:
                return yes or typer.confirm("sign this roster?", err=True)
            except typer.Abort:
                return False

        signed = sign_roster(read_roster(roster).roster, directory, confirm=confirm)
        write_roster(target, roster_message(signed))
        say(f"signed: {target}")
        say(f"next, at the coordinator: chorale roster publish {target}")
        succeed(
            output,
            {
                "roster": str(target),
                "epoch": signed.roster.epoch,
                "sha256": signed.roster.sha256.hex(),
            },
        )
