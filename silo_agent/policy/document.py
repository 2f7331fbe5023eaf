"""``policy.toml``: what this site allows. Default deny.

Invariants:

1. Every list defaults to empty, every ceiling to zero, and a kind of unit that ``epsilon_caps``
   does not name has no budget: an empty file refuses everything, for more than one reason.
2. An unknown key, a value of another type, NaN or an infinity is an error, and the daemon does not
   start on it. Nothing is coerced.
3. For a run without noise to be accepted ``modes`` must list ``none`` by name,
   ``accept_no_privacy`` must be the sentence that says what is given up, word for word, and the
   floors on a round's episodes and tasks must be named.
4. A run of suite v1, which a quantum computer will open, is accepted only where ``suites`` lists
   ``v1`` and ``accept_v1`` stands beside it. A file that says nothing of suites accepts v2 alone.
5. ``epsilon_caps`` and ``delta`` are the silo's own; a plan cannot change them.

6. What this site publishes about itself is nothing but what ``[facts]`` lists.

Covered: reading. Not covered: the verdicts (``policy.py``), the files that are written for a site
to edit (``proposal.py``), what an operator says about one run (``approvals.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dp.accounting.charge import UNIT_KINDS, UnitKind
from dp.config import Unit
from federation.errors import TomlError
from federation.plan.toml import parse_toml, tuples_of
from secagg import digest_tree, hybrid, suite
from secagg.bounds import MAX_DIMENSION
from silo_agent.errors import PolicyFileError

__all__ = ["NO_PRIVACY", "SUITES", "Hours", "Policy"]

SuiteName = Literal["v1", "v2"]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=128)]
SUITES: Final[Mapping[SuiteName, int]] = {"v1": suite.SUITE, "v2": hybrid.SUITE}
"""What a descriptor says for each name."""
DigestName = Literal["sha256", "blake3"]
ModeName = Literal["none", "silo", "record_local", "record_distributed"]
NoPrivacy = Literal[
    "without noise a published sum may be this silo's update alone, and tell about its data"
]
NO_PRIVACY: Final[NoPrivacy] = get_args(NoPrivacy)[0]
"""What an operator writes to accept mode ``none``."""
FactName = Literal["availability", "queue", "free_gpu", "budget_left", "earliest_start_unix_s"]
"""As ``federation.membership.facts.FACTS``."""
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SiloId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class _Section(BaseModel):
    """One table: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class PolicySection(_Section):
    """``[policy]``: how tasks are approved."""

    approval: Literal["auto", "manual"] = "auto"
    """``auto`` accepts what every rule allows; ``manual`` asks the operator about each run too."""


class ModelsSection(_Section):
    """``[models]``: on which base models."""

    allowed: tuple[Sha256Hex, ...] = ()
    """SHA-256 of each base model that may be adapted."""


class EnvironmentsSection(_Section):
    """``[environments]``: in which environments."""

    allowed: tuple[str, ...] = ()
    """Environments that a plan may name."""


class MethodsSection(_Section):
    """``[methods]``: by which methods."""

    evolvers: tuple[str, ...] = ()
    """Evolution methods that may run here."""
    aggregation: tuple[str, ...] = ()
    """Aggregation methods that may be taken part in."""
    packages: tuple[PackageName, ...] = ()
    """Installed packages whose parts and methods a plan may name, by distribution."""
    own_parts: tuple[str, ...] = ()
    """Plays and gates that ``silo.toml`` may choose by itself, where a plan's ``local_parts`` lets
    it. A run in which it would have another is refused."""
    allow_rollback: bool = False
    """Whether a run may go back to the adapter of an earlier round of its own."""


class EpsilonCapsSection(_Section):
    """``[privacy] epsilon_caps``: what each kind of unit may ever lose; 0 lets nothing pass."""

    task: Number = 0.0
    """One task with everything it led to, in the record-level modes."""
    user: Number = 0.0
    """Everything of one person, in the record-level modes with ``unit = "user"``."""
    silo: Number = 0.0
    """This silo's whole data set, wherever noise hides it."""


