"""What a silo's operator compares: this silo alone, and one task before and after.

Alone is the baseline that every federation has to beat. The same method, settings, tasks and number
of rounds as the plan's, the delta applied to the silo's own adapter without clip, noise or average.
Nothing is sent anywhere and no budget is spent. Where the plan's aggregation is 'fedsa' the final
adapter has B = 0, as the published one of such a run has: on its own it is the base model's
function. The silo's factors B are in the method's store under ``evolve/personal``, and the
evaluation is of A and B together.

A replay is two greedy episodes of one held-out task: of those that only the second adapter solves,
the first, turn by turn. Its text never leaves the silo: it is printed where the operator stands.

Covered: the honest comparison "alone against together" from the silo's own files; every environment
of the silo, with the silo's own engine. Not covered: resuming a rehearsal that was interrupted,
which starts over; explaining why an action was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evolution.envs.tasks import Split
from evolution.methods.evolver import Work
from evolution.methods.registry import make_evolver
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task, Trajectory
from federation.adapter.encoding import adapter_sha256, decode_adapter, encode_adapter
from federation.adapter.layout import Layout
from federation.plan.plan import Plan
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError
from silo_agent.local_work.judge import judge_and_keep
from silo_agent.local_work.plan_terms import evaluations_of, evolver_setup, settings_of

__all__ = ["RUN_ID", "Replay", "evolve_alone", "replay"]

RUN_ID = "alone"
"""What the rehearsal is called in its evaluation file."""
_MAX_ADAPTER_BYTES = 1 << 30
_CANDIDATES = 128


def evolve_alone(
    *,
    config: SiloConfig,
    plan: Plan,
    adapter: bytes,
    out_dir: Path,
    progress: Callable[[int, float], None],
) -> bytes:
    """Evolve by oneself for as many rounds as the plan has, from the published initial adapter.

    ``progress`` is called after each round with its number and its exploration success. The final
    adapter is returned and written to ``out_dir``, and beside it its evaluation, and that of the
    silo's own adapter where it keeps one.

    Raises:
        PlanError: The adapter is of another rank than the plan's.
        EvolverSetupError: The method cannot run with this configuration.
    """
    tensors = dict(decode_adapter(adapter, max_bytes=_MAX_ADAPTER_BYTES))
    layout = Layout.from_tensors(tensors)
    plan.require_rank(layout)
    aggregator = plan.aggregator(layout)
    out_dir.mkdir(parents=True, exist_ok=True)
    store = LocalStore(out_dir)
    evolver = make_evolver(evolver_setup(config, plan, state_dir=out_dir / "evolve", privacy=None))
    content = adapter
    for number in range(1, plan.rounds.count + 1):
        trainable = frozenset(spec.name for spec in aggregator.shared_layout(number).specs)
        evolution = evolver.evolve(
            Work(
                round=number,
                adapter=tensors,
                adapter_sha256=adapter_sha256(content).hex(),
                trainable=trainable,
                settings=settings_of(plan),
                seed=config.seed,
            )
        )
        for name, delta in evolution.delta.items():
            tensors[name] = np.asarray(tensors[name] + delta, dtype=np.float32)
        content = encode_adapter(tensors)
        episodes = sum(evolution.episodes.values())
        progress(number, sum(evolution.successes.values()) / episodes if episodes else 0.0)
    (out_dir / "adapter.safetensors").write_bytes(content)
    asked = evaluations_of(
        config,
        plan,
        round_number=plan.rounds.count,
        adapter=tensors,
        adapter_sha256=adapter_sha256(content).hex(),
    )
    judge_and_keep(evolver, asked, store=store, run_id=RUN_ID)
    evolver.close()
    return content


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
        PlanError: An adapter is of another rank than the plan's.
        ConfigError: this silo has no base model, or no environment of the plan.
    """
    for tensors in (before, after):
        plan.require_rank(Layout.from_tensors(tensors))
    if config.base_model is None or not plan.evolve.environments:
        raise ConfigError("a replay needs base_model in silo.toml and environments in the plan")
    catalogue = config.catalogue().unperturbed()
    name = next((n for n in plan.evolve.environments if n in catalogue), None)
    if name is None:
        raise ConfigError("this silo has no environment of the plan")
    environment = catalogue.make(name)
    ids = environment.task_ids(Split.HELD_OUT)[:_CANDIDATES]
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
                instruction=environment.told,
                before=first,
                after=second,
            )
    return None
