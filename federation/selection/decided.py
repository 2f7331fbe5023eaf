"""A round's decision as it was recorded, and the same decision made again.

One line of JSON a round: the inputs and the advice as bytes, and the choice that was made. Deciding
again needs no model, no network and no coordinator: each request of the advice is made from the
inputs and has to have the digest that was recorded, the recorded answers are judged, and the policy
draws with the round's public random numbers.

Covered: whether a choice follows from what was recorded. Not covered: whether what was recorded is
what there was; the audit log has the digests of inputs and advice, signed by its chain.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from federation.advice.conversation import GiveUp
from federation.advice.proposal import Proposal
from federation.advice.record import AdviceRecord, replay
from federation.errors import AdviceError
from federation.selection.advised import state_of
from federation.selection.decide import ADVISED, Inputs, decide
from federation.selection.policies import Choice
from secagg import bounds

__all__ = ["MAX_LINE_BYTES", "NO_ADVISOR", "Decided", "read_decisions", "why_none"]

NO_ADVISOR: Final = "no advisor is configured"
"""Why an advised round has no advice where nobody was asked."""
MAX_LINE_BYTES: Final = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One round's."""

    run_id: str
    round: int
    inputs: bytes
    """As ``Inputs.to_json``."""
    advice: bytes
    """As ``AdviceRecord.encode``; empty where nobody was asked."""
    choice: Choice
    """What was stored and signed."""

    @property
    def inputs_sha256(self) -> str:
        """In hexadecimal, as in the audit log."""
        return hashlib.sha256(self.inputs).hexdigest()

    @property
    def advice_sha256(self) -> str:
        """In hexadecimal; empty where nobody was asked."""
        return hashlib.sha256(self.advice).hexdigest() if self.advice else ""

    def to_line(self) -> str:
        """One line of JSON."""
        content = {
            "run": self.run_id,
            "round": self.round,
            "inputs": base64.b64encode(self.inputs).decode(),
            "advice": base64.b64encode(self.advice).decode(),
            "choice": asdict(self.choice),
        }
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read back one line.

        Raises:
            AdviceError: It is none, or too long.
        """
        if len(line) > MAX_LINE_BYTES:
            raise AdviceError(f"a decision has {len(line)} bytes, above {MAX_LINE_BYTES}")
        try:
            content = json.loads(line)
            return cls(
                run_id=_text(content["run"]),
                round=_whole(content["round"]),
                inputs=base64.b64decode(_text(content["inputs"]), validate=True),
                advice=base64.b64decode(_text(content["advice"]), validate=True),
                choice=_choice(content["choice"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
            raise AdviceError("a line is no recorded decision") from error

    async def again(self) -> Choice:
        """Decide again.

        Raises:
            AdviceError: Inputs or advice are malformed, of another round, or do not fit each other.
        """
        inputs = Inputs.from_json(self.inputs)
        if (inputs.run_id, inputs.past.number) != (self.run_id, self.round):
            raise AdviceError(f"the inputs of round {self.round} are of another one")
        if not self.advice:
            without = NO_ADVISOR if inputs.section.policy == ADVISED else ""
            return await decide(inputs, without=without)
        record = AdviceRecord.decode(self.advice)
        if state_of(inputs, record.state.limits) != record.state:
            raise AdviceError(f"the advisor of round {self.round} was shown something else")
        outcome = replay(record)
        if isinstance(outcome, Proposal):
            return await decide(inputs, outcome)
        return await decide(inputs, without=why_none(outcome))


def why_none(outcome: GiveUp) -> str:
    """In one public line why there is no proposal."""
    why = outcome.gave_up.value.replace("_", " ")
    more = outcome.problem or (outcome.failure.value.replace("_", " ") if outcome.failure else "")
    return f"{why}: {more}" if more else why


def read_decisions(lines: Iterable[bytes]) -> Iterator[Decided]:
    """Every decision of a file, in its order.

    Raises:
        AdviceError: A line is none.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield Decided.from_line(line)
        except AdviceError as error:
            raise AdviceError(f"line {number}: {error}") from error


def _choice(content: Any) -> Choice:
    silos = tuple(_text(silo_id) for silo_id in content["silos"])
    if len(silos) > bounds.MAX_COHORT:
        raise ValueError
    moved = {
        name: None if content[name] is None else _whole(content[name])
        for name in ("ready_deadline_s", "local_epochs")
    }
    flags = {name: content[name] is True for name in ("stop", "diagnose")}
    return Choice(silos=silos, why=_text(content["why"]), **moved, **flags)  # type: ignore[arg-type]


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError
    return value
