"""The record of one consultation, from which its decision comes out again without a model.

A record is what went in (state, budget, the model's name) and, turn by turn, the digest of what was
asked and what came back, whole. Its file is canonical JSON (sorted keys, no blanks, ASCII) of at
most ``MAX_RECORD_BYTES``.

Ordered invariants:

1. A record that exists is within bounds, and its bytes are the one form of what it says.
2. ``next_step`` holds the whole conversation from the recorded answers again. Each turn's request
   must have the recorded digest and cost the recorded tokens, no turn may follow the end, and where
   the conversation ended, the recorded result must be the one that comes out.
3. A turn without an answer and without a failure was asked and not answered; only the last can be
   such a one, and whoever goes on asks it again, with the same bytes.

Covered: records of any bytes; every single change that makes a record say something else than what
its answers lead to. Not covered: a record that somebody wrote anew as a whole; its digest in the
audit log tells (``AdviceRecord.sha256``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from federation.advice.conversation import (
    Asking,
    Budget,
    Ended,
    Failure,
    GiveUp,
    Outcome,
    begin,
)
from federation.advice.proposal import Closed, Proposal
from federation.advice.reply import MAX_BODY_BYTES
from federation.advice.state import RoundState
from federation.advice.strict_json import JsonFaultError, canonical_json, read_json
from federation.errors import AdviceError, AdviceRecordError, AdviceReplayError

__all__ = [
    "MAX_ANSWERS_BYTES",
    "MAX_RECORD_BYTES",
    "MODEL_NAME",
    "AdviceRecord",
    "Turn",
    "next_step",
    "replay",
]

MAX_RECORD_BYTES: Final = 1 << 20
MAX_RECORD_DEPTH: Final = 8
MAX_ANSWERS_BYTES: Final = 640 << 10
"""Of all answers of a consultation together; a state has 120 KiB at most."""
MAX_TURN_MS: Final = 1 << 31
MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$"


def _base64(text: str) -> str:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None
    if base64.b64encode(content).decode() != text:
        raise ValueError("not the one form of base64")
    if len(content) > MAX_BODY_BYTES:
        raise ValueError("an answer is too large")
    return text


class Turn(Closed):
    """One request and what came of it."""

    request_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    answer: Annotated[str, AfterValidator(_base64)] | None = None
    """The body that the endpoint sent, in base64."""
    failure: Failure | None = None
    """Why there is none."""
    milliseconds: Annotated[int, Field(ge=0, le=MAX_TURN_MS)] = 0
    tokens: Annotated[int, Field(ge=0, le=MAX_TURN_MS)] = 0

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.answer is not None and self.failure is not None:
            raise ValueError("a turn has an answer or a failure")
        return self

    @property
    def is_open(self) -> bool:
        """Whether it was asked and not answered."""
        return self.answer is None and self.failure is None

    @property
    def content(self) -> bytes:
        """The answer's bytes."""
        return base64.b64decode(self.answer or "")


