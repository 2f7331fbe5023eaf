"""A plan's local settings in the terms of a method.

Invariants: every silo gets the same settings from the same plan; what differs between silos comes
from the silo's own configuration, and never from data.

Covered: set-up, settings, work and evaluation. Not covered: doing it
(``silo_agent/local_work/work.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dp.config import RECORD_MODES, Mode, PrivacySpec
from dp.ledger.receipt import TrainingReceipt
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import (
    Evaluation,
    EvolverSetup,
    EvolveSettings,
    LocalPrivacy,
    StepWork,
    Work,
)
from evolution.methods.personal.compared import TRAINED_APART
from evolution.methods.population import EXPERT_FILE
from federation.adapter.layout import Layout
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from secagg.descriptor import AggregationId
from silo_agent.config import SiloConfig

__all__ = [
    "evaluation_of",
    "evaluations_of",
    "evolver_setup",
    "settings_of",
    "shared_layout_of",
    "step_work_of",
    "work_of",
]


def evolver_setup(
    config: SiloConfig, plan: Plan, *, state_dir: Path, privacy: PrivacySpec | None
) -> EvolverSetup:
    """What this silo gives the plan's method, with ``state_dir`` for the method's stores.

    ``privacy`` is the plan's; None for work whose result never leaves the silo.

    Raises:
        EvolverSetupError: An option of the silo's cannot go with the plan's aggregation.
    """
    catalogue = config.catalogue()
    return EvolverSetup(
        assignments=tuple(
            assignment
            for assignment in config.assignments()
            if assignment.environment in plan.evolve.environments
        ),
        # A plan may name environments that only other silos have.
        judged=tuple(name for name in plan.evolve.environments if name in catalogue),
        base_dir=config.base_model,
        state_dir=state_dir,
        expert_file=config.data_dir / EXPERT_FILE,
        rank=plan.model.lora_rank,
        alpha=plan.model.lora_alpha,
        dtype=plan.model.dtype,
        target=plan.model.target,
        threads=config.threads,
        catalogue=catalogue,
        engine=config.rollout,
        trainer=config.training,
        privacy=privacy,
        recipe=plan.recipe,
        local_parts=plan.evolve.local_parts,
        options=_options_of(config, plan),
    )


def _options_of(config: SiloConfig, plan: Plan) -> Mapping[str, str | int | float]:
    """The silo's options of the method, with what the plan's aggregation leaves no choice about."""
    options = config.options(plan.recipe)
    if _keeps_b(plan):
        return {**options, "personal": "fedsa"}
    if plan.recipe.parts and options.get("personal") == "fedsa":
        raise EvolverSetupError(
            "personal 'fedsa' keeps the factors B in the silo, and this plan's aggregation "
            f"{plan.aggregation.method!r} shares them: remove the option, or use 'residual', "
            "'ditto' or 'finetune'; a plan with aggregation 'fedsa' sets it by itself"
        )
    return options


def _keeps_b(plan: Plan) -> bool:
    """Whether every silo keeps factors B of its own, without which A alone learns nothing."""
    return bool(plan.recipe.parts) and plan.aggregation.method == "fedsa"


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
        rollout_batch=config.rollout.episodes_at_once,
        shards=max((a.shard.count for a in config.assignments() if a.shard), default=1),
        seed=config.seed,
        personal=_keeps_b(plan),
    )


def evaluations_of(
    config: SiloConfig,
    plan: Plan,
    *,
    round_number: int,
    adapter: Mapping[str, np.ndarray],
    adapter_sha256: str,
) -> tuple[Evaluation, ...]:
    """The plan's evaluation, and the same for the personal adapter where one is trained apart.

    Before the first round the personal adapter is the global one, so it is not judged twice.

    Raises:
        EvolverSetupError: As ``evolver_setup``.
    """
    asked = evaluation_of(
        config, plan, round_number=round_number, adapter=adapter, adapter_sha256=adapter_sha256
    )
    apart = bool(plan.recipe.parts) and (_options_of(config, plan).get("personal") in TRAINED_APART)
    return (asked, replace(asked, personal=True)) if apart and round_number > 0 else (asked,)


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
        learning_rate_schedule=evolve.learning_rate_schedule,
        max_sequence_tokens=evolve.max_sequence_tokens,
        try_s=plan.try_s,
        explore=evolve.explore,
        packing=evolve.packing,
        local_epochs=evolve.local_epochs,
        normaliser=plan.recipe.normaliser,
        nominal_tokens=evolve.nominal_tokens,
        learn=evolve.learn,
        use_expert=evolve.use_expert,
        best_per_task=evolve.best_per_task,
        proximal_mu=evolve.proximal_mu,
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

    ``adapter`` has all factors of the global adapter, and ``seed`` is this silo's own. ``reserve``
    charges ``record_local``; other modes do not see it.
    """
    spec, settings = plan.spec, settings_of(plan)
    if task.local_epochs:
        settings = replace(settings, local_epochs=task.local_epochs)
    protects = LocalPrivacy(spec=spec, reserve=reserve if spec.mode is Mode.RECORD_LOCAL else None)
    return Work(
        round=task.round,
        adapter=adapter,
        adapter_sha256=task.adapter_sha256.hex(),
        trainable=frozenset(tensor.name for tensor in layout.specs),
        settings=settings,
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

    ``layout`` is of the shared vector, in its order; ``adapter`` has all factors at that step, and
    the digest is their identity. ``seed`` is this silo's own.
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
        spec=plan.spec,
    )
