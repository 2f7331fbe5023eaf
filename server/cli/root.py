"""``chorale root``: the consortium root, on another machine or user than the coordinator's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.program import answering

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


PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="Its first line is the key's passphrase; without it you are asked.",
    ),
]


@app.command("init")
def init(
    *,
    directory: Directory,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Encrypt the key with a passphrase.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    output: Output = Format.TEXT,
) -> None:
    """Make the root key. Give root.pub, and nothing else, to the coordinator.

    With --passphrase or --passphrase-file the key is encrypted; chorale root sign asks for it.
    """
    with answering(output):
        from federation.membership.roster_change import fingerprint
        from server.members.root import create_root
        from server.pki.keys import read_public_key

        secret = None
        if passphrase or passphrase_file is not None:
            secret = _passphrase(passphrase_file, new=True)
        public = create_root(directory, passphrase=secret)
        key = read_public_key(public)
        show_result(
            output,
            f"made the consortium root in {directory}; keep it offline and backed up",
            f"its fingerprint, as chorale-silo status shows it at each silo: {fingerprint(key)}",
        )
        say(f"next: carry {public} to the coordinator: chorale init --root-certificate root.pub …")
        succeed(
            output,
            {
                "root_public_key": str(public),
                "root_key": key.hex(),
                "root_fingerprint": fingerprint(key),
            },
        )


@app.command("sign")
def sign(
    *,
    roster: Annotated[Path, typer.Argument(help="From chorale roster propose.")],
    directory: Directory,
    out: Annotated[
        Path | None, typer.Option("--out", help="The signed file; ROSTER.signed.json if not given.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="SILO=FINGERPRINT",
            help="What chorale-silo status says at that silo; repeat it for each. With all of "
            "them and --colluding nobody is asked.",
        ),
    ] = None,
    colluding: Annotated[
        int | None,
        typer.Option("--colluding", help="The c that the members agreed on; another is refused."),
    ] = None,
    passphrase_file: PassphraseFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; you checked the keys.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Show a proposed roster, ask, and sign it.

    Compare each key's fingerprint with what its silo reports over another channel, or give what it
    reports with --expect: another key is then refused, also with --yes. A roster that
    lists a silo nobody knows, or a smaller c, is how a coordinator would see through the masks.
    """
    with answering(output):
        from server.members.root import sign as sign_roster
        from server.members.roster_file import read_roster, roster_message, write_roster

        expected = _expected(expect or [])
        target = out or roster.with_name(f"{roster.stem}.signed.json")

        def show(text: str) -> None:
            say(*text.splitlines())

        def confirm() -> bool:
            try:
                return yes or typer.confirm("sign this roster?", err=True)
            except typer.Abort:
                return False

        proposed = read_roster(roster).roster
        signed = sign_roster(
            proposed,
            directory,
            show=show,
            confirm=confirm,
            expected=expected,
            colluding=colluding,
            passphrase=lambda: _passphrase(passphrase_file),
        )
        write_roster(target, roster_message(signed))
        show_result(output, f"signed: {target}")
        say(f"next, at the coordinator: chorale roster publish {target}")
        succeed(
            output,
            {
                "roster": str(target),
                "epoch": signed.roster.epoch,
                "sha256": signed.roster.sha256.hex(),
                "compared": sorted(expected),
            },
        )


def _passphrase(file: Path | None, *, new: bool = False) -> bytes:
    from server.config import read_passphrase

    if file is None:
        try:
            prompted: str = typer.prompt(
                "passphrase of the root key", hide_input=True, confirmation_prompt=new, err=True
            )
        except typer.Abort:
            prompted = ""
        found = prompted.encode()
    else:
        found = read_passphrase(file)
    if not found:
        raise CommandError(
            "no passphrase was given",
            code="passphrase",
            exit_code=Exit.ARGUMENTS,
            hint="type it, or name a file with it: --passphrase-file",
        )
    return found


def _expected(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    found = {silo_id: reported for silo_id, _, reported in pairs}
    if not all(found.values()) or len(found) != len(pairs):
        raise CommandError(
            "--expect takes SILO=FINGERPRINT, once for each silo",
            code="arguments",
            exit_code=Exit.ARGUMENTS,
        )
    return found
