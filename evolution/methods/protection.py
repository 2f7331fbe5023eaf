"""What the protection of units inside a silo asks of a method's set-up, settings and tasks.

Invariants:

1. Every check reads configuration, plan and seeds, and no data; so does what it refuses.
2. All of them are made before anything is explored or charged, and fail as ``EvolverSetupError``.

Covered: everything that would couple units, or fail every step in the same way. Not covered: the
modes that a recipe's parts allow (``federation.plan.recipe``), and the plan's own bounds
(``federation.plan.plan``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dp.config import RECORD_MODES, PrivacySpec
from dp.errors import PrivacyError
from dp.steps.sgd import require_exact
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup, EvolveSettings
from evolution.methods.population import unit_of
from evolution.trajectory import Task

__all__ = [
    "protected",
    "require_apart",
    "require_drawn",
    "require_plain_gradients",
    "require_setup_apart",
    "require_steps",
    "require_units",
    "shares_batch",
    "wave_size",
]

_FULL_PRECISION = "float32"
_BIT_FOR_BIT = ("fixed", "loop")
"""Backends in which a unit's gradient does not depend on other units by a bit."""


def protected(spec: PrivacySpec | None) -> PrivacySpec | None:
    """The spec if it protects units inside a silo, else None."""
    return None if spec is None or spec.mode not in RECORD_MODES else spec


def require_setup_apart(setup: EvolverSetup, *, backend: str) -> None:
    """Refuse options that let one unit act on another.

    Raises:
        EvolverSetupError: An option couples units.
    """
    if protected(setup.privacy) is None:
        return
    if setup.engine.kind != "hf":
        raise EvolverSetupError(
            "a model server is shared by all conversations: one that brings it down costs other "
            "units their episodes, and its batches and caches are its own. Where units are "
            'protected use [rollout] kind = "hf"'
        )
    for name, what in (("buffer_capacity", "successes"), ("failure_capacity", "tries")):
        if name in setup.options:
            raise EvolverSetupError(
                f"{name} lets one task push out another's {what}, so no task would be a unit of "
                f"its own: set {name}_per_task"
            )
    if setup.dtype != _FULL_PRECISION and backend not in _BIT_FOR_BIT:
        raise EvolverSetupError(
            f"gradient_backend {backend!r} computes several units at once, and in {setup.dtype} a "
            "neighbour changes a unit's gradient by far more than a rounding of float32: use "
            "'fixed'"
        )


def require_apart(settings: EvolveSettings) -> None:
    """Refuse settings that put several units into one sequence.

    Raises:
        EvolverSetupError: Packing is asked for.
    """
    if settings.packing:
        raise EvolverSetupError(
            "packing puts several units into one sequence, where attention mixes them: a unit's "
            "gradient would depend on other units"
        )


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
    if settings.local_epochs != 1:
        raise EvolverSetupError(
            "under record-level privacy the released adapter alone plays: set local_epochs to 1"
        )
    if correction is not None:
        raise EvolverSetupError(
            "SCAFFOLD needs a mean of gradients that record-level privacy does not release"
        )


def require_drawn(tasks: Sequence[Task], *, count: int) -> None:
    """Refuse a sampler's draw that has other units than were accounted for.

    Raises:
        EvolverSetupError: A task is there twice, or there are more than planned.
    """
    if len({(task.environment, task.task_id) for task in tasks}) < len(tasks):
        raise EvolverSetupError("the sampler drew a task twice, where each is a unit of its own")
    if len(tasks) > count:
        raise EvolverSetupError(
            f"{len(tasks)} tasks were drawn and {count} were planned: one task more than planned "
            "would be one unit more than was accounted for"
        )


def require_steps(spec: PrivacySpec, dimension: int) -> None:
    """Check that noisy steps of so many coordinates can be taken.

    Raises:
        EvolverSetupError: The grid is too coarse or the ring too narrow.
    """
    try:
        require_exact(spec, dimension)
    except PrivacyError as error:
        raise EvolverSetupError(f"the noisy steps cannot be taken: {error}") from error


def require_units(tasks: Sequence[Task], spec: PrivacySpec) -> None:
    """Check that every task that would be played, drawn and not played yet, belongs to a unit.

    Raises:
        EvolverSetupError: The unit is a user and a task is nobody's.
    """
    for task in tasks:
        unit_of(task, spec.unit)


def shares_batch(spec: PrivacySpec | None, dtype: str) -> bool:
    """Whether episodes of different units may share a batch.

    In 16 bits (``dtype`` is that of the base weights) a neighbour in the batch moves the logits
    enough to change what is sampled, so protected units do not share one there. The spec is None
    where no unit is protected.
    """
    return spec is None or dtype == _FULL_PRECISION


def wave_size(settings: EvolveSettings, spec: PrivacySpec | None, dtype: str) -> int:
    """How many episodes share a batch: the tries of one task where units may not share one."""
    return settings.rollout_batch if shares_batch(spec, dtype) else settings.tries_per_task
