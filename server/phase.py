"""Where a round is, in the protocol's own words.

Covered: the names and their order. Not covered: when one ends (``server/attempt/attempt.py``).
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["STEPS", "Phase"]


class Phase(StrEnum):
    """Where a round is; the names are the protocol's own."""

    TRAINING = "training"
    ADVERTISE_KEYS = "advertise_keys"
    SHARE_KEYS = "share_keys"
    MASKED_INPUT = "masked_input"
    CONSISTENCY_CHECK = "consistency_check"
    UNMASK = "unmask"
    AGGREGATE = "aggregate"
    FINISHED = "finished"


STEPS = (
    Phase.ADVERTISE_KEYS,
    Phase.SHARE_KEYS,
    Phase.MASKED_INPUT,
    Phase.CONSISTENCY_CHECK,
    Phase.UNMASK,
)
"""R0 to R4, in order."""
