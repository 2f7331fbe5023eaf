"""What a demo showed, in one sentence for each temperature, and whether it did what it had to.

More or less is said only where two 95 % intervals share no point. That two intervals overlap does
not show that the rates are equal, so the words are "not told apart from".

Covered: together against the base model and against a silo alone, pooled over everything judged;
control runs. Not covered: several runs (``lab/report``).
"""

from __future__ import annotations

from enum import StrEnum

from lab.demo.choices import Control
from lab.demo.outcome import Outcome
from lab.demo.scenario import DemoSettings
from lab.wilson import Interval

__all__ = ["GREEDY_FELL", "Level", "answer", "level", "sentence", "told"]

GREEDY_FELL = (
    "Greedy, together lies below the base: learning from its own samples makes a model this small "
    "forget what it chose first (docs/experiments/record-objectives.md)."
)
_OTHERS = {"base": "the base model", "alone": "a silo alone"}


class Level(StrEnum):
    """How well it went."""

    WELL = "well"
    WATCH = "watch"
    """Nothing was shown."""
    ALARM = "alarm"


def answer(outcome: Outcome, settings: DemoSettings) -> tuple[str, bool]:
    """The one question a run has to answer, and the answer."""
    if settings.control == Control.NONE:
        return "together lies above the base, intervals apart", outcome.learned(1.0)
    if settings.recipe.at_record_level:
        # Noise moves the adapter whatever was learned, and that can only do harm.
        return "the control gained nothing over the base's interval", outcome.unimproved(1.0)
    return "the control stays inside the base's interval", outcome.unmoved(1.0)


def level(outcome: Outcome, settings: DemoSettings) -> Level:
    """How well a run went, by its question; a control fails or does not."""
    if "together" not in outcome.headline(1.0):
        return Level.WATCH
    if answer(outcome, settings)[1]:
        return Level.WELL
    failed = settings.control != Control.NONE or outcome.fell(1.0)
    return Level.ALARM if failed else Level.WATCH


def sentence(outcome: Outcome, temperature: float) -> str:
    """What was seen at a temperature; empty where nothing was judged."""
    found = outcome.headline(temperature)
    together = found.get("together")
    if together is None:
        return ""
    how = f"at temperature {temperature:g}" if temperature else "greedily"
    said = [
        f"{_against(together, found[who])} {name}, {told(found[who])}"
        for who, name in _OTHERS.items()
        if who in found
    ]
    compared = f": {', and '.join(said)}" if said else ""
    return f"Together solves {told(together)} of the held-out tasks {how}{compared}."


def told(interval: Interval) -> str:
    """A rate with its interval, in percent."""
    return f"{100 * interval.rate:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _against(together: Interval, other: Interval) -> str:
    if together.overlaps(other):
        return "not told apart from"
    return "more than" if together.rate > other.rate else "less than"
