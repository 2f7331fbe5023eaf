"""What every command of ``chorale-silo`` shares: its data directory, and what a failure means.

The contract of every command is ``ops/cli/envelope.py``'s; the code of a failure is its class's
name, or the word that the coordinator gave for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ops.cli.envelope import CommandError, Exit, Program

__all__ = ["DEFAULT_DATA", "Data", "answering"]

DEFAULT_DATA: Final = Path("silo-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]

_ASK_DOCTOR = "chorale-silo doctor examines this silo step by step"
_OF_AN_IDENTITY = (
    "an invite is redeemed once: ask the admin for a new one (chorale invite), then "
    "chorale-silo join"
)
_NOTHING_LEAVES = "nothing was released, and nothing is until the ledger can be trusted"
_OF_A_LEDGER: dict[str, tuple[Exit, str, str]] = {
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
"""Exit code, hint and next step of errors that a ledger ends a command with."""


def _known(error: Exception) -> CommandError | None:
    # Imported only when something went wrong: the packages behind them are not free to load.
    from dp.errors import PrivacyError
    from evolution.errors import (
        BaseModelError,
        EnvironmentFailureError,
        EvolveError,
        MemoryStoreError,
    )
    from federation.errors import FederationError
    from secagg.errors import SecAggError
    from silo_agent.errors import IdentityError, SiloError, TransportError

    code = type(error).__name__.removesuffix("Error")
    code = "".join(f"_{c.lower()}" if c.isupper() else c for c in code).lstrip("_")
    if isinstance(error, TransportError):
        timeout = str(error).startswith("DEADLINE_EXCEEDED")
        return CommandError(
            str(error),
            code=error.reason or code,
            # A reason is the coordinator's own word; without one it was never reached.
            exit_code=Exit.TIMEOUT if timeout else Exit.SERVER if error.reason else Exit.CONNECT,
            next_step=(
                "chorale-silo doctor shows both versions"
                if error.reason == "version_mismatch"
                else "check the coordinator's address, this machine's clock and the certificate"
            ),
        )
    if isinstance(error, IdentityError):
        # An invite has a reason of its own: expired, spent, unknown or malformed.
        reason = getattr(error, "reason", "")
        return CommandError(
            str(error), code=reason or code, exit_code=Exit.CONNECT, hint=_OF_AN_IDENTITY
        )
    if isinstance(
        error,
        SiloError
        | PrivacyError
        | FederationError
        | SecAggError
        | EvolveError
        | EnvironmentFailureError
        | BaseModelError
        | MemoryStoreError,
    ):
        exit_code, hint, next_step = _OF_A_LEDGER.get(code, (Exit.ARGUMENTS, _ASK_DOCTOR, ""))
        return CommandError(
            str(error), code=code, exit_code=exit_code, hint=hint, next_step=next_step
        )
    return None


answering = Program(name="chorale-silo", known=_known).answering
