"""What every command answers with: its result on stdout, what is said besides on stderr.

A result is what was asked for: a table, a list, a verdict, what was done. Progress, hints, notes,
questions and errors are said besides.

Envelope: ``{schema_version, status: "ok", data}`` or
``{schema_version, status: "error", error_code, message, hint, next_step}``, with ``data`` where a
failure has findings of its own (``doctor``).
Exit codes: 0 ok, 1 the coordinator or the daemon, 2 connection or authentication, 3 timeout,
4 arguments or files, 5 a bug.

Invariants:

1. stdout carries the result: as lines, or as one envelope when asked. An error is never on it.
2. Every failure that the :class:`Program` knows becomes one envelope with a stable code; anything
   else is a bug, says so, and shows on stderr where it came from, without a value of anything.
3. Every failure says what to do, as a hint or as a next step.
4. A reader of stdout or stderr that leaves, as `head` does, ends the command without a word.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any, Final, NoReturn

import typer

__all__ = [
    "Answered",
    "CommandError",
    "Exit",
    "Format",
    "Output",
    "Program",
    "command_line",
    "run_app",
    "say",
    "show_result",
    "succeed",
]

SCHEMA_VERSION: Final = 1
_PARSER_EXIT: Final = 2


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
        self.next_step = next_step
        self.data = data


class Answered(SystemExit):
    """A command that failed has said so and ends with its exit code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Whose command runs: what it is called, and what its own failures mean."""

    name: str
    """For hints."""

    known: Callable[[Exception], CommandError | None]
    """What one of its own failures is answered with; None for what it does not know."""

    package: str = "chorale"
    """What pip installs all of its commands' packages with."""

    @contextmanager
    def answering(self, output: Format) -> Iterator[None]:
        """Turn whatever a command raises into one envelope and one exit code.

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
        except Exception as error:  # noqa: BLE001 - the border of the process: all get an answer
            self._fail(output, self._command_error(error))

    def _command_error(self, error: Exception) -> CommandError:
        if isinstance(error, CommandError):
            return error
        if isinstance(error, UnicodeEncodeError):
            # Bytes that the shell gave, and that no field of a request can hold.
            return CommandError(
                "an argument is not text in UTF-8", code="arguments", exit_code=Exit.ARGUMENTS
            )
        known = self.known(error)
        if known is not None:
            return known
        if isinstance(error, ModuleNotFoundError) and _is_not_installed(error.name):
            return CommandError(
                f"a package is not installed: {error.name}",
                code="package_missing",
                exit_code=Exit.ARGUMENTS,
                hint=f"pip install '{self.package}'",
            )
        if isinstance(error, OSError):
            return CommandError(
                str(error),
                code="file",
                exit_code=Exit.ARGUMENTS,
                hint="the file or directory cannot be used: check its path, its owner and the disk",
            )
        from ops.logs.errors import traceback_of

        # Without values: a daemon's stderr is its log, and a report is sent to others.
        say(*traceback_of(error).splitlines())
        return CommandError(
            f"internal error: {type(error).__name__}",
            code="bug",
            exit_code=Exit.BUG,
            hint=f"this is a defect of {self.name}; the traceback above belongs in its report",
        )

    def _fail(self, output: Format, error: CommandError) -> NoReturn:
        next_step = error.next_step or ("" if error.hint else self._usual_step(error.exit_code))
        say(f"error: {error}")
        for label, text in (("hint", error.hint), ("next", next_step)):
            if text:
                say(f"{label}: {text}")
        if output is Format.JSON:
            _print(_envelope(error, next_step))
        raise Answered(int(error.exit_code))

    def _usual_step(self, exit_code: Exit) -> str:
        """What to do about an error that says nothing of its own about it."""
        if exit_code is Exit.ARGUMENTS:
            return f"{self.name} COMMAND --help says what the command takes"
        return f"{self.name} doctor examines everything step by step"


def command_line(*, name: str, help_text: str) -> typer.Typer:
    """A command line without commands that knows ``--version``."""
    return typer.Typer(
        name=name,
        help=help_text,
        callback=_before_any_command,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def _print_version(asked: bool) -> None:
    if asked:
        from federation.version import this_version

        show_result(Format.TEXT, f"chorale {this_version()}")
        raise typer.Exit


def _before_any_command(
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

    Each argument is one line, whatever is in it and wherever it came from.
    """
    # Imported only when something is said: --help must not wait for the package behind it.
    from federation.text import print_lines

    print_lines(sys.stderr, *lines)


def show_result(output: Format, *lines: str) -> None:
    """Print what was asked for, line by line, unless an envelope was asked for, which holds it."""
    if output is Format.TEXT:
        from federation.text import print_lines

        print_lines(sys.stdout, *lines)


def succeed(output: Format, data: Mapping[str, Any]) -> None:
    """Print the envelope of a success, if one was asked for."""
    if output is Format.JSON:
        _print({"schema_version": SCHEMA_VERSION, "status": "ok", "data": data})


def run_app(app: typer.Typer) -> None:
    """Run a command line; refused arguments exit with code 4."""
    try:
        app()
    except Answered:
        raise
    except SystemExit as stop:
        # The parser of arguments exits with 2, which here means connection or authentication.
        if stop.code != _PARSER_EXIT:
            raise
        arguments = sys.argv[1:]
        error = CommandError(
            "the arguments are wrong; the reason is on stderr",
            code="arguments",
            exit_code=Exit.ARGUMENTS,
            next_step=f"{app.info.name} COMMAND --help",
        )
        if "--format=json" in arguments or ("--format", "json") in pairwise(arguments):
            _print(_envelope(error, error.next_step))
        raise Answered(int(error.exit_code)) from None


def _is_not_installed(module: str | None) -> bool:
    """Whether all of a module's package is missing, and not a part of one that is there."""
    root = (module or "").partition(".")[0]
    return bool(root) and find_spec(root) is None


def _envelope(error: CommandError, next_step: str) -> dict[str, Any]:
    envelope: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "error",
        "error_code": error.code,
        "message": str(error),
        "hint": error.hint,
        "next_step": next_step,
    }
    return envelope if error.data is None else {**envelope, "data": error.data}


def _print(envelope: Mapping[str, Any]) -> None:
    from federation.text import write

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
