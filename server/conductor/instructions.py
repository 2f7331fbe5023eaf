"""What each silo is told at a poll: an id that is cheap to compute, and an answer made on demand.

Invariants:

1. An id names one message to one silo, and no coordinator process repeats an id of another.
2. An id costs a few look-ups and builds no message: one change wakes every poll that waits.
3. What a phase tells every silo alike is serialised once, in a thread; a silo's own part is put
   before it. Protobuf merges the parts: fields of one message may come in several pieces.
4. Beside an answer, and where nothing is new, silos are told which runs are over, so that they
   stop working for them. While an attempt is open they are not: those polls are many, and nobody
   in it works for another run.
5. The pause between two runs ends when every silo of the roster that is alive has dealt with what
   it was told last, and after ``HAND_OVER_S`` in any case.

Covered: tasks with the silo's own ledger head, the messages of R0 to R4, drop-outs, closing
records; silos that are slow to ask for those. Not covered: polls that wait
(``server/conductor/conductor.py``); silos that are away when a run is over: they adopt its last
adapter when the coordinator shows the run again, or never.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import round_pb2
from ops.logs.logger import get_logger
from secagg.descriptor import SignedDescriptor
from secagg.messages import (
    BoxDelivery,
    ConsistencySignatures,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from server.attempt.attempt import Attempt, Message
from server.conductor.storage_faults import STORAGE_FAULTS
from server.context import RunContext
from server.members.ledger_heads import ledger_echo
from server.run.driver import RunDriver

__all__ = ["Answer", "Handover", "Instructions"]

log = get_logger(__name__)

DROPPED = "dropped: this silo missed a phase of the attempt"
HAND_OVER_S = 60.0
MOST_OVER = 16
"""Runs that are told to be over; a silo works for one or two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One silo's instruction; nothing of it is built yet."""

    instruction_id: str
    own: Callable[[], round_pb2.PollResponse]
    """What this silo alone is told."""
    shared: Callable[[], round_pb2.PollResponse] | None = None
    """What every silo with this id is told; None where that is nothing."""


