"""``policy.toml``: what this site allows. Default deny.

Invariants:

1. Every list defaults to empty, and clip, epsilon per run, rounds and episodes to zero: an empty
   file refuses everything, for more than one reason.
2. An unknown key, a value of another type, NaN or an infinity is an error, and the daemon does not
   start on it. Nothing is coerced.
3. ``modes`` must list ``none`` by name for a run without noise to be accepted.
4. ``epsilon_cap`` and ``delta`` are the silo's own; a plan cannot change them.

Covered: reading, the starter file, a file that allows exactly one plan. Not covered: the verdicts
(``policy.py``), approval by hand.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from federation.plan import Plan
from secagg.bounds import MAX_DIMENSION
from silo_agent.errors import PolicyFileError

__all__ = ["Hours", "Policy", "write_default", "write_for_plan"]

ModeName = Literal["none", "silo", "record_local", "record_distributed"]
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SiloId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_MAX_FILE_BYTES = 256 << 10


class _Section(BaseModel):
    """One table: frozen, strict, closed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class PolicySection(_Section):
    """``[policy]``: how tasks are approved."""

    approval: str = "auto"
    """``auto`` accepts what every rule allows."""

    @field_validator("approval")
    @classmethod
    def _available(cls, value: str) -> str:
        if value == "manual":
            raise ValueError("approval by hand is not available yet: use 'auto'")
        if value != "auto":
            raise ValueError(f"unknown approval {value!r}: use 'auto'")
        return value


class ModelsSection(_Section):
    """``[models]``."""

    allowed: tuple[Sha256Hex, ...] = ()
    """SHA-256 of each base model that may be adapted."""


class EnvironmentsSection(_Section):
    """``[environments]``."""

    allowed: tuple[str, ...] = ()
    """Environments that a plan may name."""


class MethodsSection(_Section):
    """``[methods]``."""

    evolvers: tuple[str, ...] = ()
    """Evolution methods that may run here."""
    aggregation: tuple[str, ...] = ()
    """Aggregation methods that may be taken part in."""


class PrivacySection(_Section):
    """``[privacy]``."""

    modes: tuple[ModeName, ...] = ()
    """Privacy modes that are acceptable; ``none`` only if it is written here."""
    max_epsilon_per_run: Number | Literal["unlimited"] = 0.0
    """Largest ε of one run with all its spare attempts, at this file's δ."""
    min_noise_multiplier: Number = 0.0
    """Least z of the delta and of the metrics block, in every mode with noise."""
    max_clip_l2: Number = 0.0
    """Largest clip C."""
    epsilon_cap: Annotated[float, Field(gt=0)] = 1.0
    """ε that everything this silo ever takes part in may add up to."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ at which every ε here is computed."""


class CohortSection(_Section):
    """``[cohort]``: with whom."""

    min_silos: Annotated[int, Field(ge=3)] = 3
    """Least n."""
    min_threshold: Annotated[int, Field(ge=3)] = 3
    """Least t."""
    min_survivors: Annotated[int, Field(ge=3)] = 3
    """Least n_min, the number of silos that a released sum holds."""
    min_colluding: Annotated[int, Field(ge=1)] = 1
    """Least c that must be withstood."""
    partners: tuple[SiloId, ...] | None = None
    """When present, nobody else may be in a cohort with this silo."""


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


class LimitsSection(_Section):
    """``[limits]``: how much."""

    max_rounds: Count = 0
    """Rounds of one run."""
    max_episodes_per_round: Count = 0
    """Episodes explored in one round."""
    max_dimension: Count = MAX_DIMENSION
    """Coordinates of one upload, without its metrics."""
    max_attempts_per_round: Count = 8
    """Attempts at one round; each one that reaches the upload is charged."""


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
    cohort: CohortSection = CohortSection()
    """With whom."""
    schedule: ScheduleSection = ScheduleSection()
    """When."""
    limits: LimitsSection = LimitsSection()
    """How much."""

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
        if len(toml_bytes) > _MAX_FILE_BYTES:
            raise PolicyFileError(f"a policy has at most {_MAX_FILE_BYTES} bytes")
        try:
            document = tomllib.loads(toml_bytes.decode())
        except (ValueError, RecursionError) as error:
            raise PolicyFileError(f"this is not TOML: {error}") from error
        try:
            return cls.model_validate(_tuples(document))
        except ValidationError as error:
            raise PolicyFileError(_problems(error)) from error


def write_default(path: Path) -> None:
    """Write a commented policy that refuses everything.

    Raises:
        PolicyFileError: There is a file, or it cannot be written.
    """
    _write(path, _NOTHING)


