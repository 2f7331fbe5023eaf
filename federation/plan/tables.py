"""The tables of a run plan, one class each.

Invariants: every class is frozen, strict, and forbids unknown keys; every number is bounded and
finite; a line under each field says what it means.

Covered: types, ranges, and what fields of one table ask of each other.
Not covered: reading the document and wording its errors (``federation.plan.read``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from dp.config import MAX_GRID_STEPS, Unit
from federation.adapter.target import ALL_LINEAR, TargetKey
from federation.aggregate.groups import MAX_BYZANTINE, MAX_GROUPS
from federation.aggregate.registry import require_method, require_optimiser
from federation.errors import UnknownPartError
from federation.plan.recipe import NormaliserName, PartsSection, recipe_of, require_fitting
from federation.plan.section import Section, Slug

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Seconds = Annotated[int, Field(ge=1, le=7 * 24 * 3600)]
MAX_UNIX_S: Final = 2**37
"""In the year 6325: calendars still know it."""
MAX_OFFERED_EPSILON: Final = 100.0
"""Nobody is protected by a larger one, so none is negotiated."""


class ModelSection(Section):
    """``[model]``: the frozen base and the adapter trained on it."""

    base: Annotated[str, Field(min_length=1, max_length=512)]
    """Model id or directory, for people; silos go by the digest."""
    base_sha256: Sha256Hex
    """Digest of the base model's files, lower-case hex."""
    dtype: Literal["float32", "bfloat16"]
    """What the base weights are held in; adapters and deltas are float32 always."""
    lora_rank: Annotated[int, Field(ge=1, le=256)] = 8
    """Rank r of the adapter."""
    lora_alpha: Annotated[float, Field(gt=0, le=4096)] = 16.0
    """α; the adapter is scaled by α/r."""
    target: TargetKey = ALL_LINEAR
    """Which linear layers carry an adapter: all but the head, or those that a list names."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """LoRA dropout while training."""

    @field_validator("dtype", mode="before")
    @classmethod
    def _wide_enough(cls, value: Any) -> Any:
        if value == "float16":
            raise ValueError("float16 overflows at 65,504 in training; choose bfloat16")
        return value


class EvolveSection(Section):
    """``[evolve]``: the local work of one round. Nothing here depends on private data."""

    method: Slug
    """How the agent learns: one of Chorale's methods, or one of an installed package."""
    parts: PartsSection = PartsSection()
    """Other parts in the place of the method's own."""
    local_parts: bool = False
    """Whether a silo may choose a play and a gate of its own."""
    local_epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """How often a round plays, gives credit and trains; each time after the first with the adapter
    as it was trained. 1 in the record-level modes, where the released adapter alone plays."""
    normaliser: NormaliserName | None = None
    """By what the terms of a step's tries are divided where no unit is protected:
    ``batch_tokens``, ``unit_tokens`` or ``constant``; as the method has it when absent."""
    nominal_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Of the normaliser ``constant``: tokens that a try is taken to have."""
    episodes_per_round: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Episodes each silo explores, tries included; also the public bound of its metrics."""
    epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """Passes over the training set."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-3
    """AdamW's, at the start of each round."""
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """``cosine`` falls to zero over each round's local steps (arXiv 2512.08870, appendix B)."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Trajectories per optimiser step."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Sampling temperature while exploring."""
    window: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Rounds whose tries parts see, this one included: whose successes are trained on, and which
    samplers look at; 0 is all of them."""
    tries_per_task: Annotated[int, Field(ge=1, le=1024)] = 4
    """Tries at each task; the shortest success is kept."""
    max_new_tokens: Annotated[int, Field(ge=1, le=8192)] = 8
    """Longest answer in one turn."""
    max_sequence_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 1024
    """Longest training sequence."""
    explore: bool = True
    """False is the control that gathers no new trajectories."""
    learn: bool = True
    """False is the control whose delta is zero."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of task sampling and of training."""
    environments: Annotated[tuple[EnvironmentName, ...], Field(max_length=64)] = ()
    """Environments that silos may explore; a silo serves those it has."""
    use_expert: bool = True
    """Whether demonstrations that a silo's operator gave are in every training set. Never in the
    record-level modes, where no released adapter played them and they belong to no unit."""
    best_per_task: bool = True
    """Train on the shortest success of each task only; False trains on all of them."""
    proximal_mu: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """μ of FedProx (arXiv 1812.06127): the local loss plus μ/2·‖φ − φ_t‖²; 0 leaves it out."""
    task_sampling: Literal["uniform"] = "uniform"
    """Of plans before there were parts; ``parts.sampler`` says how tasks are drawn."""
    packing: bool = False
    """Several trajectories in one training sequence: not available."""

    @field_validator("packing")
    @classmethod
    def _unpacked(cls, value: bool) -> bool:  # noqa: FBT001  # pydantic passes it by position
        if value:
            raise ValueError(
                "packing is not available; in the record-level modes it would mix units in one "
                "sequence, and no unit could be clipped on its own: remove it"
            )
        return value

    @field_validator("environments")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("name each environment once")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> EvolveSection:
        try:
            recipe = recipe_of(self.method, self.parts, self.normaliser)
        except UnknownPartError as error:
            raise ValueError(str(error)) from error
        require_fitting(
            recipe,
            nominal_tokens=self.nominal_tokens,
            temperature=self.temperature,
            tries_per_task=self.tries_per_task,
            window=self.window,
        )
        if recipe.parts:
            if not self.environments:
                raise ValueError(f"method {self.method!r} explores: name at least one environment")
            if self.episodes_per_round < 1:
                raise ValueError(f"method {self.method!r} explores: set episodes_per_round")
            if self.episodes_per_round % self.tries_per_task:
                raise ValueError(
                    f"episodes_per_round ({self.episodes_per_round}) must be a multiple of "
                    f"tries_per_task ({self.tries_per_task}), so that every task gets all its tries"
                )
        return self


