"""Which of four patterns a setting's curves are, by a rule that is written down once: ``RULE``.

FedAgent (its section on patterns)::

    A   silos differ in tasks alone, and the plateau is that of the uniform mixture
    B   environments differ, and the plateau is that of the best single environment
    C   environments differ; a stable plateau below it
    D   collapse, oscillation, or seeds that part

The rule, of held-out success rates, in this order:

1. The plateau of a seed is the mean over the last quarter of its evaluations.
2. A seed has **collapsed** if its plateau lies below the start plus half of the rise from the start
   to the peak, or below the start. Both only count beyond noise: the peak lies above the plateau,
   or the start above it, by more than the margin and ``noise`` standard errors of the two.
   More than half of the seeds collapsed: D.
3. **Oscillation**: over the tail, the last quarter and at least three evaluations, the variance of
   an evaluation is half the mean square of successive differences (von Neumann 1941), which a
   steady rise does not enter; the binomial variance of an evaluation is taken off. What is left, as
   a mean over seeds, stands out by ``oscillation_noise`` standard errors of that estimate under
   binomial noise alone, and its root is above the limit: D.
4. **Divergence**: the standard deviation of the seeds' plateaus, with their binomial variance taken
   off, above the limit, where the baseline's seeds do not part as far: D.
5. The difference of plateaus to the baseline has one-sided limits of 95 %, Student's t: over the
   differences at equal seeds where both have the same seeds, else Welch's. Lower limit above
   −margin: not below, A where only tasks differ, B where environments do. Else, upper limit below
   0: C. Else the two **cannot be told apart**, and there is no letter.
6. A task-level setting that ends stable and below has no letter either: the theory has none
   (theorem 1), and the reasons to look for are instructions that do not cover the tasks, or a bias
   of the local optimiser.

The function gets curves, a baseline and what silos differ in. It gets no prediction.

Covered: success rates over rounds, any number of seeds from two. Not covered: curves of returns;
the correlation of evaluations on the same tasks, which makes binomial noise smaller than it is
taken to be, so that 2 to 4 say D too seldom rather than too often.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev, variance
from typing import Final, Literal

__all__ = ["RULE", "Assigned", "Curve", "Judged", "Locus", "Pattern", "Rule", "assign"]

Locus = Literal["tasks", "environments"]
"""What silos differ in."""
Pattern = Literal["A", "B", "C", "D"]
_LEAST_SEEDS: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Every number of the rule."""

    tail: float = 0.25
    """The part of a run's evaluations that is its plateau."""
    least_tail: int = 3
    """Evaluations from which oscillation can be told."""
    margin: float = 0.05
    """How far below the baseline is still not below it."""
    confidence: float = 0.95
    """Of each one-sided limit."""
    collapse: float = 0.5
    """The part of the rise that has to be kept."""
    noise: float = 2.0
    """Standard errors by which a fall has to stand out."""
    oscillation_noise: float = 3.0
    """Standard errors by which the tail's variance has to stand out; its estimate is skewed."""
    oscillation: float = 0.05
    """Standard deviation of an evaluation, beyond binomial noise."""
    divergence: float = 0.1
    """Standard deviation of the seeds' plateaus, beyond binomial noise."""


