"""How a figure that carries noise is shown: with its standard error, or as the reason why not.

A figure of a masked sum holds the noise that protects the silos, and its standard error is that of
this noise and of nothing else. Which tasks happened to be drawn is not in it: a ratio over n
episodes moves by up to 1/(2√n) besides, more where the tries of one task go together.

Invariants:

1. A figure below noise is nowhere a number, nowhere drawn, and nothing is chosen by it.
2. A ratio is shown inside 0 to 100 %. Clipping is for people: means, comparisons and JSON have the
   figure as it was summed, JSON with its standard error and ``below_noise``.
3. A figure that no sum tells is "not reported" and never zero.

A *ratio* (success, κ) has a scale of its own, so its error is held against that: above 1/8 the 95 %
interval, four standard errors, covers more than half of all that a ratio can be, and 30 % in one
round and 65 % in the next are the same news. The ratio's own size is not asked. 2 ± 5 % says that
nearly everything fails; a rule that hides what is smaller than its error would hide the rounds that
matter most. The bound also keeps first-order errors valid: both counts of a success ratio have the
same noise e, so its error is at least e/n, and up to 1/8 the number of episodes n lies eight
standard errors or more from zero.

A *magnitude* (ζ̂², squared norms) has no other scale than its size: it is below noise where its
error exceeds it (``Estimate.reportable``).

Covered: the rule, its words, means over environments, which of several rounds is the best.
Not covered: what the standard errors are (``federation.chain.sums``); a silo that lies about its
counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final

from dp.noise.estimate import Estimate

__all__ = [
    "BELOW_NOISE",
    "NOT_REPORTED",
    "WIDEST_RATIO_ERROR",
    "mean_success",
    "newest_of_the_best",
    "percent_parts",
    "ratio_below_noise",
    "readable_ratio",
    "success_words",
    "why_hidden",
]

BELOW_NOISE: Final = "below noise"
NOT_REPORTED: Final = "not reported"
WIDEST_RATIO_ERROR: Final = 1 / 8
_LEAST_SHOWN: Final = 0.1
"""Points: what is not zero is not shown as zero."""
_FALSE_CHOICES: Final = 0.05
"""How often at most noise alone tells any two of the rounds apart."""


def ratio_below_noise(ratio: Estimate) -> bool:
    """Whether the noise hides a ratio; one that is not reported is not hidden by noise."""
    if math.isnan(ratio.mean) and math.isnan(ratio.standard_error):
        return False
    # An error that is unknown vouches for nothing.
    return math.isnan(ratio.mean) or not ratio.standard_error <= WIDEST_RATIO_ERROR


def readable_ratio(ratio: Estimate) -> float:
    """The ratio for display, inside [0, 1]; NaN below noise and where none is reported."""
    if math.isnan(ratio.mean) or ratio_below_noise(ratio):
        return math.nan
    return min(1.0, max(0.0, ratio.mean))


def why_hidden(value: float, standard_error: float) -> str:
    """Why a figure has no value to show; empty if it has one.

    The value is NaN where there is none, the error where no sum tells the figure.
    """
    if not math.isnan(value):
        return ""
    return NOT_REPORTED if math.isnan(standard_error) else BELOW_NOISE


def success_words(success: Mapping[str, Estimate]) -> str:
    """Success over environments in a few words: ``54.3 ± 2.1 %``, or why there is no figure."""
    mean = mean_success(success)
    value = readable_ratio(mean)
    hidden = why_hidden(value, mean.standard_error)
    if hidden:
        return hidden
    text = "".join(percent_parts(mean))
    known = sum(not math.isnan(readable_ratio(ratio)) for ratio in success.values())
    return text if known == len(success) else f"{text} ({known} of {len(success)} environments)"


def percent_parts(ratio: Estimate) -> tuple[str, str, str]:
    """Value, standard error and unit of a readable ratio, as they follow each other."""
    value, error = 100 * readable_ratio(ratio), 100 * ratio.standard_error
    if 0 < value < 100:
        # Less than all is not rounded to all, and more than none not to none.
        value = min(max(value, _LEAST_SHOWN), 100 - _LEAST_SHOWN)
    # Without noise there is nothing to add to the figure.
    shown = f" ± {max(error, _LEAST_SHOWN):.1f}" if error else ""
    return f"{value:.1f}", shown, " %"


def mean_success(success: Mapping[str, Estimate]) -> Estimate:
    """The mean over the environments whose figures noise does not hide.

    The ratios' noises are independent. The mean is as summed, without clipping; NaN with an
    infinite error if noise hides all of them, NaN with a NaN error if none is reported.
    """
    known = [ratio for ratio in success.values() if not math.isnan(readable_ratio(ratio))]
    if not known:
        below = any(ratio_below_noise(ratio) for ratio in success.values())
        return Estimate(mean=math.nan, standard_error=math.inf if below else math.nan)
    return Estimate(
        mean=sum(ratio.mean for ratio in known) / len(known),
        standard_error=math.hypot(*(ratio.standard_error for ratio in known)) / len(known),
    )


def newest_of_the_best(figures: Sequence[Estimate]) -> int | None:
    """The place of the best of several rounds; None if noise tells no round from the highest one.

    The figures come oldest first, none of them hidden. A figure is told from the highest one if it
    lies below it by more than z·√(e₁² + e₂²). Of R rounds each of the R(R − 1)/2 pairs may look
    apart, and the highest is chosen among all of them, so z is the normal quantile that the
    Bonferroni inequality asks for (Dunn, "Multiple comparisons among means", JASA 56, 1961): 1.96
    for two rounds, 2.39 for three, 3.86 for thirty. Of those that are not told from the highest the
    newest is taken: it has learned from the most rounds.
    """
    count = len(figures)
    if count < 2:
        return None
    quantile = NormalDist().inv_cdf(1 - _FALSE_CHOICES / (count * (count - 1)))
    highest = max(figures, key=lambda figure: figure.mean)
    same = [
        place
        for place, figure in enumerate(figures)
        if highest.mean - figure.mean
        <= quantile * math.hypot(highest.standard_error, figure.standard_error)
    ]
    return None if len(same) == count else same[-1]