class PrivacySection(_Section):
    """``[privacy]``: under which protection."""

    modes: tuple[ModeName, ...] = ()
    """Privacy modes that are acceptable; ``none`` only if it is written here."""
    accept_no_privacy: NoPrivacy | None = None
    """Mode ``none`` needs this sentence beside its name."""
    after_none: bool = False
    """Whether a run with noise may follow an upload in mode ``none``, which its ε does not speak
    of."""
    allow_exact_figures: bool = False
    """Whether success and norms may be summed without noise, where a plan of mode ``none`` asks for
    them."""
    allow_vetoes: bool = False
    """Whether what this silo's ``[guard]`` finds may be a veto, summed under noise, where a plan
    asks for vetoes. Without it a silo with a guard refuses such a plan."""
    cohort_may_vary: bool = False
    """Whether a sum without noise may be of silos that were not in the one before. It holds where
    every silo of the sum says so; approving a run can say it for that run alone."""
    units: tuple[Unit, ...] = ()
    """Units that a record-level mode may protect."""
    record_parts: Mapping[PackageName, Sha256Hex] = {}
    """Packages whose parts may run in a record-level mode, with the digest of each as somebody here
    has read it: what keeps units apart is then that package's code as well."""
    max_epsilon_per_run: Number | Literal["unlimited"] = 0.0
    """Largest ε of one run with all its spare attempts, at this file's δ, for the unit that its
    mode protects."""
    min_noise_multiplier: Number = 0.0
    """Least z of every noise that a plan adds: the protected unit's, the metrics block's, and that
    for the silo where a record-level mode is composed with it."""
    max_clip_l2: Number = 0.0
    """Largest clip C of what noise hides: a delta, or one unit's gradient at record level, and the
    delta as well where that mode is composed with noise for the silo."""
    max_sampling_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Largest q at record level."""
    max_steps_per_run: Count = 0
    """Noisy optimiser steps of one run at record level, those of spare attempts included."""
    epsilon_caps: EpsilonCapsSection = EpsilonCapsSection()
    """ε that everything this silo ever takes part in may add up to, for each kind of unit. What a
    kind that is not named pays for a unit around it is shown and not capped."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ at which every ε here is computed."""

    @model_validator(mode="before")
    @classmethod
    def _caps_name_their_unit(cls, value: object) -> object:
        if isinstance(value, Mapping) and "epsilon_cap" in value:
            raise ValueError(
                "there is no epsilon_cap: say for which unit, for example "
                "epsilon_caps = { task = 8.0, silo = 50.0 }; a unit that is not named has none"
            )
        return value

    def caps(self) -> dict[UnitKind, float]:
        """The cap of each kind of unit that has a budget at all."""
        of_kind: dict[UnitKind, float] = {
            "silo": self.epsilon_caps.silo,
            "task": self.epsilon_caps.task,
            "user": self.epsilon_caps.user,
        }
        return {unit: of_kind[unit] for unit in UNIT_KINDS if of_kind[unit] > 0.0}


class CohortSection(_Section):
    """``[cohort]``: with whom."""

    min_silos: Annotated[int, Field(ge=3)] = 3
    """Least n: silos of a round's cohort."""
    min_threshold: Annotated[int, Field(ge=3)] = 3
    """Least t: silos that open a sum together."""
    min_survivors: Annotated[int, Field(ge=3)] = 3
    """Least n_min, the number of silos that a released sum holds."""
    min_colluding: Annotated[int, Field(ge=1)] = 1
    """Least c: silos that may collude with the coordinator and learn nothing more."""
    partners: tuple[SiloId, ...] | None = None
    """When present, nobody else may be in a cohort with this silo."""


class SecureAggregationSection(_Section):
    """``[secure_aggregation]``: by which masks, and which digests of what is uploaded."""

    suites: tuple[SuiteName, ...] = ("v2",)
    """Suites that a run may have."""
    accept_v1: bool = False
    """Suite ``v1`` needs this beside its name: what is recorded of such a run can be opened by a
    quantum computer later."""
    digests: tuple[DigestName, ...] = ("sha256",)
    """Hashes that the digest tree of an upload may be made with; ``blake3`` is no FIPS hash."""

    @property
    def accepted(self) -> frozenset[int]:
        """The suites that are accepted, as descriptors number them."""
        named = {SUITES[name] for name in self.suites}
        return frozenset(named if self.accept_v1 else named - {suite.SUITE})

    def accepts_digest(self, digest_id: int) -> bool:
        """Whether uploads may be hashed so."""
        return digest_tree.DIGESTS.get(digest_id) in self.digests


class Hours(_Section):
    """A daily window in UTC; one that ends before it begins runs past midnight."""

    begin: time
    """First minute of it."""
    end: time
    """First minute after it."""

    def contains(self, moment: time) -> bool:
        """Whether a time of day in UTC lies in the window."""
        if self.begin <= self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end


class ScheduleSection(_Section):
    """``[schedule]``: when a new round may begin here."""

    hours_utc: str | None = None
    """``HH:MM-HH:MM`` in UTC; at any time when absent."""

    @field_validator("hours_utc")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None and _HOURS.fullmatch(value) is None:
            raise ValueError(f"{value!r} is not HH:MM-HH:MM")
        return value

    @property
    def hours(self) -> Hours | None:
        """The window, if there is one."""
        match = _HOURS.fullmatch(self.hours_utc or "")
        if match is None:
            return None
        first_hour, first_minute, last_hour, last_minute = map(int, match.groups())
        return Hours(begin=time(first_hour, first_minute), end=time(last_hour, last_minute))


class FactsSection(_Section):
    """``[facts]``: what this site says about itself to whoever plans rounds."""

    publish: Annotated[tuple[FactName, ...], Field(max_length=5)] = ()
    """Facts that the daemon publishes, by name; none when empty. `chorale-silo facts` shows what
    each would say."""

    @field_validator("publish")
    @classmethod
    def _distinct(cls, value: tuple[FactName, ...]) -> tuple[FactName, ...]:
        if len(set(value)) != len(value):
            raise ValueError("name each fact once")
        return value


