"""What the theory promises, and what it takes away: bounds on the gap between silos and federation.

FedAgent, theorems 1 to 5, lemma 2 and corollary 1. Symbols:

    most_return   Rmax·H: the most that an episode can return. Where success is counted that is 1,
                  and all gaps below are in success rates
    most_reward   Rmax, of one step; most_return / horizon unless an environment says otherwise
    horizon       H
    delta         δ: sup of the total variation between two environments' kernels
    eta_cls, eta_ker, t_star    of condition (C3): error of inferring the environment, total
                  variation of the inferred kernel, and the step from which it can be inferred

A bound is never made tighter than the theorem; one that says nothing (above ``most_return``) is
returned as it is. Constants that the paper leaves in O(·) are 1 here, so (C3)'s slack is an order
of magnitude and no promise.

Covered: the formulas. Not covered: whether their assumptions hold, which the probes look at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "CONSTANT",
    "Fallback",
    "PrefixSlack",
    "chi2",
    "chi2_to_mixture",
    "described_slack",
    "fallback",
    "policy_gap_floor",
    "prefix_slack",
    "return_difference",
    "task_gap_bound",
]

CONSTANT: Final = 2.0
"""Within this factor of the floor a gap is at the floor (F1)."""
Fallback = Literal["F1", "F2"]


def chi2(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    """χ²(p‖q) = Σ (p − q)²/q; infinite where p has what q has not.

    Raises:
        ValueError: One of the two is no distribution.
    """
    for one in (p, q):
        if min(one.values(), default=-1) < 0 or not math.isclose(sum(one.values()), 1.0):
            raise ValueError("shares are at least 0 and come to 1")
    found = 0.0
    for name in {*p, *q}:
        mine, theirs = p.get(name, 0.0), q.get(name, 0.0)
        if theirs == 0.0 and mine > 0.0:
            return math.inf
        if theirs > 0.0:
            found += (mine - theirs) ** 2 / theirs
    return found


def chi2_to_mixture(silos: Sequence[Mapping[str, float]]) -> tuple[float, ...]:
    """χ²(D_i‖D̄) of each silo's tasks against the mean of all; at most N − 1 (theorem 2).

    Raises:
        ValueError: There is no silo, or one has no distribution.
    """
    if not silos:
        raise ValueError("there is no silo")
    mixture = {
        name: sum(silo.get(name, 0.0) for silo in silos) / len(silos)
        for name in {name for silo in silos for name in silo}
    }
    return tuple(chi2(silo, mixture) for silo in silos)


def task_gap_bound(
    *, chi2: float, silos: int, most_return: float, eps_approx: float, eps_opt: float
) -> float:
    """Theorem 2: how far a silo may lie below its own best, where only tasks differ.

    The smaller of sqrt((1 + χ²)·Rmax·H·(ε_approx + ε_opt)) and N·(ε_approx + ε_opt).
    """
    slack = eps_approx + eps_opt
    return min(math.sqrt((1 + chi2) * most_return * slack), silos * slack)


def policy_gap_floor(*, most_return: float, delta: float) -> float:
    """Theorems 3 and 4: Δ_pol ≥ Rmax·H·δ/2 where observations reveal nothing."""
    return most_return * delta / 2


def return_difference(*, most_return: float, horizon: int, delta: float) -> float:
    """Lemma 2: |J(π; M1) − J(π; M2)| ≤ Rmax·H²·δ."""
    return most_return * horizon * delta


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixSlack:
    """Theorem 5 under (C3), term by term."""

    t_star: float
    """Rmax·t*: what is lost before the environment can be known."""
    eta_cls: float
    """Rmax·H·η_cls: what is lost by taking it for another."""
    eta_ker: float
    """Rmax·H²·η_ker: what is lost by knowing it not exactly."""

    @property
    def total(self) -> float:
        """Of all three."""
        return self.t_star + self.eta_cls + self.eta_ker

    @property
    def largest(self) -> Literal["t_star", "eta_cls", "eta_ker"]:
        """Which term dominates."""
        terms: dict[Literal["t_star", "eta_cls", "eta_ker"], float] = {
            "t_star": self.t_star,
            "eta_cls": self.eta_cls,
            "eta_ker": self.eta_ker,
        }
        return max(terms, key=lambda name: terms[name])


def prefix_slack(
    *,
    most_return: float,
    horizon: int,
    t_star: int,
    eta_cls: float,
    eta_ker: float,
    most_reward: float | None = None,
) -> PrefixSlack:
    """Theorem 5 under (C3).

    ``t_star`` counts from 1, and an environment that is known from the first observation on costs
    nothing: t* − 1 actions are taken before it is known.
    """
    reward = most_return / horizon if most_reward is None else most_reward
    return PrefixSlack(
        t_star=reward * (t_star - 1),
        eta_cls=most_return * eta_cls,
        eta_ker=most_return * horizon * eta_ker,
    )


def described_slack(
    *,
    silos: int,
    most_return: float,
    horizon: int,
    eps_approx: float,
    eps_opt: float,
    eta_cls: float = 0.0,
    eta_ker: float = 0.0,
) -> float:
    """Corollary 1: with a descriptor before the instruction, environments become tasks.

    With distinct descriptors χ²_aug = N − 1.
    """
    tasks = math.sqrt(silos * most_return * (eps_approx + eps_opt))
    return tasks + most_return * eta_cls + most_return * horizon * eta_ker


def fallback(gap: tuple[float, float], floor: float) -> Fallback | None:
    """The verdict of a short federated probe: its worst gap, from low to high, beside the floor.

    F1: the whole interval lies at or above the floor over ``CONSTANT``: latent pattern D, so
    personalise or cluster. F2: it lies below: averaging is adequate. None where the interval has
    that limit within it. A floor of 0 forbids nothing, so it is F2.
    """
    low, high = gap
    limit = floor / CONSTANT
    if floor <= 0 or high < limit:
        return "F2"
    return "F1" if low >= limit else None
