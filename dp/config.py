"""What a plan says about privacy, validated and hashed.

Invariants:
    1. The mode is always spelled out; no mode is a default, and ``Mode.NONE`` is a choice.
    2. ``mode is NONE`` exactly when both noise multipliers are zero.
    3. ``record`` is there exactly in the record-level modes. C, z and Δ are always those of what
       the mode protects: a silo's whole delta in ``silo``, one unit's gradient in the record-level
       modes. ``release`` says what they are for the vector that is masked and summed.
    4. Two specs have the same ``sha256()`` only if every field is equal: the encoding is
       length-prefixed and tagged with its domain and with each field's name.

Covered: types, ranges, consistency of the fields with each other.
Not covered: whether the grid suits a dimension (``dp.noise.grid``), whether the ring is wide enough
(``dp.noise.share``), whether ε reaches the cap (``dp.ledger.ledger``).
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from dp.errors import SpecError

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


RECORD_MODES: Final = frozenset({Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED})
"""The modes whose unit is a task or a user."""

ADJACENCY: Final = "zero-out adjacency"
"""Said beside every ε: a unit's contribution is there, or is the null one."""

DEFAULT_BACKEND: Final = "fixed"
"""Of the gradients of single units (``dp/steps/backends.py``), where a silo chooses none."""

