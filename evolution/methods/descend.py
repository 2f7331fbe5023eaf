"""The charged steps of ``record_local``, and what is found out before they are paid for.

Adam along noisy sums of clipped unit gradients (``dp.steps.sgd``, ``Trainer.descend``); with nobody
to learn from they are noise, as without data.

Covered: one round. Not covered: ``record_distributed``, where each step is an aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dp.config import PrivacySpec
from dp.errors import PrivacyError
from dp.steps.sgd import DpStep
from evolution.errors import EvolverSetupError
from evolution.local_time import require_time, require_wanted
from evolution.methods.evolver import EvolveSettings, Work
from evolution.methods.population import Population
from evolution.methods.protection import require_steps
from evolution.methods.streams import temperature_of, value_learning_rate_of
from evolution.methods.taught import taught
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.trainer import Trainer
from federation.plan.methods import VALUE
from ops.logs.logger import get_logger
from ops.tracing.spans import spanned

if TYPE_CHECKING:
    from dp.steps.grads import GradientBackend

__all__ = ["Descent", "descend", "knowing", "require_descent", "tell_one_by_one"]

_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """What unit gradients are made of, the same for every step."""

    objective: Part
    """The recipe's."""
    backend: str
    """A key of ``dp.steps.backends.BACKENDS``."""
    divisor: float | None = None
    """What a unit's terms are divided by; None for its own tokens."""
    temperature: float = 1.0
    """Of what the objective sees."""

    def gradients(
        self, trainer: Trainer, names: Sequence[str], *, progress: float = 0.0
    ) -> GradientBackend[Row]:
        """Per-unit gradients of a trainer's adapter by these factors, so far in their training."""
        return trainer.gradients(
            names,
            self.objective,
            backend=self.backend,
            divisor=self.divisor,
            temperature=self.temperature,
            progress=progress,
        )


def require_descent(trainer: Trainer, work: Work, spec: PrivacySpec, descent: Descent) -> None:
    """Find out before anything is played or charged what would fail every step.

    The trainer is reset to the global adapter.

    Raises:
        EvolverSetupError: The steps cannot be taken, or the model has no gradient per unit.
    """
    names = sorted(work.trainable)
    require_steps(spec, sum(work.adapter[name].size for name in names))
    try:
        descent.gradients(trainer, names).renew()
    except PrivacyError as error:
        raise EvolverSetupError(f"this model has no gradient per unit: {error}") from error


def tell_one_by_one(backend: GradientBackend[Row]) -> None:
    """Log that units are computed one at a time though that was not asked for.

    Not which ones: how long tries are is of the data.
    """
    if backend.one_by_one:
        _log.warning("gradients_one_by_one")


def knowing(
    trainer: Trainer, rows: Sequence[Row], objective: Part, settings: EvolveSettings
) -> Sequence[Row]:
    """Rows with the log-probabilities and values that the objective needs, under the released
    adapter.

    The adapter that the trainer was reset to is the anchor and the one before the first step.
    """  # noqa: D205  # one sentence
    rows = taught(trainer, rows, objective, settings)
    needs = objective.needs - {VALUE, "teacher"}
    if not needs or not rows:
        return rows
    at = temperature_of(settings, objective)
    known: dict[str, list[np.ndarray]] = {}
    if released := sorted(needs - {"base", "old_value"}):
        known = dict.fromkeys(released, trainer.logprobs(rows, temperature=at))
    if "base" in needs:
        known["base"] = trainer.logprobs(rows, temperature=at, base=True)
    if "old_value" in needs:
        known["old_value"] = trainer.values(rows)
    return [
        row.knowing({**row.known, **{name: values[place] for name, values in known.items()}})
        for place, row in enumerate(rows)
    ]


@spanned("train")
def descend(
    trainer: Trainer,
    work: Work,
    spec: PrivacySpec,
    population: Population,
    descent: Descent,
) -> dict[str, float]:
    """Take the steps from a trainer that is reset to the global adapter.

    The work holds what charges the ledger. Returns figures of the silo's own.

    Raises:
        EvolverSetupError: There is no ledger to charge.
    """
    if work.privacy is None or work.privacy.reserve is None or spec.record is None:
        raise EvolverSetupError("record_local charges the ledger before it trains: no ledger")
    if not work.settings.learn:
        return {"optimiser_steps": 0.0, "too_long": float(population.too_long)}
    names = sorted(work.trainable)
    backend = descent.gradients(trainer, names)
    step = DpStep(receipt=work.privacy.reserve(), dimension=backend.dimension, backend=backend)
    steps = spec.record.steps_per_round

    def direction() -> np.ndarray:
        require_wanted()
        require_time()
        return step.gradient(population.units, population.rows_of)

    trainer.descend(
        names,
        direction,
        steps=steps,
        learning_rate=work.settings.learning_rate,
        value_learning_rate=value_learning_rate_of(descent.objective),
    )
    tell_one_by_one(backend)
    return {
        "null_units": float(step.null_units),
        "optimiser_steps": float(steps),
        "population": float(len(population.units)),
        "too_long": float(population.too_long),
        "units_with_rows": float(len(population.rows_of)),
    }
