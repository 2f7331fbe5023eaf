"""What every command of ``chorale-silo`` shares: its data directory, and what a failure means.

The contract of every command is ``ops/cli/envelope.py``'s; the code of a failure is its class's
name, or the word that the coordinator gave for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ops.cli.envelope import CommandError, Exit, Program

if TYPE_CHECKING:
    from silo_agent.errors import TransportError

__all__ = ["DEFAULT_DATA", "Data", "answering", "require_nothing_given"]

DEFAULT_DATA: Final = Path("silo-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]

_ASK_DOCTOR = "chorale-silo doctor examines this silo step by step"
_REJOIN = "ask the admin for a new invite (chorale invite), then chorale-silo join"
_NOTHING_LEAVES = "nothing was released, and nothing is until the ledger can be trusted"
_NAMED = "--data or CHORALE_SILO_DATA names this silo's data directory"
_ADVICE: dict[str, tuple[Exit, str, str]] = {
    "invite_malformed": (
        Exit.ARGUMENTS,
        "nothing was sent, and the invite can still be used",
        (
            "copy the whole line that chorale invite printed; chorale-silo join - reads it from "
            "standard input"
        ),
    ),
    "invite_expired": (
        Exit.CONNECT,
        "an invite has an end, which this machine's clock and the coordinator's say: date -u",
        f"if the clock is right, {_REJOIN}",
    ),
    "already_joined": (
        Exit.ARGUMENTS,
        "nothing was sent, and the invite can still be used",
        _NAMED,
    ),
    "not_joined": (Exit.ARGUMENTS, _NAMED, f"if it is the right one, {_REJOIN}"),
    "no_silo": (Exit.ARGUMENTS, _NAMED, "chorale-silo join makes one, from an invite"),
    "wrong_clock": (
        Exit.CONNECT,
        "nothing was sent, and the invite can still be used",
        (
            "set this machine's clock (timedatectl set-ntp true); if it is right, the admin sets "
            "the coordinator's, or restarts chorale-coordinator serve, which renews its certificate"
        ),
    ),
    "probe_port": (
        Exit.SERVER,
        "ss -ltnp shows who holds the port",
        "stop that program, or choose another probes_listen in silo.toml",
    ),
    # The daemon that holds it is in order; this call is one too many.
    "ledger_locked": (
        Exit.SERVER,
        "another chorale-silo daemon uses this data directory, and goes on",
        "stop that one first, or leave it: `chorale-silo status` shows it",
    ),
    "ledger_corrupt": (
        Exit.ARGUMENTS,
        _NOTHING_LEAVES,
        (
            "keep privacy.ledger as it is for your records, and put back a copy of it that holds "
            "everything this silo has signed; an older one is refused. Without such a copy, join "
            "again under a new silo id, in a new data directory"
        ),
    ),
    "ledger_rolled_back": (
        Exit.ARGUMENTS,
        f"what was spent would come back: {_NOTHING_LEAVES}",
        "put back the newest copy of privacy.ledger, together with state.json of the same moment",
    ),
}
"""Exit code, hint and next step, by the code of an error that the usual ones do not fit."""


def _known(error: Exception) -> CommandError | None:
    # Imported only when something went wrong: the packages behind them are not free to load.
    from dp.errors import PrivacyError
    from evolution.errors import EvolutionError
    from federation.errors import FederationError
    from secagg.errors import SecAggError
    from silo_agent.errors import SiloError, TransportError
    from silo_agent.identity.join import InviteRefusedError
    from silo_agent.identity.leaf import UntrustedCoordinatorError

    code = type(error).__name__.removesuffix("Error")
    code = "".join(f"_{c.lower()}" if c.isupper() else c for c in code).lstrip("_")
    if isinstance(error, InviteRefusedError | TransportError):
        # The coordinator's own word, or what is wrong with the invite.
        code = error.reason or code
    if code in _ADVICE:
        exit_code, hint, next_step = _ADVICE[code]
        return CommandError(
            str(error), code=code, exit_code=exit_code, hint=hint, next_step=next_step
        )
    if isinstance(error, TransportError):
        return _transport(error, code)
    if isinstance(error, InviteRefusedError):
        spent = code.startswith("invite_")
        return CommandError(
            str(error),
            code=code,
            exit_code=Exit.CONNECT,
            hint="an invite is redeemed once" if spent else "the invite was not redeemed",
            next_step=_REJOIN if spent else "mend what the text says, and join again with it",
        )
    if isinstance(error, UntrustedCoordinatorError):
        return CommandError(str(error), code=code, exit_code=Exit.CONNECT, next_step=_REJOIN)
    if isinstance(error, SiloError | PrivacyError | FederationError | SecAggError | EvolutionError):
        return CommandError(str(error), code=code, exit_code=Exit.ARGUMENTS, next_step=_ASK_DOCTOR)
    return None


def _transport(error: TransportError, code: str) -> CommandError:
    if error.late:
        return CommandError(
            str(error),
            code=code,
            exit_code=Exit.TIMEOUT,
            next_step=(
                "the coordinator did not answer in time: try again; if it stays so, "
                "chorale-silo doctor tells a slow coordinator from one that is not reached"
            ),
        )
    return CommandError(
        str(error),
        code=code,
        # A reason is the coordinator's own word; without one it was never reached.
        exit_code=Exit.SERVER if error.reason else Exit.CONNECT,
        next_step=(
            "chorale-silo doctor shows both versions"
            if error.reason == "version_mismatch"
            else "check the coordinator's address, this machine's clock and the certificate"
        ),
    )


answering = Program(name="chorale-silo", known=_known, package="chorale[silo]").answering


def require_nothing_given(context: typer.Context, group: str) -> None:
    """What stands before the name of a command below would be passed over without a word."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise CommandError(
                f"options go after `{context.invoked_subcommand}`",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
                next_step=f"chorale-silo {group} {context.invoked_subcommand} --help",
            )