class GroupsSection(Section):
    """``[aggregation.groups]``: a round's silos in disjoint groups, each with a sum of its own."""

    count: Annotated[int, Field(ge=3, le=MAX_GROUPS)]
    """g: groups of a round, of sizes as equal as can be. c is the roster's in each of them, t is
    computed from its own size, and ``n_min`` and ``quorum`` are asked of each."""
    byzantine: Annotated[int, Field(ge=1, le=MAX_BYZANTINE)] = 1
    """f: groups whose means may be anything at all; at most (g − 1)/2. A round needs 2f + 1 sums.
    """
    rule: Literal["median", "trimmed_mean"] = "median"
    """How each coordinate of the groups' means becomes one: ``trimmed_mean`` leaves out the f
    least and the f greatest (Yin et al. 2018, arXiv 1803.01498)."""

    @model_validator(mode="after")
    def _majority(self) -> Self:
        if self.count < 2 * self.byzantine + 1:
            raise ValueError(
                f"{self.count} groups cannot outvote {self.byzantine} that may be anything: use "
                f"{2 * self.byzantine + 1} groups or more, or a lower byzantine"
            )
        return self


class AggregationSection(Section):
    """``[aggregation]``: from the sum to the next adapter."""

    method: str
    """``fedavg`` averages both factors; ``ffa`` trains B alone, ``rolora`` the factors in turns,
    ``fedsvd`` is ``ffa`` with the gauge, and ``fedsa`` shares A and leaves B to each silo."""
    server_step: Annotated[float, Field(gt=0, le=100)] = 1.0
    """η_s; 1 is the plain mean. The adaptive server optimisers want 1e-3 to 1e-2."""
    gauge: bool = False
    """Rewrite the same product BA in balanced factors after each round; ``fedsvd`` always does."""
    server_optimiser: str = "fedavg"
    """How the mean is applied, with server_step as the learning rate. To deltas: ``fedavg`` as it
    is, ``fedavgm``, ``fedadagrad``, ``fedyogi`` and ``fedadam`` with moments kept from round to
    round. To the gradients of ``record_distributed``: ``sgd`` or ``adam``."""
    groups: GroupsSection | None = None
    """Several sums a release instead of one, so that a silo that ruins its sum ruins one group's;
    one sum of all when not given."""

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        require_method(value)
        return value

    @field_validator("server_optimiser")
    @classmethod
    def _known_optimiser(cls, value: str) -> str:
        require_optimiser(value)
        return value