class LimitsSection(_Section):
    """``[limits]``: how much."""

    max_rounds: Count = 0
    """Most rounds of one run."""
    max_local_epochs: Annotated[int, Field(ge=1)] | None = None
    """Most local epochs of one round; no limit when absent."""
    max_episodes_per_round: Count = 0
    """Most episodes explored in one round."""
    min_episodes_per_round: Count | None = None
    """Least episodes explored in one round; mode ``none`` must find it named, every other mode has
    no floor without it."""
    min_tasks_per_round: Count | None = None
    """Least tasks that a round's episodes are tries at; mode ``none`` must find it named too."""
    max_dimension: Count = MAX_DIMENSION
    """Most coordinates of one upload, without its metrics."""
    max_attempts_per_round: Count = 8
    """Most attempts at one sum; each one that reaches the upload is charged."""
    min_ready_after_s: Count = 0
    """Least time that a plan must keep a silo's ready report back, so that it tells nothing of how
    long local work took."""
    min_step_answer_after_s: Count = 0
    """The same for the sum of unit gradients of a step, in ``record_distributed``."""
    max_attempts_per_day: Count = 0
    """Most attempts that reach the upload, and local trainings, in one UTC day; each is charged."""
    max_preflights_per_day: Annotated[int, Field(ge=0, le=1000)] = 20
    """Most pre-flights that are judged in one UTC day, over all plans and tokens; beyond them, and
    at 0 always, each is answered that this silo was asked too often."""
    max_local_hours_per_round: Annotated[float, Field(gt=0)] | None = None
    """Most wall time of one round's local work, and of what a plan may give it; no limit when
    absent. In the record-level modes ``ready_after_s`` of the plan, which is shorter, ends it."""
    max_disk_bytes: Annotated[int, Field(gt=0)] | None = None
    """Most that the data directory may hold when local work begins, without what has a size that
    follows from data (``silo_agent/machine/limits.py``); no limit when absent."""
    max_kept_runs: Annotated[int, Field(gt=0)] = 64
    """Most runs whose stores of successes, and personal adapters, stay in the data directory."""
    gpus: Annotated[tuple[Count, ...], Field(max_length=64)] | None = None
    """GPUs that may be used, by index; none when empty, all when absent."""

    @field_validator("gpus")
    @classmethod
    def _distinct(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("name each GPU once")
        return value


class OffersSection(_Section):
    """``[offers]``: which counter-offers this site makes; none unless it says so.

    An offer is made to a plan whose ``[negotiation]`` asks for it, where a rule refuses that the
    offer would satisfy. It tells the coordinator's admin how far that rule lets a plan go.
    """

    local_epochs: bool = False
    """Fewer local epochs: tells ``limits.max_local_epochs``."""
    start: bool = False
    """A later start: tells when ``schedule.hours_utc`` begins."""
    epsilon: bool = False
    """A lower ε of the run: tells to a quarter what ``max_epsilon_per_run``, ``epsilon_caps``, what
    is left of them, and ``min_noise_multiplier`` come to for the plan."""


class Policy(_Section):
    """Everything a site decided."""

    policy: PolicySection = PolicySection()
    """How tasks are approved."""
    models: ModelsSection = ModelsSection()
    """On which base models."""
    environments: EnvironmentsSection = EnvironmentsSection()
    """In which environments."""
    methods: MethodsSection = MethodsSection()
    """By which methods."""
    privacy: PrivacySection = PrivacySection()
    """Under which protection."""
    secure_aggregation: SecureAggregationSection = SecureAggregationSection()
    """By which masks."""
    cohort: CohortSection = CohortSection()
    """With whom a sum may be made."""
    schedule: ScheduleSection = ScheduleSection()
    """When a round may begin."""
    facts: FactsSection = FactsSection()
    """What it says about itself."""
    limits: LimitsSection = LimitsSection()
    """How much a run may ask for."""
    offers: OffersSection = OffersSection()
    """Which counter-offers are made where it asks for more."""

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a policy file.

        Raises:
            PolicyFileError: With every problem found.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise PolicyFileError(
                f"cannot read {path} ({error}): write one with `chorale-silo policy init`"
            ) from error
        try:
            return cls.parse(content)
        except PolicyFileError as error:
            raise PolicyFileError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, toml_bytes: bytes) -> Policy:
        """Read a policy from TOML.

        Raises:
            PolicyFileError: With every problem found.
        """
        try:
            return cls.model_validate(tuples_of(parse_toml(toml_bytes)))
        except TomlError as error:
            raise PolicyFileError(str(error)) from error
        except ValidationError as error:
            raise PolicyFileError(_problems(error)) from error


def _problems(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in item["loc"]) or "policy"
        unknown = item["type"] == "extra_forbidden"
        text = "unknown key" if unknown else item["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text}")
    return "; ".join(lines)
