"""The seam every self-evolution method sits behind. No torch.

A method receives the global adapter and returns the difference it would like to make. Invariants:

1. ``evolve`` starts from exactly ``Work.adapter``, bit for bit; nothing learned locally survives a
   round except through the silo's own stores (buffer, memory, personal adapter). Factors that are
   not shared at all may be the silo's own: they are not in ``Work.trainable``.
2. The delta names exactly ``Work.trainable`` and is float32. Without anything to learn from it is
   zero, except under ``record_local``, where it is what the noise alone does. A method never leaves
   early because of what its data look like; where units are protected, a failure that one unit can
   cause costs that unit alone its part.
3. The same work on the same stores gives the same delta, except where noise protects it.
4. ``Evolution.metrics`` stay in the silo. Only ``episodes`` and ``successes`` go into the masked
   metrics block.
5. The privacy that a work asks for is the one that the method was set up with. Under
   ``record_local`` nothing is trained before ``LocalPrivacy.reserve`` has returned; under
   ``record_distributed`` ``evolve`` explores and stores only, and ``unit_sum`` answers each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dp.config import PrivacySpec
from dp.ledger.receipt import TrainingReceipt
from dp.noise.unit_sum import UnitSum
from evolution.envs.catalogue import BUILT_IN, Catalogue
from evolution.envs.tasks import Shard
from evolution.errors import EvolveError
from evolution.methods.machines import Machines
from evolution.methods.personal.compared import Candidate, Choices
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import Schedule, TrainerSpec
from federation.adapter.target import ALL_LINEAR, Target
from federation.plan.methods import Normaliser
from federation.plan.recipe import FED_SE, PartsSection, Recipe, recipe_of

__all__ = [
    "Assignment",
    "Evaluation",
    "EvaluationRow",
    "Evolution",
    "EvolveSettings",
    "Evolver",
    "EvolverSetup",
    "LocalPrivacy",
    "StepWork",
    "Work",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvolveSettings:
    """The plan's ``[evolve]`` settings: equal on every silo."""

    episodes: int = 128
    """Episodes explored per silo and round, all tries counted."""
    tries_per_task: int = 4
    """Tries per task; the shortest success of a task is what is learned from."""
    temperature: float = 1.0
    """Of exploration."""
    max_new_tokens: int = 8
    """Longest answer per turn."""
    rollout_batch: int = 64
    """Episodes played at once."""
    window: int = 1
    """Rounds of the buffer that are trained on; 0 means all."""
    best_per_task: bool = True
    """Train on the shortest success of each task only."""
    epochs: int = 2
    """Passes over the training set."""
    batch_size: int = 8
    """Trajectories per optimiser step."""
    learning_rate: float = 3e-3
    """Of AdamW, at the start of each round."""
    learning_rate_schedule: Schedule = "constant"
    """What becomes of it within a round."""
    grad_clip_l2: float = 1.0
    """Gradients are scaled down to this norm."""
    max_sequence_tokens: int = 1024
    """Longer trajectories are not trained on."""
    try_s: float | None = None
    """Most seconds that the environment of one try may take, where units are protected; None is no
    limit. A try that takes longer is dropped, and no other is."""
    packing: bool = False
    """Several units in one training sequence; no method here does that, so only False runs."""
    local_epochs: int = 1
    """How often a round plays, gives credit and trains."""
    normaliser: Normaliser = Normaliser.BATCH_TOKENS
    """The method's: by what a batch's terms are divided where no unit is protected."""
    nominal_tokens: int | None = None
    """Of the normaliser ``constant``."""
    explore: bool = True
    """False is the control that plays nothing new."""
    learn: bool = True
    """False is the control that changes nothing."""
    use_expert: bool = True
    """Whether demonstrations that the operator gave are always part of the training set."""
    proximal_mu: float = 0.0
    """μ of FedProx (arXiv 1812.06127): the loss plus μ/2·‖φ − φ_t‖²; 0 leaves it out."""
    seed: int = 0
    """Of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPrivacy:
    """What protects the units of a round, and how it is paid for."""

    spec: PrivacySpec
    """The plan's."""
    reserve: Callable[[], TrainingReceipt] | None = None
    """``record_local`` only: charges the round's steps durably and returns their receipt. Called
    once, after exploring and before the first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One round's task for a method."""

    round: int
    """Rises by one; a federation counts from 1."""
    adapter: Mapping[str, np.ndarray]
    """The global adapter: all factors, float32, by peft name."""
    adapter_sha256: str
    """Its identity."""
    trainable: frozenset[str]
    """Names the delta is about; the other factors stay as they are."""
    settings: EvolveSettings
    """From the plan."""
    seed: int
    """This silo's own; with the run's seed and the round it decides every draw."""
    privacy: LocalPrivacy | None = None
    """What protects the round's units; None where no unit inside the silo is protected."""
    correction: Mapping[str, np.ndarray] | None = None
    """SCAFFOLD's c − c_k (arXiv 1910.06378), added to every gradient; needs no protected units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """One release of ``record_distributed``: the sum of clipped unit gradients at an adapter."""

    round: int
    """Counted like ``Work.round``; ``evolve`` has explored it."""
    step: int
    """Index of the release inside the round, from 0."""
    adapter: Mapping[str, np.ndarray]
    """The adapter at that step: all factors, float32, by peft name."""
    adapter_sha256: str
    """Its identity."""
    names: tuple[str, ...]
    """The trainable tensors in the order of the flat vector."""
    trainable: frozenset[str]
    """The same names as a set; the other factors stay as they are."""
    settings: EvolveSettings
    """From the plan."""
    seed: int
    """This silo's own."""
    spec: PrivacySpec
    """The plan's, with its record settings."""

    @property
    def progress(self) -> float:
        """The part of the round's steps that are taken: 0 at the first, towards 1."""
        record = self.spec.record
        return 0.0 if record is None else self.step / record.steps_per_round