RULE: Final = Rule()


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One evaluation.

    Raises:
        ValueError: That is no evaluation.
    """

    round: int
    """After which; 0 before the first."""
    successes: int
    """Held-out tasks solved."""
    tasks: int
    """Held-out tasks played."""

    def __post_init__(self) -> None:
        if self.round < 0 or self.tasks < 1 or not 0 <= self.successes <= self.tasks:
            raise ValueError(f"round {self.round}: {self.successes} of {self.tasks} is no rate")

    @property
    def rate(self) -> float:
        """Success."""
        return self.successes / self.tasks

    @property
    def noise(self) -> float:
        """Binomial variance of the rate, unbiased."""
        return self.rate * (1 - self.rate) / max(1, self.tasks - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One seed.

    Raises:
        ValueError: It has no evaluation, or rounds do not rise.
    """

    seed: int
    """Of the run."""
    points: tuple[Judged, ...]
    """By round, ascending."""

    def __post_init__(self) -> None:
        rounds = [point.round for point in self.points]
        if not rounds or rounds != sorted(set(rounds)):
            raise ValueError("a curve has evaluations, one for each round, in order")

    def tail(self, rule: Rule = RULE) -> tuple[Judged, ...]:
        """The evaluations of the plateau."""
        return self.points[-max(1, math.ceil(rule.tail * len(self.points))) :]

    def plateau(self, rule: Rule = RULE) -> float:
        """The mean over the tail."""
        return mean(point.rate for point in self.tail(rule))

    def plateau_noise(self, rule: Rule = RULE) -> float:
        """Binomial variance of the plateau."""
        tail = self.tail(rule)
        return sum(point.noise for point in tail) / len(tail) ** 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Assigned:
    """What the rule says of one setting."""

    pattern: Pattern | None
    """None where it cannot be told."""
    why: str
    """In a sentence."""
    plateau: float
    """Mean over seeds."""
    baseline: float
    """The baseline's, the mean over its seeds."""
    difference: float
    """Plateau minus baseline."""
    low: float
    """One-sided lower limit; −inf with too few seeds."""
    high: float
    """One-sided upper limit; inf with too few seeds."""
    collapsed: tuple[int, ...]
    """Seeds that did."""
    oscillation: float | None
    """Beyond noise; None where a tail is too short to tell."""
    divergence: float | None
    """Beyond noise; None below two seeds."""


def assign(
    curves: Sequence[Curve],
    baseline: Mapping[int, float],
    *,
    locus: Locus,
    rule: Rule = RULE,
) -> Assigned:
    """Apply the rule to a setting's curves and the plateaus of its baseline by seed.

    Raises:
        ValueError: There is no curve or no baseline, a seed appears twice, or a baseline is no
            rate.
    """
    _require(curves, baseline)
    plateaus = {curve.seed: curve.plateau(rule) for curve in curves}
    difference, low, high = _difference(plateaus, baseline, rule)
    collapsed = tuple(curve.seed for curve in curves if _collapsed(curve, rule))
    oscillation, divergence = _oscillation(curves, rule), _divergence(curves, rule)
    pattern: Pattern | None = "D"
    why = _unstable(
        seeds=len(curves),
        collapsed=len(collapsed),
        oscillation=oscillation,
        divergence=divergence,
        parted=_deviation(baseline.values()),
        rule=rule,
    )
    if not why:
        pattern, why = _compared(low=low, high=high, locus=locus, seeds=len(curves), rule=rule)
    return Assigned(
        pattern=pattern,
        why=why,
        collapsed=collapsed,
        oscillation=oscillation,
        divergence=divergence,
        plateau=mean(plateaus.values()),
        baseline=mean(baseline.values()),
        difference=difference,
        low=low,
        high=high,
    )


def _unstable(
    *,
    seeds: int,
    collapsed: int,
    oscillation: float | None,
    divergence: float | None,
    parted: float,
    rule: Rule,
) -> str:
    """Why a setting is D; empty if it is not."""
    if 2 * collapsed > seeds:
        return f"collapse: {collapsed} of {seeds} seeds lost half of their rise, or more"
    if oscillation is not None and oscillation > rule.oscillation:
        return (
            f"oscillation: evaluations of the tail differ by {100 * oscillation:.1f} points beyond "
            f"binomial noise, the limit is {100 * rule.oscillation:g}"
        )
    if divergence is not None and divergence > max(rule.divergence, parted):
        return (
            f"seeds part: their plateaus differ by {100 * divergence:.1f} points beyond binomial "
            f"noise, the limit is {100 * rule.divergence:g}"
        )
    return ""


def _compared(
    *, low: float, high: float, locus: Locus, seeds: int, rule: Rule
) -> tuple[Pattern | None, str]:
    """The letter of a stable setting, by the limits of its difference to the baseline."""
    points = f"{100 * rule.margin:g} points"
    same: Pattern = "A" if locus == "tasks" else "B"
    if low > -rule.margin:
        return same, f"not below the baseline by {points}"
    if high >= 0:
        other = "C" if locus == "environments" else "what has no letter"
        return None, (
            f"{same} and {other} cannot be told apart with {seeds} seeds and a margin of {points}"
        )
    if locus == "environments":
        return "C", "stable, and below the baseline"
    return None, (
        "only tasks differ, and the plateau is stable and below: no pattern of the theory. Look "
        "whether instructions cover the tasks, and for a bias of the local optimiser"
    )


