"""What a ledger charges: one attempt at an aggregation, or one local training.

Invariants: identities of one run compare in the order of time; an entry whose charges do not fit
its mode, or that no accountant understands, cannot be made.

    mode                 an attempt charges                         a training charges
    none                 nothing                                    –
    silo                 silo, without sampling                     –
    record_local         task or user (and silo), without sampling  task or user
    record_distributed   task or user                               –

Covered: bounds and meaning of the fields. Not covered: order and budget (``dp.ledger.ledger``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dp.accounting.charge import Charge
from dp.config import Mode
from dp.errors import SpecError

__all__ = ["DIGEST_BYTES", "Head", "Identity", "LedgerEntry", "TrainingEntry"]

DIGEST_BYTES: Final = 32
_MAX_RUN_CHARACTERS: Final = 256
_MAX_NUMBER: Final = (1 << 32) - 1


class Head(NamedTuple):
    """A record of a ledger: its number and its digest."""

    seq: int
    sha256: bytes


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

    def require_valid(self) -> None:
        """Refuse names and numbers that no aggregation has.

        Raises:
            SpecError: If a field is of another type or out of bounds.
        """
        _require_run(self.run)
        for number in (self.round, self.step, self.part, self.attempt):
            _require_number(number)


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
    charges: tuple[Charge, ...]
    """Everything that the release costs, debited in one record; empty under ``none``."""
    dimension: int
    """d, the length of the vector without its metrics block."""
    descriptor_sha256: bytes
    """Digest of the signed descriptor."""

    def __post_init__(self) -> None:
        """Refuse entries that no accountant understands."""
        self.identity.require_valid()
        _require_mode(self.mode)
        _require_charges(self.charges)
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, int):
            raise SpecError(f"a dimension is an integer, got {self.dimension!r}")
        if self.dimension < 1:
            raise SpecError("an entry covers at least one coordinate")
        _require_digest(self.descriptor_sha256)
        units = {charge.unit for charge in self.charges}
        sampled = any(charge.q != 1 for charge in self.charges)
        match self.mode:
            case Mode.NONE:
                fits = not units
            case Mode.SILO:
                fits = units == {"silo"} and not sampled
            case Mode.RECORD_LOCAL:
                fits = len(units - {"silo"}) == 1 and not sampled
            case Mode.RECORD_DISTRIBUTED:
                fits = len(units) == 1 and "silo" not in units
        if not fits:
            raise SpecError(f"these charges do not fit mode {self.mode.value!r}")

    @property
    def identity(self) -> Identity:
        """The aggregation this entry charges."""
        return Identity(self.run, self.round, self.step, self.part, self.attempt)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEntry:
    """One local training to be charged before its first step."""

    run: str
    """Run id."""
    round: int
    """Round number."""
    mode: Mode
    """Mechanism; ``record_local``."""
    charges: tuple[Charge, ...]
    """What its steps cost."""
    adapter_sha256: bytes
    """Digest of the adapter that training starts from."""
    spec_sha256: bytes
    """Digest of the privacy spec that the steps follow."""

    def __post_init__(self) -> None:
        """Refuse trainings that no accountant understands."""
        _require_run(self.run)
        _require_number(self.round)
        _require_mode(self.mode)
        _require_charges(self.charges)
        _require_digest(self.adapter_sha256)
        _require_digest(self.spec_sha256)
        units = {charge.unit for charge in self.charges}
        if self.mode is not Mode.RECORD_LOCAL or len(units) != 1 or "silo" in units:
            raise SpecError(f"mode {self.mode.value!r} charges no such training")


def _require_run(run: str) -> None:
    if not isinstance(run, str) or not 0 < len(run) <= _MAX_RUN_CHARACTERS:
        raise SpecError("a run id has between 1 and 256 characters")


def _require_number(number: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX_NUMBER:
        raise SpecError(f"a number of an identity lies in [0, 2^32), got {number!r}")


def _require_mode(mode: Mode) -> None:
    if not isinstance(mode, Mode):
        raise SpecError(f"unknown mechanism {mode!r}")


def _require_charges(charges: tuple[Charge, ...]) -> None:
    if not isinstance(charges, tuple) or not all(isinstance(one, Charge) for one in charges):
        raise SpecError("an entry holds a tuple of charges")


def _require_digest(digest: bytes) -> None:
    if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
        raise SpecError("a digest of an entry is not a SHA-256")
