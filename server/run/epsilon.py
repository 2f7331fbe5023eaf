"""ε of a run as the coordinator shows it: by the plan, from what the coordinator has asked for.

Under ``record_local`` a training is charged before it begins, whether or not its round ever reaches
an upload. So one training is counted for each round whose task went out, which is what a silo was
charged that trained once in each of them.

Invariant: a figure that cannot be computed is infinite, never a guess.

Covered: every mode, every unit kind. Not covered: a silo's own ledger, which is what binds: it was
charged less where the silo was away, more where a crash or a repeated task made it train a round
again, and by other runs.
"""

from __future__ import annotations

import math

from dp.errors import PrivacyError
from federation.forecast.epsilon import epsilon_of_releases, units_of
from federation.plan.plan import Plan

__all__ = ["epsilon_spent"]


def epsilon_spent(plan: Plan, *, releases: int, first_steps: int, rounds: int) -> dict[str, float]:
    """ε of so many charged attempts for each unit kind that the plan speaks of.

    Args:
        plan: The run's plan.
        releases: Attempts that reached the upload.
        first_steps: How many of them were of a round's step 0.
        rounds: Rounds whose task went out; each stands for one training where training is charged.
    """
    spec = plan.spec
    try:
        spent = epsilon_of_releases(
            spec, releases=releases, first_steps=first_steps, trainings=rounds
        )
    except PrivacyError:
        return dict.fromkeys(units_of(spec), math.inf)
    return {unit: spent[unit] for unit in units_of(spec)}
