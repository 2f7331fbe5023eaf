"""What can be chosen on the demo's command line.

Nothing heavy is imported here: ``chorale --help`` reads these.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Control", "Privacy", "Scenario"]


class Privacy(StrEnum):
    """What is protected."""

    RECORD_LOCAL = "record-local"
    RECORD_DISTRIBUTED = "record-distributed"
    SILO = "silo"
    NONE = "none"


class Scenario(StrEnum):
    """How the tasks are dealt out."""

    SHARDS = "shards"
    ENVIRONMENTS = "environments"
    WORDS = "words"

    @property
    def pretrained(self) -> bool:
        """Whether it is played by a pretrained model, and not by the small one of Chorale's own."""
        return self is Scenario.WORDS

    @property
    def usual_privacy(self) -> Privacy:
        """What it runs with unless something else is asked for."""
        return Privacy.RECORD_LOCAL if self is Scenario.SHARDS else Privacy.SILO


class Control(StrEnum):
    """A control run in which nothing can be learned."""

    NONE = "none"
    NO_LEARNING = "no-learning"
    NO_EXPLORATION = "no-exploration"
