"""What every command answers with: its result on stdout, what is said besides on stderr.

A result is what was asked for: a table, a list, a verdict, what was done. Progress, hints, notes,
questions and errors are said besides.

Envelope: ``{schema_version, status: "ok", data}`` or
``{schema_version, status: "error", error_code, message, hint, next_step}``.
Exit codes: 0 ok, 1 the coordinator or the daemon, 2 connection or authentication, 3 timeout,
4 arguments or files, 5 a bug.

Invariants: stdout carries the result, as lines or as one envelope when asked, and never an error;
every failure that a class of this package names becomes one envelope with a code, and says what to
do as a hint or a next step; anything else is a bug, says so, and shows on stderr where it came
from, without a value of anything; a reader of stdout or stderr that leaves, as `head` does, ends
the command without a word.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, NoReturn

__all__ = [
    "Answered",
    "CommandError",
    "Exit",
    "Format",
    "answering",
    "refuse_arguments",
    "say",
    "show_result",
    "succeed",
]

SCHEMA_VERSION = 1


class Format(StrEnum):
    """What stdout carries."""

    TEXT = "text"
    JSON = "json"


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    SERVER = 1
    CONNECT = 2
    TIMEOUT = 3
    ARGUMENTS = 4
    BUG = 5


class CommandError(Exception):
    """A command cannot do what it was asked to."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        exit_code: Exit,
        hint: str = "",
        next_step: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code
        self.hint = hint
        self.next_step = next_step or ("" if hint else _usual_step(exit_code))
        self.data = data


def _usual_step(exit_code: Exit) -> str:
    """What to do about an error that says nothing of its own about it."""
    if exit_code is Exit.ARGUMENTS:
        return "chorale-silo COMMAND --help says what the command takes"
    return "chorale-silo doctor examines everything step by step"


class Answered(SystemExit):
    """A command that failed has said so and ends with its exit code."""


def say(*lines: str) -> None:
    """What is no result: progress, a hint, a note. Each argument is one line, whatever is in it."""
    # Imported only when something is said: --help must not wait for the package behind it.
    from federation.printable import print_lines

    print_lines(sys.stderr, *lines)


def show_result(output: Format, *lines: str) -> None:
    """What was asked for, unless an envelope was asked for, which holds it."""
    if output is Format.TEXT:
        from federation.printable import print_lines

        print_lines(sys.stdout, *lines)


def succeed(output: Format, data: Mapping[str, Any]) -> None:
    """The envelope of a success."""
    if output is Format.JSON:
        _print({"schema_version": SCHEMA_VERSION, "status": "ok", "data": data})


@contextmanager
def answering(output: Format) -> Iterator[None]:
    """Turn whatever a command raises into one envelope and one exit code."""
    try:
        # Here and not above: --help must not wait for the packages behind it.
        from ops.logs.setup import logs_on_stderr

        with logs_on_stderr():
            yield
    except CommandError as error:
        _fail(output, error)
    except UnicodeEncodeError:
        text = "an argument is not text in UTF-8"
        _fail(output, CommandError(text, code="arguments", exit_code=Exit.ARGUMENTS))
    except Exception as error:  # noqa: BLE001 - the last resort: a bug still gets its envelope
        known = _known(error)
        if known is None:
            from ops.logs.errors import traceback_of

            # Without values: a daemon's stderr is its log, and a report is sent to others.
            say(*traceback_of(error).splitlines())
            known = CommandError(
                f"internal error: {type(error).__name__}",
                code="bug",
                exit_code=Exit.BUG,
                hint="this is a defect of chorale-silo; the traceback above belongs in its report",
            )
        _fail(output, known)


def refuse_arguments(arguments: Sequence[str]) -> NoReturn:
    """End a call whose arguments the parser refused and explained on stderr."""
    wants_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    error = CommandError(
        "the arguments are wrong; the reason is on stderr",
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step="chorale-silo COMMAND --help",
    )
    if wants_json:
        _print(_envelope(error))
    raise Answered(int(error.exit_code))


def _known(error: Exception) -> CommandError | None:
    # Imported only when something went wrong: the packages behind them are not free to load.
    from dp.errors import PrivacyError
    from evolution.errors import (
        BaseModelError,
        BufferStoreError,
        EnvironmentFailureError,
        EvolveError,
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
        | BufferStoreError,
    ):
        exit_code, hint, next_step = _OF_A_LEDGER.get(code, (Exit.ARGUMENTS, _ASK_DOCTOR, ""))
        return CommandError(
            str(error), code=code, exit_code=exit_code, hint=hint, next_step=next_step
        )
    if isinstance(error, OSError):
        return CommandError(
            str(error),
            code="file",
            exit_code=Exit.ARGUMENTS,
            hint="the file or directory cannot be used: check its path, its owner and the disk",
        )
    return None


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


def _fail(output: Format, error: CommandError) -> NoReturn:
    say(f"error: {error}")
    for label, text in (("hint", error.hint), ("next", error.next_step)):
        if text:
            say(f"{label}: {text}")
    if output is Format.JSON:
        _print(_envelope(error))
    raise Answered(int(error.exit_code))


def _envelope(error: CommandError) -> dict[str, Any]:
    envelope: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "error",
        "error_code": error.code,
        "message": str(error),
        "hint": error.hint,
        "next_step": error.next_step,
    }
    if error.data is not None:
        envelope["data"] = error.data
    return envelope


def _print(envelope: Mapping[str, Any]) -> None:
    from federation.printable import write

    write(sys.stdout, json.dumps(_plain(envelope), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """JSON has no infinity; it is written as its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
