"""What a ledger records an aggregation as: its identity, and the charge of one attempt.

Invariants: identities of one run compare in the order of time; an entry that no accountant
understands cannot be made.

Covered: bounds and meaning of the fields. Not covered: order and budget (``dp.ledger``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dp.config import Mode
from dp.errors import SpecError
from dp.rdp import ORDERS, Divergences, rdp_gaussian, rdp_subsampled

__all__ = ["Identity", "LedgerEntry"]

DIGEST_BYTES: Final = 32
_MAX_RUN_CHARACTERS: Final = 256


class Identity(NamedTuple):
    """Names one aggregation; tuples of one run compare in the order of time."""

    run: str
    round: int
    step: int
    part: int
    attempt: int

    @property
    def aggregation(self) -> tuple[str, int, int, int]:
        """The identity without its attempt."""
        return (self.run, self.round, self.step, self.part)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One attempt to be charged."""

    run: str
    """Run id."""
    round: int
    """Round number."""
    attempt: int
    """Attempt at this aggregation."""
    step: int
    """Optimiser step inside the round; 0 where a round has one aggregation."""
    part: int
    """Which of several sums of the step."""
    mode: Mode
    """Mechanism."""
    q: float
    """Poisson sampling rate; 1 outside the record-level modes."""
    z: float
    """Noise multiplier of everything released together (delta and metrics block joined)."""
    steps: int
    """Composed releases that this entry covers."""
    dimension: int
    """d, the length of the delta."""
    descriptor_sha256: bytes
    """Digest of the signed descriptor."""

    def __post_init__(self) -> None:
        """Refuse entries that no accountant understands."""
        if not isinstance(self.mode, Mode):
            raise SpecError(f"unknown mechanism {self.mode!r}")
        if not 0 < len(self.run) <= _MAX_RUN_CHARACTERS:
            raise SpecError("a run id has between 1 and 256 characters")
        if min(self.round, self.attempt, self.step, self.part) < 0:
            raise SpecError("the numbers of an identity are not negative")
        if self.steps < 1 or self.dimension < 1:
            raise SpecError("an entry covers at least one step and one coordinate")
        if len(self.descriptor_sha256) != DIGEST_BYTES:
            raise SpecError("the descriptor digest is not a SHA-256")
        if not 0 < self.q <= 1:
            raise SpecError(f"the sampling rate must lie in (0, 1], got {self.q!r}")
        if self.mode in (Mode.NONE, Mode.SILO) and self.q != 1:
            raise SpecError(f"mode {self.mode.value!r} has no sampling to take credit for")
        if not math.isfinite(self.z) or (self.mode is Mode.NONE) != (self.z == 0) or self.z < 0:
            raise SpecError(f"noise multiplier {self.z!r} does not fit mode {self.mode.value!r}")

    @property
    def identity(self) -> Identity:
        """The aggregation this entry charges."""
        return Identity(self.run, self.round, self.step, self.part, self.attempt)

    @property
    def rdp(self) -> Divergences:
        """Rényi divergences at ``dp.rdp.ORDERS``."""
        if self.mode is Mode.NONE:
            return np.zeros(len(ORDERS))
        if self.q == 1:
            return rdp_gaussian(self.z, self.steps)
        return rdp_subsampled(self.q, self.z, self.steps)
