"""Collapse: success that fell to a fraction of the run's best and stays there, while rounds go on.

With s the success of a judged round and b the best that an earlier one of the run had, each with
the standard error of its noise, the round has *fallen* if ::

    s < SHARE · b    and    b − s > DROP    and    b − s > z(R) · √(e_s² + e_b²)

and the agent has collapsed if the newest ``IN_A_ROW`` judged rounds have all fallen. R counts the
earlier rounds of which b is the best. With one of them z is ``ERRORS``; the best of many is high by
luck, so z grows with R such that each round of an agent that stays as it is falls by noise with a
chance of at most P(N(0, 1) > ERRORS) = 1 in 741, however long the run (the Bonferroni inequality;
Dunn, "Multiple comparisons among means", JASA 56, 1961): 3.6 for 10 rounds, 4.2 for 100.

Ordered invariants:

1. What is found follows from public figures of closed rounds alone. So a restart finds the same,
   and whoever watches the run finds what the coordinator finds.
2. Judged is a round whose sum tells a figure above its noise (``dp.noise.figures``); skipped rounds
   and rollbacks are neither fallen nor not. The mean is over the environments that the fallen round
   tells, and only earlier rounds that tell all of them are compared: another mix of environments is
   no news of the agent.
3. After a rollback the best is still that of the whole run, rounds before it included; the count
   begins anew, for the rounds before it judged an adapter that is given up.

Covered: plans with one step or several, environments that come and go, a run that goes on after a
pause or a restart. Not covered: which tasks were drawn, beyond ``DROP``: without noise, few
episodes a round can look like a collapse; samplers that turn to harder tasks, which lower success
with the agent as it was; a fall to more than half; who caused it, which no sum tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

from dp.noise.estimate import Estimate
from dp.noise.figures import mean_success, readable_ratio, success_words
from server.figures import RoundFigures

__all__ = ["Collapse", "collapse"]

SHARE: Final = 0.5
"""Of the best, below which a round has fallen."""
DROP: Final = 0.1
"""For the sampling of episodes, which the standard error does not hold."""
ERRORS: Final = 3.0
"""Standard errors of the difference from one earlier round."""
IN_A_ROW: Final = 2
"""Judged rounds that have to have fallen."""


class _Judged(NamedTuple):
    """A round that tells success."""

    round: int
    success: Mapping[str, Estimate]
    """Of the environments that noise does not hide, of which there are some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collapse:
    """A run whose agent has collapsed."""

    round: int
    """The newest judged one."""
    success: Estimate
    """Of that round."""
    best_round: int
    best: Estimate
    """Over the same environments."""
    good_round: int
    """The newest earlier round that lies at most ``DROP`` below the best."""

    @property
    def words(self) -> str:
        """What happened, in a few words."""
        best, now = success_words({"": self.best}), success_words({"": self.success})
        return f"success fell from {best} in round {self.best_round} to {now} in round {self.round}"

    def back(self, run_id: str) -> str:
        """The command that brings back the adapter which the newest good round explored with."""
        return f"chorale adapter rollback {run_id} --to-round {self.good_round - 1}"

    def advice(self, run_id: str, *, rests: bool = False) -> str:
        """For the admin of a run that is not over: what happened and what to do, in one line."""
        pause = "" if rests else f"pause: chorale run pause {run_id}; "
        return f"{self.words}, and stays there: {pause}go back: {self.back(run_id)}"


def collapse(finished: Sequence[RoundFigures]) -> Collapse | None:
    """Whether the agent has collapsed by the newest closed round, by the rule above.

    ``finished`` are the run's closed releases, oldest first.
    """
    judged: list[_Judged] = []
    counted = 0
    for figures in finished:
        if figures.restored_round is not None:
            counted = 0
        elif success := _told(figures):
            judged.append(_Judged(figures.round, success))
            counted += 1
    if counted < IN_A_ROW:
        return None
    places = range(len(judged) - IN_A_ROW, len(judged))
    falls = [_fall(judged[:place], judged[place]) for place in places]
    return falls[-1] if all(falls) else None


def _told(figures: RoundFigures) -> dict[str, Estimate]:
    """The figures above noise, where the release is one that tells success."""
    if figures.outcome != "aggregated" or figures.step:
        return {}
    return {
        family: ratio
        for family, ratio in figures.estimates.items()
        if not math.isnan(readable_ratio(ratio))
    }


def _fall(earlier: Sequence[_Judged], newest: _Judged) -> Collapse | None:
    """Where a judged round has fallen from; None if it has not."""
    families = newest.success.keys()
    means = [
        (each.round, mean_success({family: each.success[family] for family in families}))
        for each in earlier
        if families <= each.success.keys()
    ]
    if not means:
        return None
    success = mean_success(newest.success)
    best_round, best = max(means, key=lambda each: each[1].mean)
    drop = best.mean - success.mean
    error = math.hypot(success.standard_error, best.standard_error)
    if not (
        success.mean < SHARE * best.mean and drop > DROP and drop > _errors(len(means)) * error
    ):
        return None
    return Collapse(
        round=newest.round,
        success=success,
        best_round=best_round,
        best=best,
        good_round=max(number for number, mean in means if best.mean - mean.mean <= DROP),
    )


def _errors(rounds: int) -> float:
    """z(R): the standard errors by which noise parts one figure from the best of ``rounds``."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-ERRORS) / rounds)