def write_for_plan(path: Path, plan: Plan) -> None:
    """Write a commented policy that allows what one plan asks for, and as little more as possible.

    It is a proposal: the operator reads it before the daemon does. It replaces the starter file
    that refuses everything, if nobody has edited that.

    Raises:
        PolicyFileError: There is a file, or it cannot be written.
    """
    privacy, rounds = plan.privacy, plan.rounds
    _remove_untouched_starter(path)
    _write(
        path,
        {
            "models": [plan.model.base_sha256],
            "environments": list(plan.evolve.environments),
            "evolvers": [plan.evolve.method],
            "aggregation": [plan.aggregation.method],
            "modes": [privacy.mode],
            "max_epsilon_per_run": privacy.epsilon_cap,
            "min_noise": min(privacy.noise_multiplier, privacy.metrics_noise_multiplier),
            "max_clip": privacy.clip_l2,
            "epsilon_cap": privacy.epsilon_cap,
            "delta": privacy.delta,
            "min_survivors": plan.secure_aggregation.n_min,
            "max_rounds": rounds.count,
            "max_episodes": plan.evolve.episodes_per_round,
            "max_dimension": MAX_DIMENSION,
            "max_attempts": 1 + rounds.charged_attempts - rounds.count,
        },
    )


def _remove_untouched_starter(path: Path) -> None:
    starter = _TEMPLATE.format_map({key: _toml(value) for key, value in _NOTHING.items()})
    try:
        if path.read_text() == starter:
            path.unlink()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"cannot replace {path}: {error}") from error


def _write(path: Path, values: Mapping[str, object]) -> None:
    # Every value is a number, a plain name or a list of those, which TOML and Python's JSON spell
    # alike; the result is parsed before it is written all the same.
    text = _TEMPLATE.format_map({key: _toml(value) for key, value in values.items()})
    Policy.parse(text.encode())
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise PolicyFileError(f"{path} exists: edit it, or move it away first") from error
    except OSError as error:
        raise PolicyFileError(f"cannot write {path}: {error}") from error


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _tuples(value: object) -> object:
    """TOML arrays as tuples, so that the strict and frozen model can hold them."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def _problems(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in item["loc"]) or "policy"
        unknown = item["type"] == "extra_forbidden"
        text = "unknown key" if unknown else item["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text}")
    return "; ".join(lines)


_NOTHING: Mapping[str, object] = {
    "models": [],
    "environments": [],
    "evolvers": [],
    "aggregation": [],
    "modes": [],
    "max_epsilon_per_run": 0.0,
    "min_noise": 0.0,
    "max_clip": 0.0,
    "epsilon_cap": 1.0,
    "delta": 1e-5,
    "min_survivors": 3,
    "max_rounds": 0,
    "max_episodes": 0,
    "max_dimension": 0,
    "max_attempts": 0,
}

_TEMPLATE = """\
# What this site allows. Everything that is not listed here is refused; an empty list allows
# nothing and a ceiling of 0 lets nothing pass. The daemon reads this file when it starts.
# `chorale-silo policy check PLAN.toml` gives the daemon's verdict on a plan, with the rule.

[policy]
# Accept whatever every rule below allows.
approval = "auto"

[models]
# SHA-256 of the base models that may be adapted; `chorale-silo status` shows yours.
allowed = {models}

[environments]
# Names that a plan may explore and be judged on.
allowed = {environments}

[methods]
evolvers = {evolvers}
aggregation = {aggregation}

[privacy]
# "silo" hides what this silo's whole data set contributed. "none" is masking without noise and is
# accepted only if it is written here.
modes = {modes}
# Largest epsilon of one run, spare attempts included, at the delta below; or "unlimited".
max_epsilon_per_run = {max_epsilon_per_run}
# Least noise multiplier z, of the update and of the metrics.
min_noise_multiplier = {min_noise}
# Largest L2 clip of an update.
max_clip_l2 = {max_clip}
# Epsilon that all runs together may ever cost. The ledger enforces it before every upload.
epsilon_cap = {epsilon_cap}
delta = {delta}

[cohort]
# Silos in a round, shares needed to open a sum, silos that a sum holds, colluders withstood.
min_silos = {min_survivors}
min_threshold = 3
min_survivors = {min_survivors}
min_colluding = 1
# With this line nobody else may be in a round with this silo:
# partners = ["hospital-b", "hospital-c", "hospital-d"]

[schedule]
# When a round may begin here, in UTC. A window may run past midnight.
# hours_utc = "20:00-06:00"

[limits]
max_rounds = {max_rounds}
max_episodes_per_round = {max_episodes}
max_dimension = {max_dimension}
max_attempts_per_round = {max_attempts}
"""
