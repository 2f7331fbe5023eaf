"""What commands of ``chorale`` share: the data directory, a run's place, what a failure means.

The contract of every command is ``ops/cli/envelope.py``'s; codes of failures are the reasons of the
coordinator's catalogue, whether it was called or works here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.envelope import CommandError, Exit, Program

if TYPE_CHECKING:
    from chorale.v1 import admin_pb2

__all__ = ["DEFAULT_DATA", "NOT_POST_QUANTUM", "Data", "answering", "place_of"]

DEFAULT_DATA: Final = Path("chorale-data")
NOT_POST_QUANTUM: Final = "suite v1: not post-quantum"
Data = Annotated[
    Path,
    typer.Option(
        "--data", envvar="CHORALE_DATA", help="The coordinator's data directory, from chorale init."
    ),
]
_NOBODY_THERE: Final = (
    "check that chorale-coordinator serve runs and that the admin certificate is still valid "
    "(chorale admin renew)"
)
_SLOW: Final = (
    "the coordinator did not answer in time: look at its load, its disk and its database "
    "(storage_failed in its log), then try again"
)
_DENIED: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
_ARGUMENTS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND"})


def place_of(run: admin_pb2.RunSummary, round_number: int, step: int) -> str:
    """Where a run is; steps are named where a round has several, and count from 1 for people.

    ``step`` counts from 0.
    """
    named = f", step {step + 1}/{run.steps}" if run.steps > 1 and round_number else ""
    return f"round {round_number}/{run.rounds}{named}"


def _known(error: Exception) -> CommandError | None:
    # Imported only when something went wrong: the packages behind them are not free to load.
    import grpc

    if isinstance(error, grpc.RpcError):
        return _rpc(error)
    from federation.errors import LogSettingError, TracingError
    from server.errors import AlreadyServedError, CoordinatorError, ListenError, Reason
    from server.rpc.catalogue import describe

    described = describe(error)
    if not isinstance(error, CoordinatorError) and described.reason is Reason.INTERNAL:
        return None
    # What the environment asks for is no refusal of a call; the texts say what to do.
    settings: dict[type, str] = {LogSettingError: "log_setting", TracingError: "tracing"}
    setting = settings.get(type(error), "")
    advice = described.hint if described.public else "chorale doctor examines this coordinator"
    if described.reason is Reason.STORE_AWAY:
        advice = (
            "give the command what the service has (CHORALE_COORDINATOR_DATABASE_URL, "
            "PGPASSFILE); chorale doctor says more"
        )
    return CommandError(
        str(error),
        code=setting or described.reason.value,
        # What was given is in order there; another program stands in the way.
        exit_code=Exit.SERVER
        if isinstance(error, AlreadyServedError | ListenError)
        else Exit.ARGUMENTS,
        hint="" if setting else advice,
    )


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
    steps = {Exit.CONNECT: _NOBODY_THERE, Exit.TIMEOUT: _SLOW}
    return CommandError(
        str(error.details() or code),
        code=reason or code.lower(),
        exit_code=exit_code,
        hint=str(trailers.get("chorale-hint", "")),
        next_step="" if reason else steps.get(exit_code, ""),
    )


answering = Program(name="chorale", known=_known).answering
