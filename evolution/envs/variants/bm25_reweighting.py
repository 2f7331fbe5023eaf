"""BM25 Reweighting (stage 3): a silo's search scores the same words differently.

The pools of (k1, b) are FedAgent's, in the paper's order; Lucene's defaults come first.

Covered: pools of four and of eight. Not covered: other ranking functions.
"""

from __future__ import annotations

from typing import Final

from evolution.envs.variants.stages import Matching

__all__ = ["CONSTANTS", "matching_line"]

CONSTANTS: Final = (
    Matching(k1=1.2, b=0.75),
    Matching(k1=0.3, b=0.75),
    Matching(k1=5.0, b=0.75),
    Matching(k1=1.2, b=0.0),
    Matching(k1=0.1, b=0.75),
    Matching(k1=1.2, b=1.0),
    Matching(k1=2.0, b=0.5),
    Matching(k1=0.3, b=0.0),
)
"""The first four are the pool of four."""


def matching_line(choice: int) -> str:
    """The constants in hundredths, digit by digit: a small model has no words for numbers."""
    one = CONSTANTS[choice]
    k1, b = (" ".join(f"{round(100 * value):03d}") for value in (one.k1, one.b))
    return f"search k {k1} b {b} ."
