"""The tables of an experiment file, one class each.

Invariants: every class is frozen, strict and forbids unknown keys; every number is bounded and
finite; a line under each field says what it means.

Covered: types and ranges. Not covered: what tables ask of each other, and the wording of errors
(``lab/experiment/config.py``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dp.config import MAX_GRID_STEPS
from evolution.envs.variants.spec import Kind, Part, VariantSpec
from evolution.guard.options import PUBLIC_PANEL, GuardSection, Panel
from federation.adapter.target import TargetKey
from federation.aggregate.groups import MAX_BYZANTINE, MAX_GROUPS, GroupRule
from federation.errors import UnknownPartError
from federation.plan.recipe import (
    FED_SE,
    NormaliserName,
    PartChoice,
    PartsSection,
    Recipe,
    recipe_of,
    require_fitting,
)
from federation.plan.section import Slug as PartName
from federation.plan.tables import SelectionSection, VetoesSection

__all__ = [
    "AggregationTable",
    "AttackTable",
    "EvolveTable",
    "GroupsTable",
    "GuardTable",
    "JudgeTable",
    "NoiseTable",
    "OrchestrationTable",
    "Purpose",
    "RolloutTable",
    "Section",
    "SettingTable",
    "SiloTable",
    "SilosTable",
    "Sums",
    "TrainingTable",
    "VariantsTable",
]

MAX_SILOS: Final = 200
_MAX_SHARED_NAME: Final = 60
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]{0,63}$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Rounds = Annotated[int, Field(ge=0, le=10_000)]
Rank = Annotated[int, Field(ge=1, le=256)]
Alpha = Annotated[float, Field(gt=0, le=4096)]
Sums = Literal["plain", "masked"]
PerRound = Annotated[int, Field(ge=0, le=MAX_SILOS)]
Demonstrations = Annotated[int, Field(ge=0, le=1_000_000)]
Dtype = Literal["float32", "bfloat16"]
Purpose = Literal["tuning", "choosing", "reporting"]
PlainText = Annotated[str, Field(max_length=512)]


EVOLVE_LATER: Final = (
    *("recipe", "parts", "local_epochs", "normaliser", "nominal_tokens"),
    "personal_choice",
)
"""Keys of ``[evolve]`` that came later: what identifies a run has them only where they are used."""


class Section(BaseModel):
    """One table: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class EvolveTable(Section):
    """``[evolve]``: the local work of one round, as ``EvolveSettings`` takes it."""

    episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    """Episodes that a silo explores in a round, all tries counted."""
    tries_per_task: Annotated[int, Field(ge=1, le=1024)] = 4
    """Tries at each task."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Of exploration."""
    max_new_tokens: Annotated[int, Field(ge=1, le=8192)] = 8
    """Longest answer in one turn, also when judged."""
    rollout_batch: Annotated[int, Field(ge=1, le=4096)] = 64
    """Episodes played at once."""
    window: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Rounds of the buffer that are trained on; 0 means all (Fed-SE's own)."""
    best_per_task: bool = True
    """Train on the shortest success of each task only."""
    success_filter: bool = True
    """False also keeps failures: the ablation."""
    use_expert: bool = True
    """Whether the silo's demonstrations are always part of the training set."""
    epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """Passes over the training set."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Trajectories per optimiser step."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-3
    """AdamW's, at the start of each round."""
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """``cosine`` falls to zero over each round's local steps."""
    grad_clip_l2: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Gradients are scaled down to this norm."""
    max_sequence_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 1024
    """Longer trajectories are not trained on."""
    proximal_mu: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """μ of FedProx; 0 leaves it out."""
    personal: Literal["ditto", "finetune", "residual"] = "ditto"
    """How ``fedse_personal`` trains each silo's own adapter, as in ``[evolve]`` of silo.toml."""
    personal_lambda: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    """λ of Ditto (arXiv 2012.04221)."""
    personal_choice: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Of ``fedse_personal``: by so many own tasks of each environment, none of which is judged,
    each silo chooses what it would use, and that is judged as well; 0: nobody chooses."""
    recipe: PartName = FED_SE
    """What every silo does in a round: a method of ``federation.plan.methods`` that has parts."""
    parts: PartsSection = PartsSection()
    """Other parts in the place of the recipe's own, as in a plan."""
    local_epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """How often a round plays, gives credit and trains."""
    normaliser: NormaliserName | None = None
    """By what a step's terms are divided; None leaves it to the recipe."""
    nominal_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Of the normaliser ``constant``: tokens that a try is taken to have."""

    @model_validator(mode="after")
    def _one_recipe(self) -> EvolveTable:
        try:
            made = self.made
        except UnknownPartError as error:
            raise ValueError(str(error)) from error
        if not made.parts:
            raise ValueError(f"{self.recipe!r} is no recipe, and has nothing to explore or learn")
        require_fitting(
            made,
            nominal_tokens=self.nominal_tokens,
            temperature=self.temperature,
            tries_per_task=self.tries_per_task,
            window=self.window,
        )
        if not self.success_filter and self.parts.credit is not None:
            raise ValueError("success_filter = false is the credit 'all-tries': name one of them")
        return self

    @property
    def made(self) -> Recipe:
        """The recipe with its parts; without the success filter every try is imitated.

        Raises:
            UnknownPartError: It is not there, or a part does not fit.
        """
        parts = self.parts
        if not self.success_filter:
            parts = parts.model_copy(update={"credit": PartChoice(name="all-tries")})
        return recipe_of(self.recipe, parts, self.normaliser)


class AggregationTable(Section):
    """``[aggregation]``: how a round's sums become the next adapter."""

    method: Annotated[str, Field(min_length=1, max_length=40)] = "fedavg"
    """A name of ``lab.aggregation``."""
    server_step: Annotated[float, Field(gt=0, le=100)] = 1.0
    """η_s."""
    gauge: bool = False
    """Whether the factors are re-balanced after each sum."""
    server_optimiser: Annotated[str, Field(min_length=1, max_length=40)] = "fedavg"
    """What is made of the mean."""
    options: dict[str, float] = Field(default_factory=dict)
    """The method's own."""


class NoiseTable(Section):
    """``[noise]``: how vectors become integers, and the noise in their sum."""

    z: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Silo-level noise multiplier: the sum holds noise of at least z·C."""
    clip_l2: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    """C, the L2 clip of a silo's delta."""
    grid: Annotated[int, Field(ge=1, le=MAX_GRID_STEPS)] = 2**20
    """Δ: what C is in grid steps."""


class JudgeTable(Section):
    """``[judge]``: on what adapters are judged, and when."""

    held_out: Annotated[int, Field(ge=1, le=100_000)] = 208
    """Held-out tasks per environment, in the order of the split."""
    held_out_other: Annotated[int, Field(ge=0, le=100_000)] = 64
    """The same, where one silo's own adapter is judged outside its families."""
    split: Literal["held_out", "pretrain"] = "held_out"
    """``pretrain`` is for tuning: tasks that no reported table is about."""
    purpose: Purpose | None = None
    """Whose part of the held-out tasks (``lab/experiment/tasks/panels.py``): no two purposes share
    one. None: the first ones of the split."""
    temperatures: Annotated[
        tuple[Annotated[float, Field(ge=0, le=10)], ...], Field(min_length=1, max_length=8)
    ] = (1.0, 0.0)
    """Each task is played once at each; 0 is greedy."""
    every: Rounds = 5
    """Adapters that belong to all are judged after every so many rounds, and after the last;
    0: only after the last."""
    silos_every: Rounds = 0
    """The same for adapters that belong to one silo or one cluster."""

    @model_validator(mode="after")
    def _one_part(self) -> JudgeTable:
        if self.purpose is not None and self.split != "held_out":
            raise ValueError(
                "purpose: held-out tasks are dealt to purposes, and none of another split: leave "
                "one of the two out"
            )
        return self


class RolloutTable(Section):
    """``[rollout]``: what plays the episodes of a worker, as ``EngineSpec`` takes it.

    Relative paths are relative to the file.
    """

    kind: Literal["hf", "openai"] = "hf"
    """``hf`` runs the model here; ``openai`` asks a vLLM server, whose draws are others."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """``hf``: processes that share the episodes of a round."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``hf``: ``auto`` takes a GPU if there is one."""
    url: PlainText = ""
    """``openai``: the server, on loopback or with TLS."""
    urls: Annotated[tuple[PlainText, ...], Field(max_length=256)] = ()
    """``openai``: several servers instead of ``url``."""
    model: PlainText = ""
    """``openai``: the name under which the server knows the base model."""
    api_key_file: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """``openai``: file with the server's API key."""
    adapter_dir: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """``openai``: where adapters are written for the server to load."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    """``openai``: for one answer."""
    max_in_flight: Annotated[int, Field(ge=1, le=4096)] = 64
    """``openai``: conversations that wait for an answer at once."""


class TrainingTable(Section):
    """``[training]``: on what a worker trains, as ``TrainerSpec`` takes it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto`` takes a GPU if there is one."""
    micro_batch_tokens: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    """Most padded tokens in one forward pass; 0 takes each batch whole."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """More than 1 starts as many workers with torchrun, one GPU each."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: ``ddp`` copies the base to each, ``fsdp`` divides it."""


class SiloTable(Section):
    """``[[silo]]``: who takes part, with what."""

    name: Slug
    """Unique in the file."""
    environments: Annotated[tuple[EnvironmentName, ...], Field(min_length=1, max_length=16)]
    """What it explores."""
    shard_index: Annotated[int, Field(ge=0, le=4096)] = 0
    """Which part of the labels it has."""
    shard_count: Annotated[int, Field(ge=1, le=4096)] = 1
    """How many parts the labels are dealt into; 1: it has all."""
    tasks: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Distinct training tasks it has in each environment; 0: as many as there are."""
    demonstrations: Demonstrations = 0
    """Expert demonstrations it has in each environment, of its own tasks."""
    variant: VariantSpec | None = None
    """What its environments differ in; None: as everybody has them, and is judged in them."""


class VariantsTable(Section):
    """``[variants]``: gives each silo a variant of its environments, the n-th that of index n."""

    kind: Kind
    """Of all silos; ``none`` leaves environments as they are."""
    pool: Annotated[int, Field(ge=1, le=64)] | None = None
    """As in a silo's own ``variant``."""
    env_div: Part | None = None
    """The same."""
    keep_ratio: Part | None = None
    """The same."""
    descriptor: bool = False
    """The same: whether environments say in a line which they are, also where all are judged."""

    @model_validator(mode="after")
    def _possible(self) -> VariantsTable:
        self.of_silo(1)
        return self

    def of_silo(self, number: int) -> VariantSpec | None:
        """The variant of a silo, counted from 1.

        Raises:
            ValueError: The table says what no variant can be.
        """
        if self.kind == "none" and not self.descriptor:
            return None
        given = self.model_dump(exclude_none=True)
        if self.kind != "none":
            given["index"] = number
        return VariantSpec.model_validate(given)


class SilosTable(SiloTable):
    """``[[silo]]`` as the file has it: one silo, or several that differ in their names alone."""

    count: Annotated[int, Field(ge=1, le=MAX_SILOS)] | None = None
    """So many silos, named ``NAME-001`` and so on; without it one of this name."""

    @model_validator(mode="after")
    def _names_fit(self) -> SilosTable:
        if self.count is not None and len(self.name) > _MAX_SHARED_NAME:
            raise ValueError(
                f"name: at most {_MAX_SHARED_NAME} characters, because a number follows it"
            )
        return self

    @property
    def silos(self) -> tuple[SiloTable, ...]:
        """Each of them."""
        table = {key: value for key, value in self if key != "count"}
        if self.count is None:
            return (SiloTable(**table),)
        return tuple(
            SiloTable(**{**table, "name": f"{self.name}-{number:03d}"})
            for number in range(1, self.count + 1)
        )


class GroupsTable(Section):
    """``groups`` of a setting: a sum for each of several groups, combined by a rule."""

    count: Annotated[int, Field(ge=3, le=MAX_GROUPS)]
    """g."""
    byzantine: Annotated[int, Field(ge=1, le=MAX_BYZANTINE)] = 1
    """f: how many groups the rule outvotes; g ≥ 2f + 1."""
    rule: GroupRule = "median"
    """Coordinate-wise; with g = 2f + 1 both rules are the median."""


class AttackTable(Section):
    """``attack`` of a setting: one silo that uploads what no honest silo can."""

    silo: Slug
    """Which."""
    clips: Annotated[int, Field(ge=1, le=1000)]
    """How many times C its vector is long; it does not pass the clip."""
    direction: Literal["reverse", "random", "flip", "own"]
    """Against the mean of the others' vectors of the same sum, one drawn once a run, against what
    it learned itself, or what it learned."""
    poisons: str = ""
    """A label of its environments: of this one it learns what does not solve its tasks."""


class GuardTable(Section):
    """``guard`` of a setting: honest silos judge on the public panel, and veto.

    Keys are those of ``[guard]`` in ``silo.toml`` and of ``[vetoes]`` in a plan, with their
    defaults; what is not here has the default.
    """

    tasks: Annotated[int, Field(ge=8, le=1024)] = 64
    """Of the panel, each played once by every adapter at every honest silo."""
    base_tries: Annotated[int, Field(ge=1, le=64)] = 4
    """How often the base plays each, once in a run."""
    tau: Annotated[float, Field(ge=0, le=1)] = 0.2
    """By how much success may fall below the base's."""
    violations: Annotated[float, Field(ge=0, le=1)] = 0.2
    """By how much the share of tries that break a rule may rise above the base's."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The run goes back where the mean of the vetoes is so much."""
    errors: Annotated[float, Field(ge=1, le=10)] = 3.0
    """And so many standard errors of its noise."""

    @property
    def section(self) -> GuardSection:
        """As a silo's guard reads it."""
        return GuardSection(
            panels=(Panel(environment=PUBLIC_PANEL, tasks=self.tasks),),
            base_tries=self.base_tries,
            tau=self.tau,
            violations=self.violations,
        )

    @property
    def asked(self) -> VetoesSection:
        """As a coordinator reads it."""
        return VetoesSection(share=self.share, errors=self.errors)


class OrchestrationTable(Section):
    """``[orchestration]``: rounds in simulated time, whose silos are asked as a coordinator asks.

    What is drawn is drawn by the run's seed alone, so every setting has the same silos in the same
    rounds (``lab/experiment/orchestration/silos.py``).
    """

    selection: SelectionSection
    """Whom a round asks, as a plan's ``[selection]``; a setting replaces it as a whole."""
    knows: Literal["public", "losses", "answers"] = "public"
    """``public`` goes by what a coordinator sees. ``losses`` is power-of-choice or Oort by each
    silo's loss, which under secure aggregation nobody has. ``answers`` has only those there who
    will answer in time: a bound, and nothing that can be had."""
    draws_count: bool = False
    """Draw K of each round uniformly, from the quorum to all; policy ``random`` alone."""
    adviser: Literal["none", "rule"] = "none"
    """What answers where the policy is ``advised``: a rule, in the place of a model
    (``orchestration/adviser.py``)."""
    adviser_s: Annotated[float, Field(ge=0, le=600)] = 9.0
    """Simulated seconds of each request to it; the round waits for them."""
    quorum: Annotated[int, Field(ge=3, le=MAX_SILOS)] = 5
    """Fewest ready silos of a round; with fewer it is lost."""
    ready_deadline_s: Annotated[int, Field(ge=1, le=10_000_000)] = 7200
    """From a round's task to its deadline, where a choice says nothing else."""
    work_s: Annotated[float, Field(gt=0, le=1e6)] = 1500.0
    """Local work of the median silo in the median round."""
    speeds: Annotated[float, Field(ge=0, le=3)] = 0.4
    """Standard deviation of ln of silos' speeds."""
    jitter: Annotated[float, Field(ge=0, le=3)] = 0.2
    """The same between the rounds of a silo."""
    queue_s: Annotated[float, Field(ge=0, le=1e6)] = 900.0
    """Mean over silos of their mean wait before the work; both are exponential."""
    drop: Annotated[float, Field(ge=0, le=0.5)] = 0.04
    """Mean over silos of the chance that it says nothing more in a round; uniform from 0."""
    away: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Share of silos that work for others for some hours of each day."""
    away_h: Annotated[float, Field(ge=0, le=23)] = 8.0
    """How many; when they begin is drawn."""
    liars: Annotated[int, Field(ge=0, le=MAX_SILOS)] = 5
    """Silos that publish that they are up and free, always; of those with such hours, as far as
    there are enough."""
    silent: Annotated[int, Field(ge=0, le=MAX_SILOS)] = 3
    """Silos that publish nothing."""
    figure_z: Annotated[float, Field(ge=0, le=100)] = 0.1
    """Noise of each count in a round's figures, in what one silo may add at most."""

    @model_validator(mode="after")
    def _go_together(self) -> OrchestrationTable:
        policy = self.selection.policy
        if (policy == "advised") != (self.adviser != "none"):
            raise ValueError("adviser: policy 'advised' asks one, and no other policy does")
        if self.knows == "losses" and policy not in ("power-of-choice", "oort"):
            raise ValueError("knows: only 'power-of-choice' and 'oort' go by losses")
        if self.draws_count and (policy != "random" or self.knows != "public"):
            raise ValueError("draws_count: policy 'random', which knows what is public")
        if self.selection.fewest is not None and self.selection.fewest < self.quorum:
            raise ValueError(f"selection: fewer than the quorum of {self.quorum} are asked")
        ranges = None if self.selection.ranges is None else self.selection.ranges
        if ranges is not None and ranges.local_epochs is not None:
            raise ValueError("selection.ranges.local_epochs: simulated rounds do not move them")
        return self


class SettingTable(Section):
    """``[[setting]]``: one row of the experiment, run once for each seed."""

    name: Slug
    """Unique in the file; what reports call it."""
    method: Annotated[str, Field(min_length=1, max_length=40)]
    """A name of ``lab/experiment/methods.py``."""
    rounds: Rounds | None = None
    """Instead of the experiment's."""
    rank: Rank | None = None
    """Instead of the experiment's."""
    alpha: Alpha | None = None
    """Instead of the experiment's."""
    target: TargetKey | None = None
    """Instead of the experiment's."""
    sums: Sums | None = None
    """Instead of the experiment's."""
    per_round: PerRound | None = None
    """Instead of the experiment's; 0: all."""
    demonstrations: Demonstrations | None = None
    """Instead of each silo's."""
    evolve: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[evolve]`` that differ."""
    aggregation: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[aggregation]`` that differ."""
    noise: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[noise]`` that differ."""
    partition: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[partition]`` that differ, or all of them."""
    variants: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[variants]`` that differ; with ``kind`` among them the whole table."""
    orchestration: dict[str, Any] = Field(default_factory=dict)
    """Keys of ``[orchestration]`` that differ, or all of them."""
    groups: GroupsTable | None = None
    """None: one sum of all."""
    attack: AttackTable | None = None
    """None: every silo is honest."""
    guard: GuardTable | None = None
    """None: nobody judges what a round begins with."""
