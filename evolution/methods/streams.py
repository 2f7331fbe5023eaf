"""The random streams of a round, and what a plan says of one training.

Every draw of a round is of a stream that is named for its purpose and follows from the run's seed,
the silo's own and the round; where units are apart, from the unit as well. So no draw depends on
how many were made before it elsewhere, or on other units.

Covered: seeds. Not covered: noise and samples of units, whose randomness is the operating system's
(``dp.noise.source``).
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np

from dp.steps.units import UnitId
from evolution.methods.evolver import EvolveSettings, StepWork, Work
from evolution.part import Part
from evolution.train.trainer import SftSettings

__all__ = [
    "Stream",
    "round_rng",
    "round_seed",
    "temperature_of",
    "train_settings",
    "value_learning_rate_of",
]


class Stream(enum.IntEnum):
    """What a random stream of a round is for."""

    EXPLORE = 1
    DRAW = 2
    TRAIN = 3
    PERSONAL = 4
    PLAY = 5
    CREDIT = 6
    GATE = 7
    ASK = 8


def round_seed(work: Work | StepWork, stream: Stream, *, epoch: int = 0) -> int:
    """The 64-bit seed of one stream of one silo's round, and of a later local epoch of it."""
    parts = [work.settings.seed, work.seed, work.round, int(stream)]
    if epoch:
        parts.append(epoch)
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def round_rng(
    work: Work | StepWork, stream: Stream, *, epoch: int = 0, unit: UnitId | None = None
) -> np.random.Generator:
    """The same as a generator; with a unit, that unit's own."""
    seed = round_seed(work, stream, epoch=epoch)
    if unit is None:
        return np.random.default_rng(seed)
    name = "\0".join(unit).encode("utf-8", "surrogatepass")
    own = int.from_bytes(hashlib.sha256(b"chorale/unit-stream/v1\0" + name).digest()[:8], "little")
    return np.random.default_rng([seed, own])


def temperature_of(plan: EvolveSettings, objective: Part) -> float:
    """Of the distributions that an objective sees; see ``PartCard.tempered``."""
    return plan.temperature if objective.card.tempered else 1.0


def value_learning_rate_of(objective: Part) -> float | None:
    """Of a value head, as the objective's options have it; None leaves it to the plan's."""
    found = getattr(objective.options, "value_learning_rate", None)
    return None if found is None else float(found)


def train_settings(plan: EvolveSettings, objective: Part, *, seed: int) -> SftSettings:
    """The plan's part of one training of an objective, whose own seed is ``seed``."""
    return SftSettings(
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        learning_rate=plan.learning_rate,
        grad_clip_l2=plan.grad_clip_l2,
        seed=seed,
        schedule=plan.learning_rate_schedule,
        proximal_mu=plan.proximal_mu,
        normaliser=plan.normaliser,
        constant=plan.batch_size * float(plan.nominal_tokens or 1),
        temperature=temperature_of(plan, objective),
        value_learning_rate=value_learning_rate_of(objective),
    )
