"""The pattern that a setting will show, said before it is trained: rules over what probes found.

In this order, the first that holds:

1. Silos differ in tasks alone: **A** (theorem 1).
2. T1 passed (C1: one policy, and kernels agree where it goes): **B**.
3. T2 passed (C2: the same actions are best): **B**.
4. T3 passed (C3: the environment can be inferred from the prefix) by an early step, ``EARLY`` of
   the horizon: **B**; by a later one: **C**, because what comes before is lost.
5. F1, a short federated probe at the theorem's floor: **D**. F2, well below it: **C**, for a plain
   average works better than the theory asks for, and T1 to T3 say that it will not reach the
   single environment.
6. Best actions are the same in less than ``OPPOSED`` of the shared states: **D**, the worst case's
   construction. Else **C**.

What is not known is passed over, and said.

Covered: locus, identity in early observations, overlap of best actions, the floor. Not covered:
what a later change of plan, base or environments does to it; it is a prediction, and
``docs/diagnostics.md`` counts where such predictions missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evolution.diagnose.bounds import Fallback, PrefixSlack, prefix_slack
from evolution.diagnose.patterns import Locus, Pattern
from evolution.diagnose.rates import Rate
from evolution.diagnose.remedies import Trouble

__all__ = ["EARLY", "OPPOSED", "Predicted", "Signs", "predict"]

EARLY: Final = 0.25
"""Of the horizon: an environment that is known by then costs little."""
OPPOSED: Final = 0.5
"""Of the shared states: agreement on the best action below it is the worst case's construction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signs:
    """What is known of a setting before training."""

    locus: Locus
    """What silos differ in."""
    horizon: int
    """H, the most steps of an episode."""
    most_return: float = 1.0
    """Rmax·H; 1 in success rates."""
    t1: bool | None = None
    """Whether T1 passed; None: not looked at."""
    t2: bool | None = None
    """Whether T2 passed."""
    t3: bool | None = None
    """Whether T3 passed."""
    t_star: int | None = None
    """T3's: the step from which the environment can be inferred, counted from 1."""
    eta_cls: float | None = None
    """T3's: the error from there on."""
    overlap: Rate | None = None
    """T2's: shared states whose best actions agree."""
    fallback: Fallback | None = None
    """F's verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What the rules say."""

    pattern: Pattern
    why: str
    """Which rule held, in a sentence."""
    unknown: tuple[str, ...]
    """What was passed over."""
    slack: PrefixSlack | None
    """Theorem 5's, where T3 found the terms."""
    trouble: Trouble | None
    """What to look up in the menu of remedies; None where nothing has to be done."""


def predict(signs: Signs) -> Predicted:
    """Apply the rules."""
    slack = None
    if signs.t_star is not None and signs.eta_cls is not None:
        slack = prefix_slack(
            most_return=signs.most_return,
            horizon=signs.horizon,
            t_star=signs.t_star,
            eta_cls=signs.eta_cls,
            eta_ker=0.0,
        )
    unknown = tuple(
        name
        for name, value in (("T1", signs.t1), ("T2", signs.t2), ("T3", signs.t3))
        if value is None and signs.locus == "environments"
    )
    pattern, why = _decide(signs)
    return Predicted(
        pattern=pattern,
        why=why,
        unknown=unknown,
        slack=slack,
        trouble=_trouble(pattern, signs, slack),
    )


def _decide(signs: Signs) -> tuple[Pattern, str]:
    if signs.locus == "tasks":
        return "A", "silos differ in tasks alone, and the task is in the prompt"
    if signs.t1:
        return "B", "T1 passes: one policy serves all, and kernels agree where it goes"
    if signs.t2:
        return "B", "T2 passes: the same actions are best in all environments"
    if signs.t3 and signs.t_star is not None:
        return _inferred(signs.t_star, signs.horizon)
    return _opposed(signs)


def _inferred(t_star: int, horizon: int) -> tuple[Pattern, str]:
    """Where the environment shows in the prefix."""
    if t_star <= max(1.0, EARLY * horizon):
        return "B", f"T3 passes: the environment shows by observation {t_star}"
    return "C", (
        f"T3 passes late: the environment shows by observation {t_star} of {horizon}, and what "
        "comes before is lost"
    )


def _opposed(signs: Signs) -> tuple[Pattern, str]:
    """Where no test passes."""
    if signs.fallback == "F1":
        return "D", "no test passes, and a short federated probe lies at the theorem's floor (F1)"
    if signs.fallback == "F2":
        return "C", "no test passes, and a short federated probe lies well below the floor (F2)"
    if signs.overlap is not None and signs.overlap.known and signs.overlap.value < OPPOSED:
        return "D", (
            f"no test passes, and the best actions agree in {100 * signs.overlap.value:.0f} % of "
            "the shared states only"
        )
    return "C", "no test passes, and nothing says that environments oppose each other"


def _trouble(pattern: Pattern, signs: Signs, slack: PrefixSlack | None) -> Trouble | None:
    if pattern == "D":
        return "D"
    if pattern != "C":
        return None
    if signs.t3 and slack is not None:
        return slack.largest
    return "eta_cls" if signs.t3 is False else "delta_eff"
