"""Who answered a RoundTask: the part of a round before any aggregation is open.

Invariants: a silo has said ready or refused, never both; its newest word counts.

Covered: the book-keeping. Not covered: deadlines and the quorum (``server/run/driver.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from federation.chain.task import PASSING_REASONS, RoundTask
from server.errors import WrongRoundError

__all__ = ["Training"]


@dataclass(kw_only=True, slots=True)
class Training:
    """The answers so far."""

    task: RoundTask
    ready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Silo to the environment families it declares."""
    refused: dict[str, str] = field(default_factory=dict)
    """Silo to its public reason."""

    def report_ready(
        self, silo_id: str, *, adapter_sha256: bytes, families: tuple[str, ...]
    ) -> None:
        """A silo's local work is done.

        Raises:
            WrongRoundError: it started from another adapter.
        """
        if adapter_sha256 != self.task.adapter_sha256:
            raise WrongRoundError("ready for another adapter than the one this task starts from")
        self.refused.pop(silo_id, None)
        self.ready[silo_id] = families

    def refuse(self, silo_id: str, reason: str) -> None:
        """A silo takes no part."""
        self.ready.pop(silo_id, None)
        self.refused[silo_id] = reason

    def unanswered(self, silos: Iterable[str]) -> tuple[str, ...]:
        """Who of these has said neither."""
        return tuple(s for s in silos if s not in self.ready and s not in self.refused)

    def out_of_reach(self, silos: Sequence[str], quorum: int) -> bool:
        """Whether so many refused for good that waiting cannot bring a quorum."""
        final = [reason for reason in self.refused.values() if reason not in PASSING_REASONS]
        return len(silos) - len(final) < quorum
