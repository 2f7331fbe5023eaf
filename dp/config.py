"""What a plan says about privacy, validated and hashed.

Invariants:
    1. The mode is always spelled out; no mode is a default, and ``Mode.NONE`` is a choice.
    2. ``mode is NONE`` exactly when both noise multipliers are zero.
    3. Two specs have the same ``sha256()`` only if every field is equal: the encoding is
       length-prefixed and tagged with its domain and with each field's name.

Covered: types, ranges, consistency of the fields with each other.
Not covered: whether the grid suits a dimension (``dp.grid``), whether the ring is wide enough
(``dp.share``), whether ε reaches the cap (``dp.ledger``).
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from dp.errors import SpecError
from dp.rdp import joint_noise_multiplier

DOMAIN: Final = b"chorale/v1/privacy-spec"
MAX_GRID_STEPS: Final = 1 << 24
"""Finer grids gain nothing over float32 deltas and leave no room in a 32-bit ring."""

Unit = Literal["task", "user"]


class Mode(StrEnum):
    """Which mechanism protects the release."""

    NONE = "none"
    """No noise at all; only masking hides a silo's vector."""
    SILO = "silo"
    """Hides what one silo's whole data set contributed to the sum."""
    RECORD_LOCAL = "record_local"
    """DP-SGD inside the silo; holds against everyone outside it."""
    RECORD_DISTRIBUTED = "record_distributed"
    """One aggregation per optimiser step, the noise shared between silos."""


_SUPPORTED: Final = frozenset({Mode.NONE, Mode.SILO})


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacySpec:
    """The privacy part of a run plan."""

    mode: Mode
    """The mechanism; there is no default."""
    unit: Unit
    """Whose contribution is one unit at record level."""
    clip_l2: float
    """L2 bound C on the whole delta vector."""
    noise_multiplier: float
    """z: the standard deviation of the summed noise in multiples of C."""
    delta: float
    """The δ at which ε is reported and capped."""
    epsilon_cap: float
    """Largest ε the run may reach."""
    grid: int = 2**20
    """Δ: the integer that C becomes in fixed point."""
    metrics_noise_multiplier: float
    """z of the metrics block; zero only under ``Mode.NONE``."""

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured."""
        if not isinstance(self.mode, Mode):
            raise SpecError(f"mode must be a dp.config.Mode, got {self.mode!r}")
        if self.unit not in ("task", "user"):
            raise SpecError(f"unit must be 'task' or 'user', got {self.unit!r}")
        self._require_ranges()
        if isinstance(self.grid, bool) or not isinstance(self.grid, int):
            raise SpecError(f"grid must be an integer, got {self.grid!r}")
        if not 16 <= self.grid <= MAX_GRID_STEPS:
            raise SpecError(f"grid must lie in [16, {MAX_GRID_STEPS}], got {self.grid}")

    def _require_ranges(self) -> None:
        for name in ("clip_l2", "delta", "epsilon_cap"):
            if not (_finite(name, getattr(self, name)) and getattr(self, name) > 0):
                raise SpecError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("noise_multiplier", "metrics_noise_multiplier"):
            if not (_finite(name, getattr(self, name)) and getattr(self, name) >= 0):
                raise SpecError(f"{name} must not be negative, got {getattr(self, name)!r}")
            if (self.mode is Mode.NONE) != (getattr(self, name) == 0):
                raise SpecError(
                    f"{name} is {getattr(self, name)!r} under mode {self.mode.value!r}: it is "
                    "zero under mode 'none' and positive under every other mode"
                )
        if self.delta >= 1:
            raise SpecError(f"delta must be below 1, got {self.delta!r}")

    @property
    def joint_noise_multiplier(self) -> float:
        """The one z that a round's delta and metrics block are charged with together."""
        if self.mode is Mode.NONE:
            return 0.0
        return joint_noise_multiplier(self.noise_multiplier, self.metrics_noise_multiplier)

    def require_supported(self) -> None:
        """Refuse a mode that validates but has no implementation behind it.

        Raises:
            SpecError: If a daemon was asked to run a record-level mode.
        """
        if self.mode not in _SUPPORTED:
            raise SpecError(
                f"not available yet: mode {self.mode.value!r}; choose 'silo', or 'none' spelled out"
            )

    def sha256(self) -> bytes:
        """Digest of the canonical encoding, bound into the descriptor."""
        fields = (
            (b"mode", self.mode.value.encode()),
            (b"unit", self.unit.encode()),
            (b"clip_l2", struct.pack(">d", self.clip_l2)),
            # Adding zero turns -0.0 into 0.0, so equal specs have equal digests.
            (b"noise_multiplier", struct.pack(">d", self.noise_multiplier + 0.0)),
            (b"delta", struct.pack(">d", self.delta)),
            (b"epsilon_cap", struct.pack(">d", self.epsilon_cap)),
            (b"grid", struct.pack(">Q", self.grid)),
            (b"metrics_noise_multiplier", struct.pack(">d", self.metrics_noise_multiplier + 0.0)),
        )
        digest = hashlib.sha256(_prefixed(DOMAIN))
        for name, value in fields:
            digest.update(_prefixed(name) + _prefixed(value))
        return digest.digest()


def _finite(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} must be a number, got {value!r}")
    try:
        return math.isfinite(float(value))
    except OverflowError as error:
        raise SpecError(f"{name} is too large for a float") from error


def _prefixed(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value
