"""Where each part of a diagnosis is computed when sums are masked, and what nobody can know then.

Covered: what Chorale does. Not covered: what a later protocol might add to the masked vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["UNDER_MASKS", "UnderMasks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderMasks:
    """One part."""

    part: str
    in_the_silo: str
    """What a silo computes of it by itself."""
    through_the_sum: str
    """What of it the masked sum tells everybody."""
    unknown: str
    """What nobody can know."""


UNDER_MASKS: Final[tuple[UnderMasks, ...]] = (
    UnderMasks(
        part="T1",
        in_the_silo="π̂ and δ̂_eff between its own environment and the public reference",
        through_the_sum="agreement κ and heterogeneity ζ̂² of a round's updates, where the plan has "
        "noise (without noise there is no metrics block)",
        unknown="δ̂_eff of two silos; which silos differ",
    ),
    UnderMasks(
        part="T2",
        in_the_silo="best actions in its own environment beside those in the reference",
        through_the_sum="nothing",
        unknown="best actions of two silos, side by side",
    ),
    UnderMasks(
        part="T3",
        in_the_silo="t* and η̂_cls of a classifier of its own environment against the reference",
        through_the_sum="nothing",
        unknown="whether two silos that both differ from the reference can be told from each other",
    ),
    UnderMasks(
        part="F1, F2",
        in_the_silo="its own gap: together (the adopted adapter) beside alone (chorale-silo alone, "
        "chorale-silo compare)",
        through_the_sum="episodes and successes by family, all silos together, where the plan has "
        "noise",
        unknown="the worst silo's gap",
    ),
    UnderMasks(
        part="pattern",
        in_the_silo="the curve of adopted adapters on held-out tasks beside what it reaches alone",
        through_the_sum="success by family over rounds, where the plan has noise",
        unknown="the spread over silos; seeds, for a federation has one",
    ),
    UnderMasks(
        part="tasks' χ²",
        in_the_silo="its own shares of types",
        through_the_sum="nothing",
        unknown="the mixture, and so every silo's χ²",
    ),
)
