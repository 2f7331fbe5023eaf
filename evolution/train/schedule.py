"""How the step size changes over one round's local steps.

Fed-SE trains with a cosine and no warm-up (arXiv 2512.08870, appendix B); SGDR (arXiv 1608.03983,
eq. 5) with η_min = 0. Each round begins at the full step again.

Covered: ``constant`` and ``cosine``. Not covered: a schedule over rounds.
"""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Schedule", "share_of_step"]

Schedule = Literal["constant", "cosine"]


def share_of_step(schedule: Schedule, *, done: int, steps: int) -> float:
    """What part of the learning rate the next step takes.

    Args:
        schedule: Which.
        done: Steps taken, 0 ≤ done < steps.
        steps: Steps of the round.

    Returns:
        1 at the first step; with ``cosine`` ½·(1 + cos(π·done/steps)).
    """
    if schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * done / steps))
