"""Two episodes of one held-out task, before and after, for the silo operator's own eyes.

Both adapters play the same tasks greedily; the first task that only the second one solves is shown
turn by turn. The text never leaves the silo: this prints where the operator stands.

Covered: every environment of the silo, with the silo's own engine. Not covered: explaining why an
action was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evolution.envs.tasks import Split
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task, Trajectory
from federation.plan.plan import Plan
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError

__all__ = ["Replay", "replay"]

CANDIDATES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """One task, played twice."""

    environment: str
    task_id: int
    label: str
    instruction: str
    before: Trajectory
    after: Trajectory


def replay(
    *,
    config: SiloConfig,
    plan: Plan,
    before: Mapping[str, np.ndarray],
    after: Mapping[str, np.ndarray],
) -> Replay | None:
    """Find a task that only ``after`` solves; None if there is none among the candidates.

    Raises:
        ConfigError: this silo has no base model, or no environment of the plan.
    """
    if config.base_model is None or not plan.evolve.environments:
        raise ConfigError("a replay needs base_model in silo.toml and environments in the plan")
    catalogue = config.catalogue()
    name = next((n for n in plan.evolve.environments if n in catalogue), None)
    if name is None:
        raise ConfigError("this silo has no environment of the plan")
    environment = catalogue.make(name)
    ids = environment.task_ids(Split.HELD_OUT)[:CANDIDATES]
    tasks = [Task(environment=name, task_id=task_id) for task_id in ids]
    engine = make_engine(
        config.base_model,
        alpha=plan.model.lora_alpha,
        dtype=plan.model.dtype,
        threads=config.threads,
        spec=config.rollout,
    )
    played: list[tuple[Trajectory, ...]] = []
    for version, tensors in (("before", before), ("after", after)):
        engine.load_adapter(version, tensors)
        batch = run_episodes(
            engine,
            tasks,
            temperature=0.0,
            seed=0,
            max_new_tokens=plan.evolve.max_new_tokens,
            make_environment=catalogue.make,
        )
        played.append(batch.trajectories)
    engine.close()
    after_by_task = {trajectory.task: trajectory for trajectory in played[1]}
    for first in played[0]:
        second = after_by_task.get(first.task)
        if second is not None and second.success and not first.success:
            environment.reset(first.task.task_id)
            return Replay(
                environment=name,
                task_id=first.task.task_id,
                label=environment.task_label(first.task.task_id),
                instruction=environment.instruction,
                before=first,
                after=second,
            )
    return None
