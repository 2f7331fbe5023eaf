"""What happens to an attempt, as something that can be written down and read again.

Covered: which events there are. Not covered: where they are kept (``server/attempt/journal.py``),
and what follows from them (``server/attempt/attempt.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from secagg.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBoxes,
    UnmaskingShares,
)
from server.phase import Phase

__all__ = ["History", "Journal", "SiloMessage"]

SiloMessage = KeyBundle | ShareBoxes | MaskedInputHeader | ConsistencySignature | UnmaskingShares
"""R0 to R4, as a silo sends them."""


class Journal(Protocol):
    """Where an attempt writes down what happened; each method returns when that is durable."""

    def accepted(self, message: SiloMessage) -> None:
        """A silo's message was accepted."""

    def folded(self, silo_id: str, generation: int) -> None:
        """A silo's upload is in this generation of the sum."""

    def closed(self, phase: Phase, members: tuple[str, ...]) -> None:
        """A phase is closed, and these silos answered in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What the journal of an open attempt holds."""

    messages: tuple[SiloMessage, ...] = field(repr=False)
    """In the order in which they were accepted."""
    folded: tuple[str, ...]
    """In the order of the folds."""
    members: tuple[tuple[str, ...], ...]
    """Who answered, in ascending order, of each phase that is closed."""

    @property
    def phases_closed(self) -> int:
        """How many of R0 to R4 are closed."""
        return len(self.members)
