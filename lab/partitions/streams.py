"""Random streams with names, so that what one silo draws decides nothing for another.

FedAgent's code lets all silos draw from one generator with seed 42; silos with the same quota then
hold the same tasks, byte for byte (243 of 4,950 pairs at ξ′ = 1). Here a stream belongs to whoever
it is named after.

Invariants:
    1. A stream depends on the seed and on its name, on nothing else: asked for twice it begins
       anew, and other streams that were used in between change nothing.
    2. Two names are two keys of Philox, by SHA-256: no silo and no purpose shares one.

Covered: research that somebody wants to repeat. Not covered: noise or keys; whoever knows the seed
knows everything that is drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np

from lab.partitions.errors import DialError

__all__ = ["Streams"]

_DOMAIN = b"chorale/lab-partition/v1\0"


class Streams:
    """The streams of one seed, below a name."""

    def __init__(self, seed: int, *names: str | int) -> None:
        """Take a seed, and what the streams are for.

        Raises:
            DialError: The seed is negative.
        """
        if seed < 0:
            raise DialError(f"seed: a whole number from 0 on, got {seed}")
        self._seed = seed
        self._names = names

    def of(self, *names: str | int) -> np.random.Generator:
        """The stream of this name, at its beginning."""
        parts = (self._seed, *self._names, *names)
        # Lengths keep ("a", "b") and ("ab",) apart, types a number and its digits.
        text = "\0".join(f"{type(p).__name__}:{len(str(p))}:{p}" for p in parts)
        key = hashlib.sha256(_DOMAIN + text.encode()).digest()[:16]
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))

    def below(self, *names: str | int) -> Streams:
        """The streams whose names begin with these."""
        return Streams(self._seed, *self._names, *names)