class RecordSection(Section):
    """``[privacy.record]``: what the record-level modes need beside C, z and Δ."""

    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    """q: each unit is in a step with this probability."""
    expected_units: Annotated[int, Field(ge=1, le=1_000_000)]
    """B̄: the fixed normaliser of a step; at least q times the most units a silo can have."""
    steps_per_round: Annotated[int, Field(ge=1, le=10_000)]
    """S: optimiser steps of one round; in ``record_distributed`` each is one aggregation."""
    delta_clip_l2: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """``record_local``: L2 bound of the encoded delta; record-level ε does not depend on it."""
    silo_noise_multiplier: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """``record_local``: z of mode ``silo`` on top, in units of ``delta_clip_l2``; 0 for none."""


class PrivacySection(Section):
    """``[privacy]``: spelled out, never a default mode."""

    mode: Literal["none", "silo", "record_local", "record_distributed"]
    """``none`` must be written, like every other mode."""
    unit: Unit = "task"
    """Whose contribution is one unit at record level."""
    clip_l2: Annotated[float, Field(gt=0, le=1e9)]
    """C: on the whole shared vector in ``silo``, on one unit's gradient at record level."""
    noise_multiplier: Annotated[float, Field(ge=0, le=1e9)]
    """z: the noise's standard deviation in multiples of C."""
    metrics_noise_multiplier: Annotated[float, Field(ge=0, le=1e9)]
    """z of the metrics block: success, losses and norms, summed beside the update."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """δ at which ε is stated."""
    epsilon_cap: Annotated[float, Field(gt=0, le=1e18)]
    """Largest ε of the run; every silo has its own cap as well."""
    grid: Annotated[int, Field(ge=16, le=MAX_GRID_STEPS)] = 2**20
    """Δ: the integer that C becomes."""
    min_cosine: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Least predicted cosine between noisy and noiseless mean at which a run may start."""
    accept_low_cosine: bool = False
    """True starts the run below ``min_cosine`` all the same."""
    exact_figures: bool = False
    """``none`` only: whether success and norms are summed without noise. False sums no figures."""
    record: RecordSection | None = None
    """In the record-level modes only."""


class SecureAggregationSection(Section):
    """``[secure_aggregation]``: what a plan may choose; c and t are not among it."""

    n_min: Annotated[int, Field(ge=3, le=200)]
    """Least number of survivors that a silo accepts."""
    ring_bits: Literal[32] = 32
    """The ring Z_2^32 of suite v1."""


class RoundsSection(Section):
    """``[rounds]``: how many, and how long."""

    count: Annotated[int, Field(ge=1, le=10_000)]
    """T: rounds of the run."""
    ready_deadline_s: Seconds
    """From the round task to the last ready report; covers exploring and training."""
    ready_after_s: Annotated[int, Field(ge=0, le=7 * 24 * 3600)] = 0
    """A silo that is done earlier waits this long from the task before it says ready, so that how
    long its local work took does not show; 0 does not wait. In the record-level modes it is also
    the most that the work may take: a silo that needs longer says nothing."""
    step_answer_after_s: Annotated[int, Field(ge=0, le=7 * 24 * 3600)] = 0
    """``record_distributed``: the same for the sum of unit gradients of a step, from the step's
    descriptor to its upload."""
    phase_deadline_s: Seconds
    """For each step of secure aggregation."""
    quorum: Annotated[int, Field(ge=3, le=200)] | None = None
    """Ready silos that open a round; n_min + 1 when not set."""
    spare_attempts: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Attempts beyond the releases that the budget pays for; a fifth of them when not set."""
    sit_out_after: Annotated[int, Field(ge=0, le=100)] = 3
    """A silo that phases waited for in vain in so many attempts in a row sits out; 0 for never. One
    loss is what the protocol is made for, two are a bad day."""
    sit_out_rounds: Annotated[int, Field(ge=1, le=10_000)] = 5
    """For so many rounds, so that it costs the others at most a sixth of what it did; in mode
    ``none`` for the rest of the run."""
    start_after_unix_s: Annotated[int, Field(ge=1, le=MAX_UNIX_S)] | None = None
    """The run is started no earlier; at any time when not set."""
    max_quarantined: Annotated[int, Field(ge=1, le=10)] = 2
    """The run fails at so many sums in a row that honest silos cannot have made: each was charged
    and none was applied."""

    @model_validator(mode="after")
    def _ready_in_time(self) -> Self:
        if self.ready_after_s >= self.ready_deadline_s:
            raise ValueError(
                f"ready_after_s = {self.ready_after_s} leaves no time before ready_deadline_s = "
                f"{self.ready_deadline_s}: lower the one or raise the other"
            )
        if self.step_answer_after_s >= self.phase_deadline_s:
            raise ValueError(
                f"step_answer_after_s = {self.step_answer_after_s} leaves no time before "
                f"phase_deadline_s = {self.phase_deadline_s}: lower the one or raise the other"
            )
        return self

    def ready_quorum(self, n_min: int) -> int:
        """Ready silos needed to open a round."""
        return n_min + 1 if self.quorum is None else self.quorum


class SelectionRangesSection(Section):
    """``[selection.ranges]``: how far a choice may move its round."""

    ready_deadline_s: tuple[Seconds, Seconds] | None = None
    """Least and most; a site judges the most. ``rounds.ready_deadline_s`` lies between them, and
    holds where a choice says nothing else. It does not move without this key."""
    local_epochs: (
        tuple[Annotated[int, Field(ge=1, le=100)], Annotated[int, Field(ge=1, le=100)]] | None
    ) = None
    """Least and most; a site judges the most. ``evolve.local_epochs`` lies between them. Not in the
    record-level modes, where the released adapter alone plays."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ready_deadline_s is None and self.local_epochs is None:
            raise ValueError("nothing may move: set ready_deadline_s or local_epochs, or remove it")
        for name in ("ready_deadline_s", "local_epochs"):
            found = getattr(self, name)
            if found is not None and found[0] > found[1]:
                raise ValueError(f"{name} = [{found[0]}, {found[1]}]: give the least first")
        return self


