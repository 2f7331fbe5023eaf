"""What anyone may know about one step of a round: where it is, who took part, times and figures.

Phases have the protocol's own names, which are also those of the store, of metrics and of messages
to the admin.

Covered: everything here is public to the federation; nothing is one silo's. Not covered: figures
of single silos, which stay in the silo.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from dp.noise.estimate import Estimate

__all__ = ["STEPS", "Phase", "RoundFigures"]


class Phase(StrEnum):
    """Where a round is."""

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


BISECTED: Final = "bisected"
"""Outcome of a round that was summed in two halves to find a silo that ruins sums."""


class HalfVerdict(StrEnum):
    """What became of the sum of a half."""

    POSSIBLE = "possible"
    """Honest silos can have made it."""
    GROSS = "gross"
    """They cannot: one of its survivors ruins sums."""
    LOST = "lost"
    """There is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfSum:
    """One half of a bisected round."""

    part: int
    verdict: HalfVerdict
    survivors: tuple[str, ...]
    """Who is in its sum; empty where it was lost before that was declared."""
    suspects: tuple[str, ...]
    """Who of them was to be split."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> HalfSum:
        """Read back one of what ``RoundFigures.to_json`` wrote."""
        return cls(
            part=content["part"],
            verdict=HalfVerdict(content["verdict"]),
            survivors=tuple(content["survivors"]),
            suspects=tuple(content["suspects"]),
        )


@dataclass(kw_only=True, slots=True)
class RoundFigures:
    """What anyone may know about one step of a round; most plans have one step in a round."""

    round: int
    step: int = 0
    attempt: int = 0
    phase: Phase = Phase.TRAINING
    phase_since_unix_s: float = 0.0
    deadline_unix_s: float = 0.0
    timings_s: dict[str, float] = field(default_factory=dict)
    cohort: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    upload_bytes: int = 0
    success: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Family to success ratio and its standard error, from the masked sum; as summed, so what noise
    hides is hidden where it is shown (``dp.noise.figures``). Empty if none is reported."""
    update_norm: float = math.nan
    """‖Δ̄‖, noise included."""
    update_norm_error: float = math.nan
    """Standard error, as for each ``_error`` below."""
    agreement: float = math.nan
    """κ, NaN below noise."""
    agreement_error: float = math.nan
    heterogeneity: float = math.nan
    """ζ̂², NaN below noise."""
    heterogeneity_error: float = math.nan
    silo_norm_sq: float = math.nan
    """Mean of the silos' ‖Δ_i‖², NaN below noise."""
    silo_norm_sq_error: float = math.nan
    vetoes: float = math.nan
    """Mean over the silos in the sum of those whose guard refuses the adapter that the round began
    with; as summed. NaN where the plan asks for none."""
    vetoes_error: float = math.nan
    outcome: str = ""
    """Its record's kind, or ``quarantined`` or ``bisected``, which the chain calls skipped."""
    adapter_sha256: bytes = b""
    restored_round: int | None = None
    """Of a rollback: the round whose adapter it brought back."""
    halves: tuple[HalfSum, ...] = ()
    """Of a bisected round: its halves in order of part, as far as they were opened."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Success by family, in order of the names."""
        return {family: Estimate(*figure) for family, figure in sorted(self.success.items())}

    def to_json(self) -> str:
        """For the store."""
        content = asdict(self)
        content["adapter_sha256"] = self.adapter_sha256.hex()
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RoundFigures:
        """Read back what :meth:`to_json` wrote."""
        content = json.loads(text)
        content["phase"] = Phase(content["phase"])
        content["adapter_sha256"] = bytes.fromhex(content["adapter_sha256"])
        content["cohort"] = tuple(content["cohort"])
        content["survivors"] = tuple(content["survivors"])
        content["halves"] = tuple(map(HalfSum.from_json, content.get("halves", ())))
        content["success"] = {k: (v[0], v[1]) for k, v in content["success"].items()}
        return cls(**content)