class Instructions:
    """Answers of one coordinator process."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        # A restarted coordinator must not repeat an instruction id of the one before.
        self._boot = secrets.token_hex(4)
        self._shared_id = ""
        self._shared: asyncio.Task[bytes] | None = None

    def current(self, driver: RunDriver | None, silo_id: str) -> Answer:
        """What this silo is to do now, in the run that is shown, if any."""
        if driver is None or silo_id not in driver.members:
            return Answer(instruction_id=f"{self._boot}:idle", own=_idle)
        run_id, figures = driver.row.run_id, driver.current
        place = f"{self._boot}:{run_id}:{figures.round}:{figures.step}:{figures.attempt}"
        task = driver.task_for(silo_id)
        if task is not None:
            return Answer(
                instruction_id=f"{place}:training:{task.ready_deadline_unix_s}",
                # The echo cannot change while the task is out, so the id need not name it.
                own=lambda: round_pb2.PollResponse(
                    round_task=federation_wire.round_task_to_proto(task),
                    ledger_echo=ledger_echo(self._context.store, driver.roster.roster, silo_id),
                ),
            )
        if driver.attempt is not None:
            part = driver.attempt.identity.part
            return _of_attempt(f"{place}:{part}", driver.attempt, silo_id)
        # Between releases, and for whoever sits out: it follows the chain and does no work.
        head = driver.head

        def closed() -> round_pb2.PollResponse:
            response = round_pb2.PollResponse()
            response.round_result.record.CopyFrom(federation_wire.record_to_proto(head))
            return response

        return Answer(
            instruction_id=f"{self._boot}:{run_id}:record:{head.round}:{head.step}", own=closed
        )

    def over(self, driver: RunDriver | None) -> bytes:
        """Which runs are over, as a part of a serialised ``PollResponse``."""
        if driver is not None and driver.attempt is not None:
            return b""
        try:
            ids = self._context.store.runs.newest_over(MOST_OVER)
        except STORAGE_FAULTS as error:
            # It only saves silos work; without it they are told at a later poll.
            log.warning("over_runs_not_told", reason=error)
            return b""
        return round_pb2.PollResponse(over_run_ids=ids).SerializeToString()

    async def serialised(self, answer: Answer) -> bytes:
        """Build an answer: a serialised ``PollResponse``."""
        response = answer.own()
        response.instruction_id = answer.instruction_id
        own = response.SerializeToString()
        if answer.shared is None:
            return own
        if self._shared is None or self._shared_id != answer.instruction_id:
            self._shared_id = answer.instruction_id
            self._shared = asyncio.create_task(asyncio.to_thread(_serialise, answer.shared))
        # Shielded: the poll of one silo that hangs up must not cost all others their answer.
        return own + await asyncio.shield(self._shared)


class Handover:
    """The pause between two runs in which silos take the last record of the one that is over.

    Once the next run is shown nobody is told of the one before, and a silo that had not asked in
    time would never adopt its last adapter.
    """

    def __init__(self, context: RunContext, instructions: Instructions) -> None:
        self._context = context
        self._instructions = instructions
        self._dealt_with: dict[str, str] = {}

    def note(self, silo_id: str, instruction_id: str) -> None:
        """Take down what a silo has dealt with: the last instruction that its poll names."""
        self._dealt_with[silo_id] = instruction_id

    async def wait(self, driver: RunDriver) -> None:
        """Wait for the silos of the run that is shown, which is over or paused."""
        clock = self._context.clock
        give_up_at = clock() + HAND_OVER_S
        while (late := self._late(driver)) and clock() < give_up_at:
            await self._context.changed.wait(1.0)
        if late:
            log.warning("last_record_not_taken", run=driver.row.run_id, silos=len(late))

    def _late(self, driver: RunDriver) -> list[str]:
        told = self._instructions.current
        return [
            silo_id
            for silo_id in driver.members
            if self._context.liveness.alive(silo_id)
            and self._dealt_with.get(silo_id) != told(driver, silo_id).instruction_id
        ]


def _serialise(build: Callable[[], round_pb2.PollResponse]) -> bytes:
    return build().SerializeToString()


def _idle() -> round_pb2.PollResponse:
    return round_pb2.PollResponse(idle=round_pb2.Idle())


def _of_attempt(place: str, attempt: Attempt, silo_id: str) -> Answer:
    if silo_id not in attempt.cohort:
        return Answer(instruction_id=f"{place}:idle", own=_idle)
    instruction, identity = attempt.instruction(silo_id), attempt.identity
    message = instruction.message
    if message is None:
        # A dropped silo is told once, whatever the phase is by now.
        return Answer(
            instruction_id=f"{place}:dropped",
            own=lambda: round_pb2.PollResponse(
                identity=secagg_wire.identity_to_proto(identity),
                aborted=round_pb2.Aborted(reason=DROPPED),
            ),
        )

    def own() -> round_pb2.PollResponse:
        response = round_pb2.PollResponse(identity=secagg_wire.identity_to_proto(identity))
        if isinstance(message, BoxDelivery):
            response.box_delivery.ciphertexts.update(message.ciphertexts)
        if isinstance(message, LeafDelivery):
            mine = LeafDelivery(roots=message.roots[:1], leaves=message.leaves)
            response.leaf_delivery.CopyFrom(secagg_wire.leaf_delivery_to_proto(mine))
            del response.leaf_delivery.roots[:]
        return response

    return Answer(
        instruction_id=f"{place}:{instruction.phase.value}",
        own=own,
        shared=lambda: _shared(message),
    )


def _shared(message: Message) -> round_pb2.PollResponse:
    """The part of a phase's message that is the same for every silo."""
    match message:
        case SignedDescriptor():
            return round_pb2.PollResponse(descriptor=secagg_wire.descriptor_to_proto(message))
        case KeyBundles():
            return round_pb2.PollResponse(key_bundles=secagg_wire.key_bundles_to_proto(message))
        case BoxDelivery():
            headers = BoxDelivery(headers=message.headers, ciphertexts={})
            return round_pb2.PollResponse(box_delivery=secagg_wire.box_delivery_to_proto(headers))
        case LeafDelivery():
            roots = LeafDelivery(roots=message.roots, leaves={})
            return round_pb2.PollResponse(leaf_delivery=secagg_wire.leaf_delivery_to_proto(roots))
        case Survivors():
            return round_pb2.PollResponse(survivors=secagg_wire.survivors_to_proto(message))
        case ConsistencySignatures():
            return round_pb2.PollResponse(
                consistency_signatures=secagg_wire.consistency_signatures_to_proto(message)
            )
