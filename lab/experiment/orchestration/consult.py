"""A consultation of whatever answers requests, held here, in simulated or in real time.

The conversation, its budget, its judge and its record are the product's (``federation/advice``);
what the coordinator adds, an endpoint and a clock that cuts it off, is not needed where the answers
are made in this process.

Covered: answers of any bytes, and none. Not covered: time limits.
"""

from __future__ import annotations

from collections.abc import Callable

from federation.advice.conversation import Asking, Budget, Failure
from federation.advice.record import AdviceRecord, next_step
from federation.advice.state import RoundState

__all__ = ["Answers", "consult"]

Answers = Callable[[bytes], tuple[bytes | Failure, int]]
"""From a request to the body that came, or why none did, and the milliseconds that it took."""


def consult(state: RoundState, budget: Budget, model: str, answers: Answers) -> AdviceRecord:
    """Ask until there is an outcome; the record has a result."""
    record = AdviceRecord(state=state, budget=budget, model=model)
    step = next_step(record)
    while isinstance(step, Asking):
        record = record.asked(step)
        said, milliseconds = answers(step.body)
        if isinstance(said, bytes) and len(said) > record.room():
            said = Failure.TOO_LARGE
        record, step = record.told(step, said, milliseconds=milliseconds)
    # Where the budget bore no request at all, nothing was asked and the end is noted here.
    return record if record.result is not None else record.ended(step.outcome)
