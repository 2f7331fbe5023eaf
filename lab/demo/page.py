"""The demo's report as one HTML page: what was shown, drawn and said, then how.

Invariants:

1. The page asks for nothing but itself: no script, no font, no image but a drawn one.
2. Every text is escaped by the template: those of trajectories come from a silo's own replay.
3. No colour says anything alone; nothing is wider than the screen, down to 360 pixels.

Covered: what an ``Outcome`` holds, also where parts of it are missing; light and dark. Not covered:
reports across several runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dp.config import ADJACENCY
from dp.noise.figures import NOT_REPORTED
from lab.demo.charts import (
    WHO,
    cells_of,
    charts,
    curves,
    explored_by_round,
    label,
    phase_means,
)
from lab.demo.choices import Control, Privacy
from lab.demo.outcome import Cell, Outcome
from lab.demo.privacy import largest_spent, meaning, rows_of_budgets, summary
from lab.demo.scenario import SILOS, DemoSettings
from lab.demo.stretch import span
from lab.demo.verdict import GREEDY_FELL, answer, level, sentence

__all__ = ["write_html"]

_TEMPLATE = "report.html.jinja"


def write_html(outcome: Outcome, settings: DemoSettings, path: Path) -> None:
    """One page with a verdict, charts, tables and a task before and after."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(_TEMPLATE).render(_content(outcome, settings))
    path.write_text(page, encoding="utf-8")


def _content(outcome: Outcome, settings: DemoSettings) -> dict[str, Any]:
    """What the template names."""
    phases = phase_means(outcome.rounds)
    longest = max(phases.values(), default=0.0) or 1.0
    return {
        "outcome": outcome,
        "settings": settings,
        "level": level(outcome, settings).value,
        "verdict": _unbroken(sentence(outcome, 1.0)) or "Nothing was judged.",
        "greedily": _unbroken(sentence(outcome, 0.0)),
        "control": _control(outcome, settings),
        "fell": GREEDY_FELL if outcome.fell(0.0) else "",
        "noise": "masks on, no noise" if settings.privacy == Privacy.NONE else "masks and noise on",
        "charts": charts(outcome),
        "curves": curves(outcome),
        "rounds": sorted({number for number, _, _ in explored_by_round(outcome)}),
        "not_reported": NOT_REPORTED,
        "spent": _number(largest_spent(outcome)),
        "cap": _number(outcome.epsilon_cap),
        "spent_share": _share(largest_spent(outcome), outcome.epsilon_cap),
        "unit": outcome.epsilon_unit or ("task" if settings.recipe.at_record_level else "silo"),
        "adjacency": ADJACENCY,
        "mode": settings.recipe.mode.value,
        "upload": f"{outcome.bytes_per_upload / 1024:,.0f} KiB",
        "took": span(sum(outcome.seconds.values())),
        "stages": ", ".join(f"{stage} {span(took)}" for stage, took in outcome.seconds.items()),
        "rows": [
            (
                label(cell),
                outcome.rates["base"][cell].episodes,
                [str(outcome.rates.get(who, {}).get(cell, "")).strip() for who in WHO],
            )
            for cell in cells_of(outcome)
        ],
        "who": list(WHO.values()),
        "alone": [
            (silo_id, [str(rates.get(cell, "")).strip() for cell in _pooled(outcome)])
            for silo_id in SILOS
            if (rates := outcome.rates.get(f"alone {silo_id}"))
        ],
        "pooled": [label(cell) for cell in _pooled(outcome)],
        "privacy": summary(outcome, settings),
        "meaning": meaning(settings.privacy),
        "budgets": rows_of_budgets(outcome),
        "releases": [_release(done) for done in outcome.rounds],
        "phases": [(phase, took, took / longest) for phase, took in phases.items()],
    }


def _release(done: Mapping[str, Any]) -> dict[str, str]:
    """One masked sum in words; steps count from 1 for people, and a round may have only one."""
    step = int(done.get("step", 0))
    return {
        "place": f"{done['round']}, step {step + 1}" if step else f"{done['round']}",
        "outcome": str(done["outcome"]),
        "survivors": ", ".join(done.get("survivors", ())),
        "bytes": f"{int(done.get('upload_bytes', 0)):,}",
        "adapter": str(done.get("adapter_sha256", ""))[:12],
    }


def _pooled(outcome: Outcome) -> list[Cell]:
    """Of all shards."""
    return [cell for cell in cells_of(outcome) if cell.shard < 0]


def _control(outcome: Outcome, settings: DemoSettings) -> str:
    """What a control run was for; empty where the run was none."""
    if settings.control == Control.NONE or not outcome.rates:
        return ""
    question, passed = answer(outcome, settings)
    return f"A control run ({settings.control}): {question}: {'yes' if passed else 'no'}."


def _unbroken(text: str) -> str:
    """No line ends inside ``46.3 % [42.9, 49.7]``'s brackets, nor before its percent."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\d,) (?=\d)", "\N{NO-BREAK SPACE}", text)


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unbounded"


def _share(spent: float, cap: float) -> float:
    """Of the cap, from 0 to 1; all of it where either is unbounded."""
    known = math.isfinite(spent) and math.isfinite(cap) and cap > 0
    return min(1.0, spent / cap) if known else 1.0
