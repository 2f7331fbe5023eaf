"""What every command answers with: its result on stdout, what is said besides on stderr.

A result is what was asked for: a table, a list, a verdict, what was done. Progress, hints, notes,
questions and errors are said besides.

Envelope: ``{schema_version, status: "ok", data}`` or
``{schema_version, status: "error", error_code, message, hint, next_step}``, with ``data`` where a
failure has findings of its own (``chorale doctor``).
Exit codes: 0 ok, 1 the coordinator, 2 connection or authentication, 3 timeout, 4 arguments or
files, 5 a bug.

Invariants:

1. stdout carries the result: as lines, or as one envelope when asked. An error is never on it.
2. Every typed failure becomes one envelope with a stable code; anything else is a bug, says so,
   and shows on stderr where it came from, without a value of anything.
3. Every failure says what to do, as a hint or as a next step.
4. A reader of stdout or stderr that leaves, as `head` does, ends the command without a word.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

__all__ = [
    "Answered",
    "CommandError",
    "Data",
    "Exit",
    "Format",
    "Output",
    "answering",
    "program",
    "run_app",
    "say",
    "show_result",
    "succeed",
]

SCHEMA_VERSION: Final = 1
DEFAULT_DATA: Final = Path("chorale-data")
_PARSER_EXIT: Final = 2
_DENIED: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
_ARGUMENTS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND"})


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


Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout, for scripts.")
]
Data = Annotated[
    Path,
    typer.Option(
        "--data", envvar="CHORALE_DATA", help="The coordinator's data directory, from chorale init."
    ),
]


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
        return "chorale COMMAND --help says what the command takes"
    return "chorale doctor examines everything step by step"


class Answered(SystemExit):
    """A command that failed has said so and ends with its exit code."""


def _print_version(asked: bool) -> None:
    if asked:
        from federation.version import this_version

        show_result(Format.TEXT, f"chorale {this_version()}")
        raise typer.Exit


def program(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and the protocols that it speaks.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Take what stands before the name of any command."""


def say(*lines: str) -> None:
    """Say what is no result: progress, a hint, a note.

    Args:
        lines: Each is one line, whatever is in it and wherever it came from.
    """
    # Imported only when something is said: --help must not wait for the package behind it.
    from federation.printable import print_lines

    print_lines(sys.stderr, *lines)


def show_result(output: Format, *lines: str) -> None:
    """Print what was asked for, unless an envelope was asked for, which holds it.

    Args:
        output: What stdout carries.
        lines: As for :func:`say`.
    """
    if output is Format.TEXT:
        from federation.printable import print_lines

        print_lines(sys.stdout, *lines)


def succeed(output: Format, data: Mapping[str, Any]) -> None:
    """Print the envelope of a success, if one was asked for.

    Args:
        output: What stdout carries.
        data: The command's result.
    """
    if output is Format.JSON:
        _print({"schema_version": SCHEMA_VERSION, "status": "ok", "data": dict(data)})


@contextmanager
def answering(output: Format) -> Iterator[None]:
    """Turn whatever a command raises into one envelope and one exit code.

    Args:
        output: What stdout carries.

    Yields:
        Nothing.

    Raises:
        Answered: With the exit code.
    """
    try:
        # Here and not above: --help must not wait for the packages behind it.
        from ops.logs.setup import logs_on_stderr

        with logs_on_stderr():
            yield
    except KeyboardInterrupt:
        raise Answered(130) from None
    except Exception as error:  # noqa: BLE001 - the border of the process: everything gets an answer
        _fail(output, _known(error))


def run_app(app: typer.Typer) -> None:
    """Run a command line; refused arguments exit with code 4.

    Args:
        app: The command line.
    """
    try:
        app()
    except Answered:
        raise
    except SystemExit as stop:
        # The parser of arguments exits with 2, which here means connection or authentication.
        if stop.code != _PARSER_EXIT:
            raise
        _refuse_arguments(app.info.name or "chorale", sys.argv[1:])


