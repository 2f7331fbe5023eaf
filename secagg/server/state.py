"""What every coordinator state has in common.

* `receive` verifies one silo's message. A bad one is a VerificationError that names the silo and
  changes nothing, so one silo cannot stop the others. The same message again is accepted and
  ignored; another one from the same silo is refused.
* `close` fixes who took part and returns the next state with what to broadcast. Afterwards the old
  state takes nothing: late messages are an UnexpectedMessageError.
* The coordinator holds no secret and draws nothing at random. After a restart the same states
  follow from the same stored messages and the same closed sets.

Covered: the rules of the protocol. Not covered: deadlines, storage, and the retry rule after R3.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from secagg.descriptor import Descriptor
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from secagg.parameters import Parameters
from secagg.roster import Roster

MessageT = TypeVar("MessageT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """What stays the same through all states of one aggregation at the coordinator."""

    roster: Roster
    descriptor: Descriptor
    parameters: Parameters


class ServerState(Generic[MessageT]):
    """Base of the collecting states."""

    __slots__ = ("_aggregation", "_closed", "_expected", "_received")

    def __init__(self, aggregation: Aggregation, expected: Collection[str]) -> None:
        self._aggregation = aggregation
        self._expected = frozenset(expected)
        self._received: dict[str, MessageT] = {}
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._received)} of {len(self._expected)}"
            f"{', closed' if self._closed else ''})"
        )

    @property
    def pending(self) -> frozenset[str]:
        """The silos still waited for."""
        return self._expected - self._received.keys()

    @property
    def ready(self) -> bool:
        """Whether enough silos have answered to go on."""
        return len(self._received) >= self._needed

    @property
    def _needed(self) -> int:
        return self._aggregation.parameters.least_survivors

    def _require_open(self) -> None:
        if self._closed:
            raise UnexpectedMessageError(f"{type(self).__name__} is over")

    def _is_repeat(self, silo_id: str, message: MessageT) -> bool:
        """Tell whether the message is one already received; refuse strangers and second versions.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender or duplicate.
        """
        self._require_open()
        if silo_id not in self._expected:
            raise VerificationError(Check.SENDER, "this silo is not expected here", silo=silo_id)
        if silo_id not in self._received:
            return False
        if self._received[silo_id] != message:
            raise VerificationError(Check.DUPLICATE, "a second, different message", silo=silo_id)
        return True

    def _close(self, check: Check) -> Mapping[str, MessageT]:
        """Close the state and return what was received, in ascending order of silo id.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: The given check, when too few answered.
        """
        self._require_open()
        if not self.ready:
            raise VerificationError(
                check, f"{len(self._received)} silos answered where {self._needed} are needed"
            )
        self._closed = True
        return dict(sorted(self._received.items()))