class AdviceRecord(Closed):
    """See the module."""

    version: Literal[1] = 1
    """Of this form and of everything that the conversation says: a changed text or rule is a new
    one, because a record's requests would come out otherwise."""
    model: Annotated[str, Field(pattern=MODEL_NAME)]
    """What the endpoint calls it."""
    budget: Budget
    state: RoundState
    turns: Annotated[tuple[Turn, ...], Field(max_length=32)] = ()
    result: Proposal | GiveUp | None = None
    """None while it is not over."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        settled = self.turns if self.result is not None else self.turns[:-1]
        if any(turn.is_open for turn in settled):
            raise ValueError("a turn without an answer is not the last")
        if sum(len(turn.content) for turn in self.turns) > MAX_ANSWERS_BYTES:
            raise ValueError("the answers are too large together")
        return self

    def encode(self) -> bytes:
        """The file form."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> str:
        """Digest of the file form, in hex."""
        return hashlib.sha256(self.encode()).hexdigest()

    @classmethod
    def decode(cls, content: bytes) -> AdviceRecord:
        """Read a file that may be hostile.

        Raises:
            AdviceRecordError: It is no record, or not in its one form.
        """
        try:
            # The strict reader first: it refuses what pydantic's would let pass.
            read_json(content, max_bytes=MAX_RECORD_BYTES, max_depth=MAX_RECORD_DEPTH)
            record = cls.model_validate_json(content)
        except JsonFaultError as error:
            raise AdviceRecordError(f"a record of advice {error.fault}") from None
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
            raise AdviceRecordError(f"a record of advice is malformed at {where!r}") from None
        except AdviceError as error:
            raise AdviceRecordError(
                f"a record of advice has limits that are none: {error}"
            ) from None
        if record.encode() != content:
            raise AdviceRecordError("a record of advice is not in its canonical form")
        return record

    @property
    def settled(self) -> tuple[Turn, ...]:
        """The turns that are over."""
        return self.turns[:-1] if self.turns and self.turns[-1].is_open else self.turns

    def asked(self, step: Asking) -> AdviceRecord:
        """This record, and a request that is about to be made."""
        turn = Turn(request_sha256=_digest(step))
        return self._with((*self.settled, turn), None)

    def told(
        self, step: Asking, said: bytes | Failure, *, milliseconds: int
    ) -> tuple[AdviceRecord, Asking | Ended]:
        """This record, and what came of the request that it was about; what follows."""
        failure = said if isinstance(said, Failure) else None
        after = _after(step, said)
        turn = Turn(
            request_sha256=_digest(step),
            answer=None if isinstance(said, Failure) else base64.b64encode(said).decode(),
            failure=failure,
            milliseconds=min(milliseconds, MAX_TURN_MS),
            tokens=after.tokens - step.tokens,
        )
        result = after.outcome if isinstance(after, Ended) else None
        return self._with((*self.settled, turn), result), after

    def ended(self, outcome: Outcome) -> AdviceRecord:
        """This record, which ends where it stands."""
        return self._with(self.settled, outcome)

    def room(self) -> int:
        """Bytes that the next answer may have, so that the record stays within its own."""
        held = sum(len(turn.content) for turn in self.turns)
        return min(MAX_BODY_BYTES, MAX_ANSWERS_BYTES - held)

    def _with(self, turns: tuple[Turn, ...], result: Outcome | None) -> AdviceRecord:
        return AdviceRecord(
            model=self.model, budget=self.budget, state=self.state, turns=turns, result=result
        )


def next_step(record: AdviceRecord) -> Asking | Ended:
    """Where a consultation stands: the request to make, or again, or the end.

    Raises:
        AdviceReplayError: The answers do not lead to what the record says.
    """
    step: Asking | Ended = begin(record.state, record.budget, record.model)
    for number, turn in enumerate(record.turns, 1):
        if not isinstance(step, Asking):
            raise AdviceReplayError(f"turn {number} stands after the end")
        if turn.request_sha256 != _digest(step):
            raise AdviceReplayError(f"turn {number} asks something else than was recorded")
        if turn.is_open:
            # The last one, as the record exists.
            break
        after = _after(step, turn.content if turn.failure is None else turn.failure)
        if after.tokens - step.tokens != turn.tokens:
            raise AdviceReplayError(f"turn {number} cost other tokens than were recorded")
        step = after
    outcome = step.outcome if isinstance(step, Ended) else None
    if record.result is not None and outcome != record.result:
        raise AdviceReplayError("the answers lead to another result than was recorded")
    return step


def replay(record: AdviceRecord) -> Outcome:
    """The outcome of a consultation that is over, from its answers alone.

    Raises:
        AdviceReplayError: It is not what the record says, or there is none yet.
    """
    step = next_step(record)
    if not isinstance(step, Ended) or record.result is None:
        raise AdviceReplayError("the consultation is not over")
    return step.outcome


def _after(step: Asking, said: bytes | Failure) -> Asking | Ended:
    return step.failed(said) if isinstance(said, Failure) else step.answered(said)


def _digest(step: Asking) -> str:
    return hashlib.sha256(step.body).hexdigest()