def _refuse_arguments(program: str, arguments: Sequence[str]) -> NoReturn:
    error = CommandError(
        "the arguments are wrong; the reason is on stderr",
        code="arguments",
        exit_code=Exit.ARGUMENTS,
        next_step=f"{program} COMMAND --help",
    )
    if "--format=json" in arguments or ("--format", "json") in pairwise(arguments):
        _print(_envelope(error))
    raise Answered(int(error.exit_code))


def _known(error: Exception) -> CommandError:
    if isinstance(error, CommandError):
        return error
    # Imported only when something went wrong: the packages behind them are not free to load.
    import grpc

    if isinstance(error, grpc.RpcError):
        return _rpc(error)
    from federation.errors import LogSettingError, TracingError
    from server.errors import CoordinatorError, Reason
    from server.rpc.catalogue import describe

    described = describe(error)
    # What the environment asks for is no refusal of a call; the texts say what to do.
    settings: dict[type, str] = {LogSettingError: "log_setting", TracingError: "tracing"}
    setting = settings.get(type(error), "")
    if isinstance(error, CoordinatorError) or described.reason is not Reason.INTERNAL:
        advice = described.hint if described.public else "chorale doctor examines this coordinator"
        if described.reason is Reason.STORE_AWAY:
            advice = (
                "give the command what the service has (CHORALE_COORDINATOR_DATABASE_URL, "
                "PGPASSFILE); chorale doctor says more"
            )
        return CommandError(
            str(error),
            code=setting or described.reason.value,
            exit_code=Exit.ARGUMENTS,
            hint="" if setting else advice,
        )
    if isinstance(error, UnicodeEncodeError):
        return CommandError(
            "an argument is not text in UTF-8",
            code="arguments",
            exit_code=Exit.ARGUMENTS,
        )
    given = _given(error)
    if given is not None:
        return given
    from ops.logs.errors import traceback_of

    # Without values: a daemon's stderr is its log, and a report is sent to others.
    say(*traceback_of(error).splitlines())
    return CommandError(
        f"internal error: {type(error).__name__}",
        code="bug",
        exit_code=Exit.BUG,
        hint="this is a defect of chorale; the traceback above belongs in its report",
    )


def _given(error: Exception) -> CommandError | None:
    """What a file or an argument is to blame for."""
    if isinstance(error, OSError):
        return CommandError(
            str(error),
            code="file",
            exit_code=Exit.ARGUMENTS,
            hint="the file or directory cannot be used: check its path, its owner and the disk",
        )
    if isinstance(error, UnicodeEncodeError) and re.search("[\udc80-\udcff]", error.object):
        # Bytes that the shell gave, and that no field of a request can hold.
        return CommandError(
            "an argument is not text in UTF-8", code="arguments", exit_code=Exit.ARGUMENTS
        )
    return None


def _rpc(error: Any) -> CommandError:
    trailers = dict(error.trailing_metadata() or ())
    reason = str(trailers.get("chorale-reason", ""))
    code = error.code().name
    if code == "UNIMPLEMENTED" and not reason:
        return CommandError(
            "the coordinator that runs is of an earlier version, which does not know this call",
            code="version_mismatch",
            exit_code=Exit.SERVER,
            next_step="upgrade the coordinator, or restart it: chorale doctor shows both versions",
        )
    if code == "DEADLINE_EXCEEDED":
        exit_code = Exit.TIMEOUT
    elif code in _DENIED or (not reason and code == "UNAVAILABLE"):
        exit_code = Exit.CONNECT
    elif code in _ARGUMENTS:
        exit_code = Exit.ARGUMENTS
    else:
        exit_code = Exit.SERVER
    return CommandError(
        str(error.details() or code),
        code=reason or code.lower(),
        exit_code=exit_code,
        hint=str(trailers.get("chorale-hint", "")),
        next_step=(
            "check that chorale-coordinator serve runs and that the admin certificate is still "
            "valid (chorale admin renew)"
            if exit_code is Exit.CONNECT and not reason
            else ""
        ),
    )


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
    return envelope if error.data is None else {**envelope, "data": dict(error.data)}


def _print(envelope: dict[str, Any]) -> None:
    from federation.printable import write

    write(sys.stdout, json.dumps(envelope, allow_nan=False) + "\n")