def _require(curves: Sequence[Curve], baseline: Mapping[int, float]) -> None:
    seeds = [curve.seed for curve in curves]
    if not seeds or not baseline:
        raise ValueError("a pattern is assigned to at least one curve, beside a baseline")
    if len(set(seeds)) != len(seeds):
        raise ValueError("a seed has one curve")
    if not all(0 <= rate <= 1 for rate in baseline.values()):
        raise ValueError("a baseline is a success rate")


def _collapsed(curve: Curve, rule: Rule) -> bool:
    start, plateau = curve.points[0], curve.plateau(rule)
    peak = max(curve.points, key=lambda point: point.rate)
    kept = start.rate + rule.collapse * (peak.rate - start.rate)
    return any(
        plateau < limit and above.rate - plateau > _standing_out(curve, above, rule)
        for limit, above in ((kept, peak), (start.rate, start))
    )


def _standing_out(curve: Curve, above: Judged, rule: Rule) -> float:
    """What a fall from this evaluation to the plateau has to exceed."""
    return rule.margin + rule.noise * math.sqrt(above.noise + curve.plateau_noise(rule))


def _oscillation(curves: Sequence[Curve], rule: Rule) -> float | None:
    estimates, noises, errors = [], [], []
    for curve in curves:
        tail = curve.points[-max(rule.least_tail, len(curve.tail(rule))) :]
        if len(tail) < rule.least_tail:
            return None
        steps = [b.rate - a.rate for a, b in pairwise(tail)]
        estimates.append(mean(step * step for step in steps) / 2)
        noises.append(mean(point.noise for point in tail))
        # Variance of the estimate, in parts of the squared variance (von Neumann 1941).
        errors.append((3 * len(tail) - 4) / (len(tail) - 1) ** 2)
    beyond, noise = mean(estimates) - mean(noises), mean(noises)
    if beyond <= rule.oscillation_noise * noise * math.sqrt(mean(errors) / len(curves)):
        return 0.0
    return math.sqrt(beyond)


def _divergence(curves: Sequence[Curve], rule: Rule) -> float | None:
    if len(curves) < _LEAST_SEEDS:
        return None
    spread = variance(curve.plateau(rule) for curve in curves)
    return math.sqrt(max(0.0, spread - mean(curve.plateau_noise(rule) for curve in curves)))


def _deviation(rates: Collection[float]) -> float:
    return stdev(rates) if len(rates) >= _LEAST_SEEDS else 0.0


def _difference(
    plateaus: Mapping[int, float], baseline: Mapping[int, float], rule: Rule
) -> tuple[float, float, float]:
    """The difference of means with its one-sided limits."""
    if set(plateaus) == set(baseline):
        pairs = [plateaus[seed] - baseline[seed] for seed in plateaus]
        found, degrees = mean(pairs), len(pairs) - 1.0
        error = math.sqrt(variance(pairs) / len(pairs)) if degrees else math.inf
    else:
        found = mean(plateaus.values()) - mean(baseline.values())
        error, degrees = _welch(list(plateaus.values()), list(baseline.values()))
    if not math.isfinite(error):
        return found, -math.inf, math.inf
    half = _quantile(degrees, rule.confidence) * error
    return found, found - half, found + half


def _welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Standard error of a difference of means, and its degrees of freedom (Welch 1947)."""
    if min(len(one), len(other)) < _LEAST_SEEDS:
        return math.inf, 1.0
    parts = [(variance(rates) / len(rates), len(rates) - 1) for rates in (one, other)]
    whole = sum(part for part, _ in parts)
    if whole == 0:
        return 0.0, float(sum(degrees for _, degrees in parts))
    return math.sqrt(whole), whole**2 / sum(part**2 / degrees for part, degrees in parts)


def _quantile(degrees: float, confidence: float) -> float:
    """Of Student's t."""
    # scipy comes with the lab: a silo never compares seeds.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, confidence))