class SelectionScheduleSection(Section):
    """``[selection.schedule]``: how K moves with the rounds, known before the first."""

    kind: Literal["decay", "growth"]
    """``decay`` asks fewer in each round, max(to, ⌈count · (1 − rate)^(t−1)⌉); ``growth`` goes in
    equal steps from ``count`` in the first round to ``to`` in the last."""
    to: Annotated[int, Field(ge=3, le=200)]
    """The least K of a decay, the last of a growth."""
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of a decay alone."""

    @model_validator(mode="after")
    def _for_its_kind(self) -> Self:
        if (self.kind == "decay") != (self.rate is not None):
            raise ValueError("rate: a decay needs it, and a growth has none")
        return self


class SelectionAdviceSection(Section):
    """``[selection.advice]``: what the coordinator's advisor is asked, and how long.

    It sees public figures alone and proposes; what the plan and its ranges do not allow is refused,
    and the policy ``then`` decides without it (``docs/operations.md``).
    """

    style: Literal["count", "silos"] = "count"
    """``count`` proposes K, and ``then`` picks the silos; ``silos`` names them by their ids."""
    then: Literal["random", "round-robin", "oort"] = "round-robin"
    """Who picks K silos, and who decides where there is no proposal."""
    seconds: Annotated[int, Field(ge=1, le=120)] = 20
    """Longest that a round waits for the advisor, with all that it asks and is corrected in."""
    calls: Annotated[int, Field(ge=1, le=32)] = 8
    """Requests to the endpoint in one round."""
    tokens: Annotated[int, Field(ge=256, le=1_000_000)] = 20_000
    """Of all requests and answers of one round."""
    may_stop: bool = False
    """Whether a proposal may pause the run after the round; an admin says what follows."""
    may_diagnose: bool = True
    """Whether a proposal may ask for a diagnosis, which the audit log then says."""


class SelectionSection(Section):
    """``[selection]``: whom a round asks. No amplification is claimed from it."""

    policy: Literal["all", "random", "round-robin", "power-of-choice", "oort", "advised"] = "all"
    """``all`` asks everybody; the others choose among those who are there. ``random`` draws
    ``count`` uniformly without replacement, ``round-robin`` asks the ``count`` who were asked
    longest ago, ``power-of-choice`` and ``oort`` go by what silos publish of themselves, and
    ``advised`` asks the coordinator's advisor (``server/run/selection.py``)."""
    count: Annotated[int, Field(ge=3, le=200)] | None = None
    """K: silos that a round asks; not with ``all``. The round is lost where fewer of them than the
    quorum say ready, so leave some between. ``advised`` without it asks everybody, and the advisor
    chooses nothing but what the ranges let move."""
    candidates: Annotated[int, Field(ge=4, le=200)] | None = None
    """``power-of-choice``: silos that are drawn, of whom K are asked; more than K."""
    explore: Annotated[float, Field(ge=0, le=1)] | None = None
    """``oort``: share of K that is drawn from silos that were never asked; 0.2 when not set."""
    schedule: SelectionScheduleSection | None = None
    """How K moves with the rounds; the same K in all of them without."""
    cohort_may_vary: bool = False
    """Mode ``none`` only: the plan's word that its rounds have other silos each time, which without
    noise every site has to let happen."""
    ranges: SelectionRangesSection | None = None
    """How far a choice may move its round; not with ``all``."""
    advice: SelectionAdviceSection | None = None
    """``advised`` only; its defaults where the table is missing."""

    @property
    def varies(self) -> bool:
        """Whether a round may ask fewer than all who are there."""
        return self.count is not None

    @property
    def fewest(self) -> int | None:
        """The least K of any round by the plan; None where rounds ask everybody."""
        if self.count is None or self.schedule is None:
            return self.count
        return min(self.count, self.schedule.to)

    @model_validator(mode="after")
    def _for_its_policy(self) -> Self:
        given = self.model_dump(exclude={"policy"}, exclude_none=True)
        if not self.cohort_may_vary:
            del given["cohort_may_vary"]
        if self.policy == "all":
            if given:
                raise ValueError(
                    "policy 'all' chooses nothing: remove the other keys of this table, or use "
                    "another policy"
                )
            return self
        if self.count is None and self.policy != "advised":
            raise ValueError(
                f"policy {self.policy!r} asks so many silos a round: set count, or use 'all'"
            )
        for key, policy in (
            ("candidates", "power-of-choice"),
            ("explore", "oort"),
            ("advice", "advised"),
        ):
            if key in given and self.policy != policy:
                raise ValueError(f"{key}: policy {policy!r} alone reads it: remove it")
        self._require_counts()
        return self

    def _require_counts(self) -> None:
        most = self.count
        if self.schedule is not None:
            if self.count is None:
                raise ValueError("schedule: it moves count, which is not set")
            low, high = self.schedule.to, self.count
            if self.schedule.kind == "decay" and low > high:
                raise ValueError(f"schedule.to: a decay from {high} does not end at {low}")
            most = max(low, high)
        if self.policy == "power-of-choice" and (self.candidates or 0) <= (most or 0):
            raise ValueError(
                f"candidates: more than {most} have to be drawn, or nothing is chosen among them"
            )


