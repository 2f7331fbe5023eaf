"""What a round imitates, and how: training sets, and plain training as a plan's settings say.

A training set is what the memory selects: successes; or, for the ablation of Fed-SE's success
filter (arXiv 2512.08870, §5.3), everything that was played, solved or not. What has no filter
follows the window of the plan, and every try is in it: the shortest of a task's tries would be a
filter of its own.

Covered: plain training with FedProx (arXiv 1812.06127, μ/2·‖φ − φ_t‖²) and SCAFFOLD's correction
(arXiv 1910.06378). Not covered: the noisy steps of the record-level modes
(``Trainer.descend``). They take clipped gradients of units and nothing else, so both of these
are refused there instead of being left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dp.config import PrivacySpec
from evolution.errors import EvolverSetupError
from evolution.memory.memory import Memory
from evolution.methods.evolver import EvolveSettings, Work
from evolution.methods.explore import Stream, round_seed
from evolution.train.trainer import SftReport, SftSettings, Trainer
from evolution.trajectory import Trajectory
from ops.tracing.spans import spanned

__all__ = [
    "figures_of",
    "imitate",
    "require_plain_gradients",
    "sft_settings",
    "training_set",
]


def training_set(memory: Memory, work: Work, *, success_filter: bool) -> list[Trajectory]:
    """What a round imitates: with ``use_expert`` every demonstration is part of it.

    Raises:
        MemoryCorruptError: The memory cannot be read.
    """
    settings = work.settings
    if success_filter:
        return memory.select(
            round_index=work.round,
            window=settings.window,
            best_per_task=settings.best_per_task,
            use_expert=settings.use_expert,
        )
    played = memory.played(round_index=work.round, window=settings.window)
    return played + (memory.experts() if settings.use_expert else [])


@spanned("train")
def imitate(
    trainer: Trainer,
    trajectories: Sequence[Trajectory],
    work: Work,
    *,
    trainable: frozenset[str],
) -> SftReport:
    """Train the factors named ``trainable`` of the adapter that the trainer was reset to.

    An adapter that may not learn is trained on nothing.
    """
    return trainer.train(
        trajectories if work.settings.learn else [],
        sft_settings(work.settings, seed=round_seed(work, Stream.TRAIN)),
        trainable=trainable,
        correction=work.correction,
    )


def sft_settings(plan: EvolveSettings, *, seed: int) -> SftSettings:
    """The plan's part of one training, whose own seed is ``seed``."""
    return SftSettings(
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        learning_rate=plan.learning_rate,
        grad_clip_l2=plan.grad_clip_l2,
        max_sequence_tokens=plan.max_sequence_tokens,
        seed=seed,
        schedule=plan.learning_rate_schedule,
        proximal_mu=plan.proximal_mu,
    )


def figures_of(report: SftReport, selected: int) -> dict[str, float]:
    """A report as figures of the silo's own; ``selected`` counts the training set."""
    return {
        "agent_tokens": float(report.agent_tokens),
        "first_loss": report.first_loss,
        "last_loss": report.last_loss,
        "optimiser_steps": float(report.optimiser_steps),
        "selected": float(selected),
        "too_long": float(report.too_long),
    }


def require_plain_gradients(
    spec: PrivacySpec | None,
    settings: EvolveSettings,
    correction: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Refuse what the noisy steps have no room for; ``spec`` protects units, if any are protected.

    Raises:
        EvolverSetupError: Units are protected, and their gradients would be changed.
    """
    if spec is None:
        return
    if settings.proximal_mu:
        raise EvolverSetupError(
            "proximal_mu changes gradients, and record-level steps release clipped sums of units' "
            "gradients alone: set it to 0"
        )
    if settings.learning_rate_schedule != "constant":
        raise EvolverSetupError(
            "record-level steps have one size, the learning rate: set learning_rate_schedule to "
            "'constant'"
        )
    if correction is not None:
        raise EvolverSetupError(
            "SCAFFOLD needs a mean of gradients that record-level privacy does not release"
        )