@dataclass(frozen=True, kw_only=True, slots=True)
class Evolution:
    """What a method made of a round."""

    delta: dict[str, np.ndarray]
    """Local minus global, float32, over the trainable names."""
    episodes: dict[str, int]
    """Episodes finished per family."""
    successes: dict[str, int]
    """Those that were solved."""
    metrics: dict[str, float]
    """Local figures; never leave the silo."""
    duration_s: dict[str, float]
    """Seconds per stage."""
    mean_gradient: dict[str, np.ndarray] | None = None
    """Mean of the uncorrected gradients along the way, where ``Work.correction`` was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A request to judge an adapter on held-out tasks."""

    round: int
    """For the record."""
    adapter: Mapping[str, np.ndarray]
    """All factors; empty judges the bare base model."""
    adapter_sha256: str
    """Its identity."""
    episodes: int = 208
    """Held-out tasks per environment, in the order of the split, which deals labels out evenly."""
    first_task: int = 0
    """Where in the split they start; with the same start everyone is judged on the same tasks."""
    temperatures: tuple[float, ...] = (1.0, 0.0)
    """Each task is played once at each."""
    shards: int = 1
    """How many silos the labels are dealt out over, to tell own tasks from others'."""
    max_new_tokens: int = 8
    """Longest answer per turn."""
    rollout_batch: int = 64
    """Episodes played at once."""
    seed: int = 0
    """Decides every draw."""
    personal: bool = False
    """Judge this silo's personal adapter (or the global one with its personal factors) instead."""
    chosen: Mapping[str, Candidate] = field(default_factory=dict)
    """Judge in each of these environments what the silo chose for it instead, and nowhere else."""
    environments: tuple[str, ...] = ()
    """Where it is judged, by names of the silo's catalogue; where the method judges when empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRow:
    """Counts for one label of one environment at one temperature."""

    environment: str
    """The environment's name."""
    label: str
    """The task label, for example the item to craft."""
    shard: int
    """The shard that owns the label."""
    temperature: float
    """0 is greedy."""
    episodes: int
    """Episodes finished."""
    successes: int
    """Those that were solved."""
    violations: int = 0
    """Those in which a rule was broken that the environment states; 0 where it says none."""
    solved: tuple[int, ...] = ()
    """Ids of the tasks that were solved, in order; empty where the method plays none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """An environment a silo explores, and which part of its tasks."""

    environment: str
    """A name of the silo's catalogue."""
    shard: Shard | None = None
    """All tasks when absent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvolverSetup:
    """What a silo gives a method once, at start."""

    assignments: tuple[Assignment, ...] = ()
    """What the silo explores."""
    judged: tuple[str, ...] = ()
    """Environments it is judged on; those of the assignments when empty."""
    base_dir: Path | None = None
    """The base model."""
    state_dir: Path | None = None
    """Where the silo keeps its stores."""
    expert_file: Path | None = None
    """The demonstrations that the operator imported, if any: a buffer of its own, for all runs."""
    rank: int = 8
    """LoRA r."""
    alpha: float = 16.0
    """LoRA α."""
    dtype: str = "float32"
    """Of the base weights."""
    target: Target = ALL_LINEAR
    """Which layers carry an adapter."""
    threads: int = 1
    """Of torch."""
    catalogue: Catalogue = BUILT_IN
    """The environments this silo has."""
    engine: EngineSpec = field(default_factory=EngineSpec)
    """What plays its episodes."""
    trainer: TrainerSpec = field(default_factory=TrainerSpec)
    """What it trains on."""
    machines: Machines | None = None
    """An engine and a trainer made as above, lent: whoever lends them closes them. None makes the
    method's own."""
    privacy: PrivacySpec | None = None
    """The plan's; None for work whose result never leaves the silo. In the record-level modes every
    work must carry the same spec, so that nobody forgets it."""
    recipe: Recipe = field(default_factory=lambda: recipe_of(FED_SE, PartsSection()))
    """The plan's method and its parts."""
    local_parts: bool = False
    """Whether the plan lets a silo choose a gate of its own."""
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    """The method's own; each method names those it knows and refuses others."""


class Evolver(ABC):
    """One self-evolution method, for the life of a daemon."""

    name: str
    """Of its card."""

    @abstractmethod
    def evolve(self, work: Work) -> Evolution:
        """Explore, select and train; see the module's invariants.

        Raises:
            EvolverSetupError: The configuration does not allow it; told in public, so it comes
                before exploring and before ``LocalPrivacy.reserve``.
        """

    def unit_sum(self, work: StepWork) -> UnitSum:
        """The sum of clipped unit gradients of one step; for ``record_distributed``.

        Each call draws a new sample of units, also for the same step: a release that is amplified
        by sampling may not reuse its sample.

        Raises:
            EvolveError: The method has no per-unit gradients.
        """
        raise EvolveError(f"{self.name} has no per-unit gradients (step {work.step})")

    @abstractmethod
    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Judge an adapter on held-out tasks; learns nothing and stores nothing."""

    def choose(self, work: Evaluation) -> Choices | None:  # noqa: ARG002  # of nothing, as a rule
        """Which adapter to use, by tasks of the silo's own that this evaluation does not judge.

        None where the silo asks for no choice. Learns nothing and stores nothing.

        Raises:
            EvolveError: The method cannot compare them.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Release models and stores."""
