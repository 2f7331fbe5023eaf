"""One consultation within its time: each turn is handed over before and after it is made.

Ordered invariants:

1. A request is handed over, as part of the record so far, before it is sent, and its answer before
   it is acted upon. So whoever keeps what is handed over loses no turn at a crash, and whoever goes
   on from it asks the open turn again, byte for byte, and repeats none that was answered.
2. The end comes within ``Budget.seconds``, whatever the endpoint does: each request has what is
   left of them, and none is made when nothing is. Turns of before a restart count with the time
   that they took; a turn that was open at the crash does not.
3. Nothing that the endpoint does is raised. An endpoint that fails once ends the consultation: the
   round waits for it, and a rule is there instead.

Covered: time, restarts, endpoints of any kind. Not covered: what is done with the outcome; a caller
that takes long to keep a record, whose time counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from federation.advice.conversation import Asking, Budget, Failure
from federation.advice.record import AdviceRecord, next_step
from federation.advice.state import RoundState
from server.advisor.endpoint import AdvisorError

__all__ = ["Asks", "consult"]


class Asks(Protocol):
    """What answers requests, as ``Endpoint`` does."""

    async def ask(self, content: bytes, *, timeout_s: float, max_bytes: int) -> bytes:
        """The body of an answer, or ``AdvisorError``."""


def _keep_nothing(_record: AdviceRecord) -> None:
    pass


async def consult(
    state: RoundState,
    budget: Budget,
    endpoint: Asks,
    model: str,
    *,
    on_turn: Callable[[AdviceRecord], None] = _keep_nothing,
    so_far: AdviceRecord | None = None,
) -> AdviceRecord:
    """Ask until there is an outcome; returns the record, which has a result.

    Args:
        state: What the model may see.
        budget: What it may cost.
        endpoint: Where it is asked.
        model: What the endpoint calls it.
        on_turn: Is handed the record before each request and after each answer.
        so_far: A record to go on from; then its state, budget and model count, and the other ones
            do not, because the decision is the one that was begun.

    Raises:
        AdviceReplayError: ``so_far`` does not follow from its own answers.
    """
    record = so_far
    if record is None:
        record = AdviceRecord(state=state, budget=budget, model=model)
    step = next_step(record)
    clock = asyncio.get_running_loop().time
    used_s = sum(turn.milliseconds for turn in record.settled) / 1000
    ends = clock() + max(0.0, record.budget.seconds - used_s)
    while isinstance(step, Asking):
        record = record.asked(step)
        on_turn(record)
        began = clock()
        said = await _said(endpoint, step.body, timeout_s=ends - began, max_bytes=record.room())
        # Rounded up: many quick turns must not come to no time at all.
        milliseconds = int((clock() - began) * 1000) + 1
        record, step = record.told(step, said, milliseconds=milliseconds)
        on_turn(record)
    if record.result is None:
        # The budget bore no request at all.
        record = record.ended(step.outcome)
        on_turn(record)
    return record


async def _said(
    endpoint: Asks, content: bytes, *, timeout_s: float, max_bytes: int
) -> bytes | Failure:
    if timeout_s <= 0:
        return Failure.NO_TIME_LEFT
    try:
        return await endpoint.ask(content, timeout_s=timeout_s, max_bytes=max_bytes)
    except AdvisorError as error:
        return error.kind
