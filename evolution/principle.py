"""A principle: a sentence that the silo's model wrote about its tries, and what came of reading it.

It is of one environment and one subject, whose tries it was made of. Its score is that of EvolveR
(row 4 of the page of methods)::

    score = (successes + 1) / (uses + 2)      of the tries that read it and that ended

Plays read principles and make notes about them (``evolution/parts/seam.py``). The texts are for the
silo's own operator. Nothing in this module ever leaves the silo.

Covered: what is said. Not covered: keeping it (``evolution/memory/principles.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evolution.trajectory import Trajectory

__all__ = ["MOST_CHARS", "Again", "Learned", "Note", "Principle", "Used", "one_line"]

MOST_CHARS: Final = 300
"""Of a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Principle:
    """One sentence, and what came of reading it."""

    id: str
    """Its name in the file."""
    environment: str
    """Of the tries that it was made of."""
    subject: str
    """Whose data they are of; empty if nobody's."""
    text: str
    """What the agent reads."""
    round: int
    """It was first written in."""
    uses: int = 0
    """Tries that read it and ended, since it was written or edited."""
    successes: int = 0
    """Those of them that succeeded."""
    made_of: tuple[str, ...] = ()
    """``conversation_sha256`` of the first tries of which the model wrote it, or the like of it."""
    edited: bool = False
    """The operator wrote the text."""

    @property
    def score(self) -> float:
        """Of a share of successes, drawn to a half while it was seldom used."""
        return (self.successes + 1) / (self.uses + 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A note: the model wrote a new principle."""

    text: str
    """As ``one_line`` has it."""
    sources: tuple[Trajectory, ...]
    """The try that it was written of, and those of which the like was written; of one environment
    and one subject."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """A note: of another try the model wrote the like of a principle that there is."""

    principle: str
    """Its name."""
    source: Trajectory
    """The try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """A note: a try that read a principle ended."""

    principle: str
    """Its name."""
    success: bool
    """How it ended."""


Note = Learned | Again | Used


def one_line(text: str) -> str:
    """A text as a principle may have it: one line, printable, cut at its length; perhaps empty."""
    words = "".join(one if one.isprintable() else " " for one in text).split()
    return " ".join(words)[:MOST_CHARS].strip()
