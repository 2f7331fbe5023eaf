"""ε of a run as everyone can compute it, from the plan and the number of charged attempts.

Invariant: a figure that cannot be computed is infinite, never a guess.

Covered: modes `none` and `silo`. Not covered: what one silo's ledger was charged by other runs.
"""

from __future__ import annotations

import math

from dp.errors import PrivacyError
from dp.rdp import epsilon, joint_noise_multiplier, rdp_gaussian
from federation.plan import Plan

__all__ = ["epsilon_spent"]


def epsilon_spent(plan: Plan, releases: int) -> float:
    """ε of so many charged attempts under the plan's joint mechanism; inf without noise."""
    spec = plan.privacy_spec()
    if releases == 0:
        return 0.0
    if spec.noise_multiplier == 0:
        return math.inf
    z = joint_noise_multiplier(spec.noise_multiplier, spec.metrics_noise_multiplier)
    try:
        return epsilon(rdp_gaussian(z, releases), spec.delta)
    except PrivacyError:
        return math.inf
