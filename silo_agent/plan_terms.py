"""A plan's local settings in the terms of a method.

Invariants: every silo gets the same settings from the same plan; what differs between silos comes
from the silo's own configuration, and never from data.

Covered: set-up, settings, work and evaluation. Not covered: doing it (``silo_agent/work.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dp.config import RECORD_MODES, Mode, PrivacySpec
from dp.receipt import TrainingReceipt
from federation.layout import Layout
from federation.plan import Plan
from federation.task import RoundTask
from secagg.descriptor import AggregationId
from silo_agent.config import SiloConfig
from silo_agent.evolve.evolver import (
    Evaluation,
    EvolverSetup,
    EvolveSettings,
    LocalPrivacy,
    StepWork,
    Work,
)

__all__ = [
    "evaluation_of",
    "evolver_setup",
    "settings_of",
    "shared_layout_of",
    "step_work_of",
    "work_of",
]


def evolver_setup(
    config: SiloConfig, plan: Plan, *, state_dir: Path, privacy: PrivacySpec | None
) -> EvolverSetup:
    """What this silo gives the plan's method.

    Args:
        config: This silo.
        plan: Names the method.
        state_dir: For the method's stores.
        privacy: The plan's; None for work whose result never leaves the silo.
    """
    return EvolverSetup(
        assignments=tuple(
            assignment
            for assignment in config.assignments()
            if assignment.environment in plan.evolve.environments
        ),
        judged=plan.evolve.environments,
        base_dir=config.base_model,
        state_dir=state_dir,
        rank=plan.model.lora_rank,
        alpha=plan.model.lora_alpha,
        dtype=plan.model.dtype,
        threads=config.threads,
        privacy=privacy,
        options=config.options(plan.evolve.method),
    )


def shared_layout_of(plan: Plan, tensors: Mapping[str, np.ndarray], round_number: int) -> Layout:
    """What every silo trains and uploads in a round."""
    return plan.aggregator(Layout.from_tensors(tensors)).shared_layout(round_number)


def evaluation_of(
    config: SiloConfig,
    plan: Plan,
    *,
    round_number: int,
    adapter: Mapping[str, np.ndarray],
    adapter_sha256: str,
) -> Evaluation:
    """The plan's held-out evaluation of one adapter, on this silo's slice of the tasks."""
    return Evaluation(
        round=round_number,
        adapter=adapter,
        adapter_sha256=adapter_sha256,
        episodes=plan.evaluate.held_out,
        first_task=config.held_out_offset,
        temperatures=plan.evaluate.temperatures,
        max_new_tokens=plan.evolve.max_new_tokens,
        shards=max((a.shard.count for a in config.assignments() if a.shard), default=1),
        seed=config.seed,
    )


def settings_of(plan: Plan) -> EvolveSettings:
    """The plan's local settings in the method's terms."""
    evolve = plan.evolve
    return EvolveSettings(
        episodes=evolve.episodes_per_round,
        tries_per_task=evolve.tries_per_task,
        temperature=evolve.temperature,
        max_new_tokens=evolve.max_new_tokens,
        window=evolve.window,
        epochs=evolve.epochs,
        batch_size=evolve.batch_size,
        learning_rate=evolve.learning_rate,
        max_sequence_tokens=evolve.max_sequence_tokens,
        explore=evolve.explore,
        packing=evolve.packing,
        task_sampling=evolve.task_sampling,
        learn=evolve.learn,
        seed=evolve.seed,
    )


def work_of(
    plan: Plan,
    layout: Layout,
    *,
    task: RoundTask,
    adapter: Mapping[str, np.ndarray],
    seed: int,
    reserve: Callable[[], TrainingReceipt],
) -> Work:
    """One round as the method is asked for it.

    Args:
        plan: The run's.
        layout: Of the shared vector.
        task: The round.
        adapter: All factors of the global adapter.
        seed: This silo's own.
        reserve: Charges ``record_local``; other modes do not see it.
    """
    spec = plan.privacy_spec()
    protects = LocalPrivacy(spec=spec, reserve=reserve if spec.mode is Mode.RECORD_LOCAL else None)
    return Work(
        round=task.round,
        adapter=adapter,
        adapter_sha256=task.adapter_sha256.hex(),
        trainable=frozenset(tensor.name for tensor in layout.specs),
        settings=settings_of(plan),
        seed=seed,
        privacy=protects if spec.mode in RECORD_MODES else None,
    )


def step_work_of(
    plan: Plan,
    layout: Layout,
    *,
    identity: AggregationId,
    adapter: Mapping[str, np.ndarray],
    adapter_sha256: str,
    seed: int,
) -> StepWork:
    """One release of ``record_distributed`` as the method is asked for it.

    Args:
        plan: The run's.
        layout: Of the shared vector, in its order.
        identity: The release.
        adapter: All factors at that step.
        adapter_sha256: Their identity.
        seed: This silo's own.
    """
    names = tuple(tensor.name for tensor in layout.specs)
    return StepWork(
        round=identity.round,
        step=identity.step,
        adapter=adapter,
        adapter_sha256=adapter_sha256,
        names=names,
        trainable=frozenset(names),
        settings=settings_of(plan),
        seed=seed,
        spec=plan.privacy_spec(),
    )
