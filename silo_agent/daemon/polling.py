"""The daemon's loop: ask, obey, pause, and decide what is asked for again.

Invariants:

1. No failure ends the loop, of whatever type and however many there are: a coordinator that finds
   a defect here must not stop this silo with it, nor again at each start. After each failure in a
   row the pause doubles, up to ``MAX_PAUSE_S``. Only ``survive`` can end the loop: it raises.
2. A failure that may pass costs nothing but time: what is asked for by the id of the last
   instruction that was dealt with is the same instruction again. That is so for a poll that failed,
   for tasks and closed rounds, and for every answer that did not reach the coordinator. An answer
   that the coordinator refused is not given again.
3. What cannot be answered yet is no failure: the same instruction is asked for again at once, and
   whoever said that it is not ready has waited already. So a silo at work is seen to be alive.
4. Polls that bring nothing to do are at least ``LEAST_POLL_S`` apart, whatever the coordinator
   answers, so that it cannot keep a core busy or fill a log. The steps of a round never wait.

5. A failed instruction is one line of the log, the check by its name. It never holds a key, a
   share, a figure of the delta, or text of a trajectory; it names the aggregation, so that lines of
   several silos can be laid side by side. An error of no type that is expected here is a defect:
   its line has the frames that it came through as well, which quote nothing
   (``ops/logs/errors.py``).

Covered: coordinators that are away, that fail, that answer at once. Not covered: a coordinator that
makes this silo work for nothing; what a step may cost is bounded where the step is taken. Nor a
refusal of the guardian, which has a line and a metric of its own (``silo_agent/daemon/gate.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from dp.errors import PrivacyError
from federation.chain.task import RoundTask
from federation.errors import FederationError
from ops.logs.logger import get_logger
from secagg.descriptor import SignedDescriptor
from secagg.errors import Check, SecAggError
from silo_agent.books.ledger import identity_name
from silo_agent.errors import (
    NotReadyError,
    PolicyRefusalError,
    SessionError,
    SiloError,
    TransportError,
)
from silo_agent.line.instruction import Instruction, RoundClosed

__all__ = ["EXPECTED", "Polling", "check_of", "pause_s", "report"]

POLL_WAIT_S = 8
LEAST_POLL_S = 0.2
MAX_PAUSE_S = 30.0
_MOST_DOUBLINGS = 5
"""2^5 s is past the longest pause; an exponent without a bound would overflow some day."""
EXPECTED: Final = (SecAggError, PrivacyError, FederationError, SiloError, OSError)
"""Failures that are no defect of ours."""

log = get_logger(__name__)


class Polls(Protocol):
    """What the loop needs of the coordinator."""

    def poll(self, last_instruction_id: str, *, wait_s: int) -> Instruction | None:
        """Wait for a new instruction; None if nothing changed."""


class Polling:
    """One loop of one daemon."""

    def __init__(
        self,
        coordinator: Polls,
        *,
        stopping: threading.Event,
        obey: Callable[[Instruction], bool],
        refuse: Callable[[PolicyRefusalError], None],
        survive: Callable[[Exception, Instruction | None], None],
        settle: Callable[[], None],
    ) -> None:
        """Wire the loop.

        ``stopping`` ends the loop, and every pause of it. ``obey`` acts on an instruction and says
        whether there was anything to do; ``refuse`` is told of a refusal of the guardian,
        ``survive`` of every other failure, and what that raises ends the loop. ``settle`` is called
        after each instruction that was dealt with.
        """
        self._coordinator = coordinator
        self._stopping = stopping
        self._obey = obey
        self._refuse = refuse
        self._survive = survive
        self._settle = settle

    def serve(self) -> None:
        """Poll until told to stop."""
        last_id = ""
        failures = 0
        while not self._stopping.is_set():
            asked_at = time.monotonic()
            instruction: Instruction | None = None
            busy = False
            try:
                instruction = self._coordinator.poll(last_id, wait_s=POLL_WAIT_S)
                if instruction is not None:
                    busy = self._obey(instruction)
                failures = 0
            except NotReadyError:
                failures = 0
                continue
            except PolicyRefusalError as refusal:
                self._surviving(partial(self._refuse, refusal))
            except Exception as error:  # noqa: BLE001 - a defect must not end the daemon either
                failures += 1
                self._survive(error, instruction)
                self._stopping.wait(pause_s(failures))
                if _asked_again(error, instruction):
                    continue
                busy = True
            if instruction is not None:
                last_id = instruction.instruction_id
            self._surviving(self._settle)
            early_s = asked_at + LEAST_POLL_S - time.monotonic()
            if not busy and early_s > 0:
                self._stopping.wait(early_s)

    def _surviving(self, act: Callable[[], None]) -> None:
        """Do what follows an instruction; it may fail as well."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - as above
            self._survive(error, None)
            self._stopping.wait(pause_s(1))


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row, from one on."""
    return min(2.0 ** min(failures - 1, _MOST_DOUBLINGS), MAX_PAUSE_S)


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
        identity=None if instruction is None else _name_of(instruction) or None,
        exc_info=None if isinstance(error, EXPECTED) else error,
    )


def _asked_again(error: Exception, instruction: Instruction | None) -> bool:
    if instruction is None or isinstance(instruction.payload, RoundTask | RoundClosed):
        # A passing fault must not cost this silo the whole round.
        return True
    return isinstance(error, TransportError) and not error.refused


def _name_of(instruction: Instruction) -> str:
    match instruction.payload:
        case SignedDescriptor() as signed:
            return identity_name(signed.descriptor.identity)
        case RoundTask() as task:
            return f"{task.run_id}/{task.round}"
        case RoundClosed() as closed:
            return f"{closed.record.run_id}/{closed.record.round}"
        case _:
            return "" if instruction.identity is None else identity_name(instruction.identity)
