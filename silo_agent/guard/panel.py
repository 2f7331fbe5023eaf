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
from typing import Final

import numpy as np

from evolution.errors import EnvironmentFailureError
from evolution.methods.evolver import Evaluation, Evolver
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError, GuardError
from silo_agent.guard.verdict import Figures
from silo_agent.guard_options import GuardSection, Panel

__all__ = ["BASE", "panel_families", "played", "settings_of"]

BASE: Final = "base"
"""The identity of no adapter."""
_SEEDS: Final = 2**63


def panel_families(config: SiloConfig) -> tuple[str, ...]:
    """The public families of the guard's panels, which figures on the probes go by.

    Raises:
        ConfigError: An installed package's environment cannot be used.
    """
    panels = () if config.guard is None else config.guard.panels
    try:
        return tuple(config.catalogue().family(panel.environment) for panel in panels)
    except EnvironmentFailureError as error:
        raise ConfigError(str(error)) from error


def settings_of(config: SiloConfig, section: GuardSection, base_sha256: bytes) -> str:
    """A digest of all that figures depend on beside the adapter."""
    said = {
        "panels": [panel.model_dump() for panel in section.panels],
        "base_tries": section.base_tries,
        "temperature": section.temperature,
        "max_new_tokens": section.max_new_tokens,
        "seed": config.seed,
        "base_model": base_sha256.hex(),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def played(
    evolver: Evolver,
    panel: Panel,
    *,
    config: SiloConfig,
    section: GuardSection,
    round_number: int,
    adapter: Mapping[str, np.ndarray],
    identity: str,
    tries: int = 1,
) -> Figures:
    """Play a panel so many times; without tensors it is the base that plays.

    Raises:
        EvolveError: The method cannot play it.
        GuardError: It played nothing, or something else.
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
                temperatures=(section.temperature,),
                max_new_tokens=section.max_new_tokens,
                rollout_batch=config.rollout.episodes_at_once,
                seed=(config.seed + number) % _SEEDS,
                environments=(panel.environment,),
            )
        )
    ]
    if any(row.environment != panel.environment for row in rows):
        raise GuardError(f"this run's method does not play {panel.environment}")
    episodes = sum(row.episodes for row in rows)
    if not episodes:
        raise GuardError(f"no task of {panel.environment} could be played")
    figures = Figures(
        tries=episodes,
        successes=sum(row.successes for row in rows),
        violations=sum(row.violations for row in rows),
        # Of several tries at a task there is none to compare another's with.
        solved=tuple(sorted(one for row in rows for one in row.solved)) if tries == 1 else (),
    )
    if tries == 1 and len(set(figures.solved)) != figures.successes:
        raise GuardError(
            f"this run's method does not say which tasks of {panel.environment} were solved"
        )
    return figures
