"""What a silo says about itself to whoever plans rounds: a few facts of its own choice, signed.

A site lists in its policy which of them it publishes; nothing is published otherwise. Who reads
them (a selection rule, an adviser, an admin) reads what a silo claims, which nobody can check.

Ordered invariants:

1. A fact is a word of a closed list or a bounded whole number. There is no text and no fraction, so
   nothing that reads facts can be told anything else by them.
2. Each fact is there or absent; an absent one says nothing, and the encoding tells it from zero.
3. The signature is over the federation, the silo, the time of issue and every fact, under a domain
   of its own: no facts of another silo, federation or time pass for these.

Covered: bounds, the signed bytes, signing and verifying. Not covered: where a silo takes its facts
from (``silo_agent/books/facts.py``), which the coordinator takes and for how long
(``server/members/public_facts.py``, ``server/context.py``), whether a silo tells the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.errors import FactsError
from secagg import bounds, canonical, suite
from secagg.errors import MalformedMessageError

__all__ = [
    "FACTS",
    "MAX_QUEUE",
    "MAX_UNIX_S",
    "START_WITHIN_S",
    "Availability",
    "BudgetLeft",
    "FreeGpu",
    "SignedFacts",
    "SiloFacts",
]

MAX_QUEUE: Final = 1000
"""Most jobs that a silo can say are before this federation's."""
MAX_UNIX_S: Final = 2**33 - 32
"""The last whole minute below 2^33, in the year 2242."""
START_WITHIN_S: Final = 31 * 86_400
"""An earliest start is at most this far from the time of issue, to either side."""
_MINUTE_S: Final = 60
_DOMAIN: Final = "chorale/v1/silo-facts"


class Availability(StrEnum):
    """Whether a new round may begin at the site now."""

    UP = "up"
    DOWN = "down"


class FreeGpu(StrEnum):
    """How much of the site's GPU memory its operator says is free for this."""

    NONE = "none"
    SOME = "some"
    MOST = "most"
    ALL = "all"


class BudgetLeft(StrEnum):
    """Which part of its privacy budget is left; of several capped kinds of unit the least."""

    UNDER_QUARTER = "under_quarter"
    UNDER_HALF = "under_half"
    UNDER_THREE_QUARTERS = "under_three_quarters"
    OVER_THREE_QUARTERS = "over_three_quarters"


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloFacts:
    """What one silo says; None is nothing said."""

    availability: Availability | None = None
    """Whether a new round may begin there now."""
    queue: int | None = None
    """Jobs before this federation's, as its operator says."""
    free_gpu: FreeGpu | None = None
    """What is free on its GPUs, as its operator says."""
    budget_left: BudgetLeft | None = None
    """Of its ledger against its policy's caps."""
    earliest_start_unix_s: int | None = None
    """Whole minutes; in the past where a round may begin now."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        for value, kind, name in (
            (self.availability, Availability, "availability"),
            (self.free_gpu, FreeGpu, "free_gpu"),
            (self.budget_left, BudgetLeft, "budget_left"),
        ):
            if value is not None and type(value) is not kind:
                raise FactsError(f"{name} is none of {', '.join(kind)}")
        try:
            if self.queue is not None:
                bounds.require_integer(self.queue, 0, MAX_QUEUE, "queue")
            if self.earliest_start_unix_s is not None:
                bounds.require_integer(
                    self.earliest_start_unix_s, 0, MAX_UNIX_S, "earliest_start_unix_s"
                )
        except MalformedMessageError as error:
            raise FactsError(str(error)) from error
        if (self.earliest_start_unix_s or 0) % _MINUTE_S:
            raise FactsError("earliest_start_unix_s is no whole minute")


FACTS: Final[tuple[str, ...]] = tuple(field.name for field in fields(SiloFacts))
"""Every fact by name, as policies list them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedFacts:
    """What one silo of one federation said at one time."""

    silo_id: str
    """Whose facts."""
    federation: str
    """Its name."""
    issued_unix_s: int
    """By the silo's clock."""
    facts: SiloFacts
    """What it says."""
    signature: bytes = b""
    """Of the silo; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        try:
            bounds.require_silo_id(self.silo_id, "facts silo_id")
            bounds.require_name(self.federation, "facts federation")
            bounds.require_integer(self.issued_unix_s, 0, MAX_UNIX_S, "facts issued_unix_s")
            if self.signature:
                bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "facts signature")
        except MalformedMessageError as error:
            raise FactsError(str(error)) from error
        if type(self.facts) is not SiloFacts:
            raise FactsError("the facts are none of a silo")
        start = self.facts.earliest_start_unix_s
        if start is not None and abs(start - self.issued_unix_s) > START_WITHIN_S:
            raise FactsError("earliest_start_unix_s is too far from the time of issue")

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        facts = self.facts
        said = (facts.availability, facts.free_gpu, facts.budget_left)
        return canonical.encode(
            _DOMAIN,
            self.federation,
            self.silo_id,
            self.issued_unix_s,
            *(() if word is None else (word.value,) for word in said),
            *(
                () if number is None else (number,)
                for number in (facts.queue, facts.earliest_start_unix_s)
            ),
        )

    def sign(self, silo_key: Ed25519PrivateKey) -> SignedFacts:
        """The same facts with the silo's signature."""
        return replace(self, signature=suite.sign(silo_key, self.signed_bytes()))

    def verify(self, silo_public_key: bytes) -> None:
        """Check the signature.

        Raises:
            FactsError: It is missing or not the silo's.
        """
        if not suite.verify(silo_public_key, self.signature, self.signed_bytes()):
            raise FactsError(f"the facts are not signed by {self.silo_id}")
