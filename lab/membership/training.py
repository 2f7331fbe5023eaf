"""Training on canaries: without privacy, and through the ledger and the noisy steps of a silo.

Both start at the same adapter of the same base and train the same factors. The private training is
the silo's own: the ledger charges before the first step, ``DpStep`` samples, clips and adds noise,
Adam runs on what it releases. Its population is all canaries, members or not: a task that was left
out is a unit with gradient zero, which is exactly the neighbour that the accountant speaks of.

Covered: one local training. Not covered: masking and averaging, which only take away from what an
the attacker of the final adapter sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from dp.config import DEFAULT_BACKEND, Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Ledger
from dp.steps.sgd import DpStep
from dp.steps.units import group_by_unit
from evolution.model.lora import initial_adapter, split_name
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import SftSettings
from lab.membership.canaries import Canaries, unit_of

__all__ = [
    "BACKEND",
    "Settings",
    "Step",
    "Trained",
    "record_spec",
    "train_plainly",
    "train_privately",
    "trainer_of",
]

Adapter = dict[str, npt.NDArray[np.float32]]

_DELTA = 1e-5
_GRID = 1 << 18
BACKEND = DEFAULT_BACKEND
"""Of the gradients, in training and in the attack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all trainings share."""

    base_dir: Path
    """The base model."""
    seed: int
    """Of φ₀ and of the order of batches."""
    rank: int = 16
    """r of the adapter; α is 2r."""
    epochs: int = 15
    """Without privacy: passes."""
    batch_size: int = 50
    """Without privacy: canaries per step."""
    learning_rate: float = 5e-3
    """Without privacy."""
    steps: int = 20
    """With privacy: noisy steps."""
    sampling_rate: float = 0.5
    """With privacy: q."""
    private_learning_rate: float = 5e-4
    """With privacy."""
    clip_l2: float = 0.5
    """With privacy: C, below most canaries' gradient norms, so that each counts fully."""

    @property
    def alpha(self) -> float:
        """α of the adapter."""
        return 2.0 * self.rank

    def initial(self) -> Adapter:
        """φ₀."""
        return initial_adapter(self.base_dir, self.rank, self.alpha, self.seed)

    def trainable(self) -> tuple[str, ...]:
        """The factors that are trained: B alone, as the docs advise under noise."""
        return tuple(sorted(name for name in self.initial() if split_name(name)[1] == "B"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a noisy step shows to somebody who sees it."""

    adapter: Adapter
    """All factors by name, as they were when the gradients were taken."""
    noisy_sum: npt.NDArray[np.float32]
    """The sum of clipped gradients with its noise, before the division by B̄."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """An adapter and what its training cost."""

    adapter: Adapter
    """All factors by name."""
    epsilon: float
    """What the ledger charged; infinite without privacy."""
    spec: PrivacySpec | None
    """The mechanism; None without privacy."""
    steps: tuple[Step, ...]
    """The noisy steps; none without privacy."""


def train_plainly(settings: Settings, canaries: Canaries) -> Trained:
    """Imitate the members as a silo without privacy does."""
    trainer = trainer_of(settings)
    trainer.train(
        [Row.of(member) for member in canaries.members],
        Part.own("nll"),
        SftSettings(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            grad_clip_l2=1.0,
            seed=settings.seed,
        ),
        trainable=frozenset(settings.trainable()),
    )
    return Trained(adapter=trainer.adapter(), epsilon=float("inf"), spec=None, steps=())


def record_spec(settings: Settings, *, canaries: int, epsilon: float) -> PrivacySpec:
    """The privacy settings that reach ε at δ = 1e-5 with the least noise.

    Steps, q and C are the settings'; ``canaries`` is the size of the population, and ε caps what
    one training charges.
    """

    def with_noise(z: float) -> PrivacySpec:
        return PrivacySpec(
            mode=Mode.RECORD_LOCAL,
            unit="task",
            clip_l2=settings.clip_l2,
            noise_multiplier=z,
            delta=_DELTA,
            epsilon_cap=epsilon,
            grid=_GRID,
            metrics_noise_multiplier=z,
            record=RecordSpec(
                sampling_rate=settings.sampling_rate,
                expected_units=max(1, round(settings.sampling_rate * canaries)),
                steps_per_round=settings.steps,
                delta_clip_l2=1.0,
            ),
        )

    # By bisection over the charge itself, so that a sample that is too large is paid for as well.
    low, high = 1e-2, 1e4
    while high > low * (1.0 + 1e-6):
        middle = (low * high) ** 0.5
        spent = epsilon_of(training_charges(with_noise(middle)), _DELTA)["task"]
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return with_noise(high)


def train_privately(
    settings: Settings, canaries: Canaries, spec: PrivacySpec, *, ledger_file: Path
) -> Trained:
    """Imitate the members as a silo in mode ``record_local`` does.

    The ledger is one that this training may charge.
    """
    trainer = trainer_of(settings)
    adapter = trainer.adapter()
    names = settings.trainable()
    members = group_by_unit(canaries.members, unit_of)
    rows_of = {unit: tuple(map(Row.of, own)) for unit, own in members.items()}
    record = spec.record
    if record is None:
        raise ValueError("a training with noisy steps takes record settings")
    seen: list[Step] = []
    with Ledger.open(ledger_file, delta=spec.delta, caps={"task": spec.epsilon_cap}) as ledger:
        receipt = ledger.reserve_training(
            run="membership", round=0, spec=spec, adapter_sha256=_digest(adapter)
        )
        step = DpStep(
            receipt=receipt,
            dimension=sum(adapter[name].size for name in names),
            backend=trainer.gradients(names, Part.own("nll"), backend=BACKEND),
        )

        def watched() -> npt.NDArray[np.float32]:
            at = trainer.adapter()
            released = step.gradient(canaries.population, rows_of)
            seen.append(Step(adapter=at, noisy_sum=released * np.float32(record.expected_units)))
            return released

        trainer.descend(
            names,
            watched,
            steps=settings.steps,
            learning_rate=settings.private_learning_rate,
        )
        charged = ledger.spent_epsilons()["task"]
    return Trained(adapter=trainer.adapter(), epsilon=charged, spec=spec, steps=tuple(seen))


def trainer_of(settings: Settings) -> SftTrainer:
    """A trainer at φ₀."""
    trainer = SftTrainer(
        settings.base_dir, rank=settings.rank, alpha=settings.alpha, dtype="float32"
    )
    trainer.reset(settings.initial())
    return trainer


def _digest(adapter: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(adapter):
        digest.update(name.encode() + adapter[name].tobytes())
    return digest.digest()