DELTA_GRID: Final = 1 << 20
"""Δ of a delta that carries its own noise already: it only has to be fine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSpec:
    """What the record-level modes need beside C, z and Δ; nothing here depends on data."""

    sampling_rate: float
    """q: each unit of the silo is in a step with this probability, independently."""
    expected_units: int
    """B̄: the fixed normaliser of a step, at least q times the most units a silo can have."""
    steps_per_round: int
    """S: optimiser steps of one round."""
    delta_clip_l2: float | None = None
    """``record_local``: L2 bound of the encoded delta; record-level ε does not depend on it."""
    silo_noise_multiplier: float = 0.0
    """``record_local``: z of mode ``silo`` on top, in units of ``delta_clip_l2``; 0: none."""

    def __post_init__(self) -> None:
        """Refuse what no step can be."""
        if not (_finite("sampling_rate", self.sampling_rate) and 0 < self.sampling_rate <= 1):
            raise SpecError(f"sampling_rate must lie in (0, 1], got {self.sampling_rate!r}")
        for name in ("expected_units", "steps_per_round"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name} must be a positive integer, got {value!r}")
        if not (
            _finite("silo_noise_multiplier", self.silo_noise_multiplier)
            and self.silo_noise_multiplier >= 0
        ):
            raise SpecError(
                f"silo_noise_multiplier must not be negative, got {self.silo_noise_multiplier!r}"
            )
        clip = self.delta_clip_l2
        if clip is not None and not (_finite("delta_clip_l2", clip) and clip > 0):
            raise SpecError(f"delta_clip_l2 must be positive, got {clip!r}")

    @property
    def max_units(self) -> int:
        """B_max = ⌈B̄ + 8√B̄⌉: a step that samples more is not released."""
        return math.ceil(self.expected_units + 8.0 * math.sqrt(self.expected_units))

    @property
    def overflow_delta(self) -> float:
        """Bound on the probability that one step samples more than B_max units; added to δ.

        Chernoff for a sum of independent indicators of mean at most B̄:
        P[X ≥ (1+u)·B̄] ≤ exp(−B̄·((1+u)·ln(1+u) − u)) (Mitzenmacher and Upfal, "Probability and
        Computing", Theorem 4.4), with (1+u)·B̄ = B_max + 1.
        """
        ratio = (self.max_units + 1) / self.expected_units
        return math.exp(-self.expected_units * (ratio * math.log(ratio) - (ratio - 1.0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseSpec:
    """What is masked and summed: up to ``max_units`` vectors, each clipped to C on a grid of Δ."""

    clip_l2: float
    """C of one of them, in the units of the delta or gradient."""
    grid: int
    """Δ: the integer that C becomes."""
    noise_multiplier: float
    """z of the noise in the masked sum; 0 where there is none."""
    max_units: int
    """Vectors that one silo may add up; 1 for a delta."""

    @property
    def vector_clip_l2(self) -> float:
        """L2 bound of one silo's vector."""
        return self.clip_l2 * self.max_units


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacySpec:
    """The privacy part of a run plan."""

    mode: Mode
    """The mechanism; there is no default."""
    unit: Unit
    """Whose contribution is one unit at record level."""
    clip_l2: float
    """L2 bound C: on the whole delta vector in ``silo``, on one unit's gradient at record level."""
    noise_multiplier: float
    """z: the standard deviation of the noise in multiples of C."""
    delta: float
    """The δ at which ε is reported and capped."""
    epsilon_cap: float
    """Largest ε the run may reach."""
    grid: int = 2**20
    """Δ: the integer that C becomes in fixed point."""
    metrics_noise_multiplier: float
    """z of the metrics block; zero only under ``Mode.NONE``."""
    record: RecordSpec | None = None
    """Sampling, batch and steps; in the record-level modes only."""

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
        self._require_record()

    def _require_record(self) -> None:
        record = self.record
        if (record is not None) != (self.mode in RECORD_MODES):
            raise SpecError(
                f"mode {self.mode.value!r} "
                + ("needs its record settings" if record is None else "takes no record settings")
            )
        if record is None:
            return
        if self.mode is Mode.RECORD_LOCAL and record.delta_clip_l2 is None:
            raise SpecError("mode 'record_local' encodes a delta: set delta_clip_l2")
        if self.mode is Mode.RECORD_DISTRIBUTED and record.delta_clip_l2 is not None:
            raise SpecError("mode 'record_distributed' sends no delta: remove delta_clip_l2")
        if self.mode is Mode.RECORD_DISTRIBUTED and record.silo_noise_multiplier > 0:
            raise SpecError(
                "silo_noise_multiplier composes with mode 'record_local' only: in "
                "'record_distributed' one silo may add up to max_units clips, and noise that hides "
                "all of them leaves nothing to learn"
            )

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
    def release(self) -> ReleaseSpec:
        """What is masked and summed in one aggregation."""
        record = self.record
        if record is not None and record.delta_clip_l2 is not None:
            return ReleaseSpec(
                clip_l2=record.delta_clip_l2,
                grid=DELTA_GRID,
                noise_multiplier=record.silo_noise_multiplier,
                max_units=1,
            )
        return ReleaseSpec(
            clip_l2=self.clip_l2,
            grid=self.grid,
            noise_multiplier=self.noise_multiplier,
            max_units=1 if record is None else record.max_units,
        )

    @property
    def sums_per_round(self) -> int:
        """Aggregations of one round: one for each optimiser step in ``record_distributed``."""
        if self.mode is Mode.RECORD_DISTRIBUTED and self.record is not None:
            return self.record.steps_per_round
        return 1

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
            (b"record", b"" if self.record is None else _record_fields(self.record)),
        )
        digest = hashlib.sha256(_prefixed(DOMAIN))
        for name, value in fields:
            digest.update(_prefixed(name) + _prefixed(value))
        return digest.digest()


def _record_fields(record: RecordSpec) -> bytes:
    clip = record.delta_clip_l2
    return b"".join(
        (
            struct.pack(">d", record.sampling_rate),
            struct.pack(">QQ", record.expected_units, record.steps_per_round),
            _prefixed(b"" if clip is None else struct.pack(">d", clip)),
            struct.pack(">d", record.silo_noise_multiplier + 0.0),
        )
    )


def _finite(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} must be a number, got {value!r}")
    try:
        return math.isfinite(float(value))
    except OverflowError as error:
        raise SpecError(f"{name} is too large for a float") from error


def _prefixed(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value