class VetoesSection(Section):
    """``[vetoes]``: a site whose guard refuses an adapter says so, in a sum under noise.

    Nothing is asked without the table (``docs/guard.md``).
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The run is paused where the mean of the vetoes, one for each silo in the sum, is so much."""
    errors: Annotated[float, Field(ge=1, le=10)] = 3.0
    """And so many standard errors of its noise: at 3 noise alone pauses one round in 741."""


class NegotiationSection(Section):
    """``[negotiation]``: how far sites' counter-offers may move the plan before it starts.

    Each key lets one thing be moved, towards less of it or later; nothing is offered without the
    table, and the plan that comes of it is asked about anew (``federation/plan/negotiation.py``).
    """

    least_local_epochs: Annotated[int, Field(ge=1, le=100)] | None = None
    """``evolve.local_epochs`` may be lowered to this."""
    start_within_s: Seconds | None = None
    """The start may be put off by this, from when the silos are asked."""
    least_epsilon: Annotated[float, Field(ge=0.25, le=MAX_OFFERED_EPSILON)] | None = None
    """ε of the run, at the plan's δ and with its spare attempts, may be lowered to this: every
    noise of the plan is then multiplied by one factor. Only in modes with noise."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name what may be moved, or remove this table")
        return self


class EvaluateSection(Section):
    """``[evaluate]``: inside each silo; figures leave it only in sums."""

    held_out: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Held-out tasks per environment; 0 switches evaluation off."""
    every_rounds: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The adapter of every so many rounds is judged, and the last one."""
    temperatures: Annotated[
        tuple[Annotated[float, Field(ge=0, le=10)], ...], Field(min_length=1, max_length=8)
    ] = (0.0, 1.0)
    """0 is greedy."""
