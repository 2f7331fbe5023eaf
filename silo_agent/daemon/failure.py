"""What a failed instruction looks like in the log: one line, the check by its name.

Invariants: a line never holds a key, a share, a figure of the delta, or text of a trajectory; it
names the aggregation, so that lines of several silos can be laid side by side.

An error of no type that is expected here is a defect: its line has the frames that it came through
as well, which quote nothing (``ops/logs/errors.py``).

Covered: every error that the daemon survives. Not covered: a refusal of the guardian, which has a
line and a metric of its own.
"""

from __future__ import annotations

from typing import Final

import structlog

from dp.errors import PrivacyError
from federation.chain.task import RoundTask
from federation.errors import FederationError
from secagg.descriptor import SignedDescriptor
from secagg.errors import Check, SecAggError
from silo_agent.books.ledger import identity_name
from silo_agent.errors import SessionError, SiloError
from silo_agent.line.transport import Instruction, RoundClosed

__all__ = ["check_of", "report"]

_EXPECTED: Final = (SecAggError, PrivacyError, FederationError, SiloError, OSError)

log = structlog.get_logger(__name__)


def check_of(error: Exception) -> Check | None:
    """The named check of the protocol that failed, if it was one."""
    return error.check if isinstance(error, SecAggError | SessionError) else None


def report(error: Exception, instruction: Instruction | None) -> None:
    """Log one line: kind, detail, where known check, silo and identity; of a defect the frames."""
    check = check_of(error)
    log.error(
        "instruction_failed",
        kind=type(error).__name__,
        detail=error,
        check=None if check is None else check.value,
        silo=error.silo if isinstance(error, SecAggError) else None,
        identity=None if instruction is None else _identity(instruction) or None,
        exc_info=None if isinstance(error, _EXPECTED) else error,
    )


def _identity(instruction: Instruction) -> str:
    match instruction.payload:
        case SignedDescriptor() as signed:
            return identity_name(signed.descriptor.identity)
        case RoundTask() as task:
            return f"{task.run_id}/{task.round}"
        case RoundClosed() as closed:
            return f"{closed.record.run_id}/{closed.record.round}"
        case _:
            return "" if instruction.identity is None else identity_name(instruction.identity)
