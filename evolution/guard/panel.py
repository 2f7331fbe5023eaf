"""Playing a panel: with the method's own engine, on the same tasks and draws for everybody.

Every adapter plays each task once, with the draws of the base's first try. So an adapter that
changed nothing has the base's figures to the digit, and what differs between tasks is in neither
difference. What a plan says of answers, tasks or temperatures plays no part here: whoever writes
plans has no say in how an adapter is judged.

Covered: figures of one adapter; what they depend on. Not covered: tries that an environment drops,
which fail the judging: an adapter that makes an environment fail is not served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from evolution.errors import PanelError
from evolution.guard.options import GuardSection, Panel
from evolution.guard.verdict import Figures
from evolution.methods.evolver import Evaluation, Evolver

__all__ = ["BASE", "Plays", "played"]

BASE: Final = "base"
"""The identity of no adapter."""
_SEEDS: Final = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Plays:
    """How this site plays its panels."""

    section: GuardSection
    """What it asks for."""
    seed: int
    """The site's own; decides every draw."""
    base_sha256: str
    """Hex, of the base model."""
    episodes_at_once: int = 64
    """How many the engine plays together."""

    @property
    def settings(self) -> str:
        """A digest of all that figures depend on beside the adapter."""
        section = self.section
        said = {
            "panels": [panel.model_dump() for panel in section.panels],
            "base_tries": section.base_tries,
            "temperature": section.temperature,
            "max_new_tokens": section.max_new_tokens,
            "seed": self.seed,
            "base_model": self.base_sha256,
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def played(
    evolver: Evolver,
    panel: Panel,
    *,
    plays: Plays,
    round_number: int,
    adapter: Mapping[str, np.ndarray],
    identity: str,
    tries: int = 1,
) -> Figures:
    """Play a panel so many times; without tensors it is the base that plays.

    Raises:
        EvolveError: The method cannot play it, plays nothing of it, or plays something else.
    """
    rows = [
        row
        for number in range(tries)
        for row in evolver.evaluate(
            Evaluation(
                round=round_number,
                adapter=adapter,
                adapter_sha256=identity,
                episodes=panel.tasks,
                first_task=panel.first_task,
                temperatures=(plays.section.temperature,),
                max_new_tokens=plays.section.max_new_tokens,
                rollout_batch=plays.episodes_at_once,
                seed=(plays.seed + number) % _SEEDS,
                environments=(panel.environment,),
            )
        )
    ]
    if any(row.environment != panel.environment for row in rows):
        raise PanelError(f"this run's method does not play {panel.environment}")
    episodes = sum(row.episodes for row in rows)
    if not episodes:
        raise PanelError(f"no task of {panel.environment} could be played")
    figures = Figures(
        tries=episodes,
        successes=sum(row.successes for row in rows),
        violations=sum(row.violations for row in rows),
        # Of several tries at a task there is none to compare another's with.
        solved=tuple(sorted(one for row in rows for one in row.solved)) if tries == 1 else (),
    )
    if tries == 1 and len(set(figures.solved)) != figures.successes:
        raise PanelError(
            f"this run's method does not say which tasks of {panel.environment} were solved"
        )
    return figures
