"""What an experiment claims to find out, written down before it runs.

::

    name = "words-again"
    experiment = "words.toml"            # relative to this file
    seeds = [60, 61, 62]
    secondary = ["unfiltered"]           # may run; nothing is claimed of it

    [stopping]
    rule = "Every seed once; a run that fails is run again with its seed; nothing is added."
    runs = 6                             # of the settings that hypotheses name

    [[hypothesis]]
    name = "together-beats-alone"
    setting = "together"
    reference = "alone"
    direction = "above"                  # setting − reference lies above the target, or below it
    target = 0.0                         # a rate
    figure = { tasks = "all", temperature = 1.0, round = "last" }

``register`` resolves it: the digest of the experiment's file, each run's own, and each panel's. The
committed file is JSON, ``{"digest", "registration"}``; the digest is SHA-256 over the domain and
the registration as canonical JSON (sorted keys, no blanks, ASCII).

Invariants:
    1. A file whose digest is not its content's is refused.
    2. What is written once is never written over with anything else.
    3. ``stopping.runs`` is the number of settings that hypotheses name times the number of seeds.

Covered: reading, writing, digests. Not covered: what the experiment's file says (``register.py``);
when it was written down: that is for whoever commits it to show.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from federation.errors import TomlError
from federation.plan.toml import parse_toml
from lab.evidence.errors import RegistrationError
from lab.evidence.figure import Figure
from lab.experiment.checked import validated
from lab.experiment.errors import ExperimentFileError
from lab.experiment.tables import EnvironmentName, Purpose, Section, Seed, Slug
from ops.files import replace_file

__all__ = [
    "Draft",
    "Hypothesis",
    "PanelOf",
    "Registration",
    "RunOf",
    "Stopping",
    "read_draft",
    "read_registration",
    "setting_of",
    "write_registration",
]

MAX_BYTES: Final = 1 << 20
_DOMAIN: Final = b"chorale/lab-registration/v1\0"
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Row = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]{0,63}( \((global|personal|chosen|alone)\))?$")
]
"""A setting, or its adapters of one kind, as a report names its rows."""


class Stopping(Section):
    """``[stopping]``: what ends the experiment."""

    rule: Annotated[str, Field(min_length=1, max_length=2000)]
    """In words."""
    runs: Annotated[int, Field(ge=1, le=1_000_000)]
    """Of settings that hypotheses name, each at every seed."""


class Hypothesis(Section):
    """``[[hypothesis]]``: one difference, and where it is expected to lie."""

    name: Slug
    """Unique in the file."""
    setting: _Row
    """The first."""
    reference: _Row
    """The second."""
    direction: Literal["above", "below"]
    """On which side of the target setting − reference lies."""
    target: Annotated[float, Field(ge=-1, le=1)]
    """As a rate: −0.05 with ``above`` is not worse by five points."""
    figure: Figure = Figure()
    """Where success is read."""

    @property
    def settings(self) -> tuple[str, str]:
        """Both, without the kind of adapter."""
        return setting_of(self.setting), setting_of(self.reference)


class _Planned(Section):
    """What a draft and a registration both say."""

    name: Slug
    """What reports call it."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000)]
    """Each setting is run once for each."""
    secondary: Annotated[tuple[Slug, ...], Field(max_length=1000)] = ()
    """Settings that may run and of which nothing is claimed."""
    stopping: Stopping
    """What ends it."""
    hypothesis: Annotated[tuple[Hypothesis, ...], Field(min_length=1, max_length=64)]
    """What is claimed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, names in (
            ("seeds", self.seeds),
            ("secondary", self.secondary),
            ("hypothesis", [one.name for one in self.hypothesis]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{key}: one of them appears twice")
        for one in self.hypothesis:
            if one.setting == one.reference:
                raise ValueError(f"hypothesis {one.name!r} compares a setting with itself")
        if both := sorted({*self.primary} & {*self.secondary}):
            raise ValueError(f"secondary: a hypothesis is about {both[0]!r}")
        if self.stopping.runs != (needed := len(self.primary) * len(self.seeds)):
            raise ValueError(
                f"stopping.runs: {len(self.primary)} settings at {len(self.seeds)} seeds are "
                f"{needed} runs"
            )
        return self

    @property
    def primary(self) -> tuple[str, ...]:
        """The settings that hypotheses name, in their order."""
        return tuple(dict.fromkeys(name for one in self.hypothesis for name in one.settings))


class Draft(_Planned):
    """The TOML file."""

    experiment: Annotated[str, Field(min_length=1, max_length=512)]
    """The experiment's file, relative to this one."""


class PanelOf(Section):
    """The tasks of one environment that is judged on."""

    tasks: Annotated[int, Field(ge=1, le=100_000)]
    """How many."""
    sha256: _Sha256
    """Of ids and openings."""


class RunOf(Section):
    """One run as it was registered."""

    setting: Slug
    """Its row."""
    seed: Seed
    """Its seed."""
    sha256: _Sha256
    """Of everything that decides its result."""


class Registration(_Planned):
    """The committed file."""

    schema_version: Literal[1] = 1
    """Of this form."""
    experiment: Slug
    """The experiment's name."""
    experiment_sha256: _Sha256
    """Of its file."""
    purpose: Purpose | None
    """What its panels are for."""
    panels: Annotated[dict[EnvironmentName, PanelOf], Field(min_length=1, max_length=64)]
    """By environment."""
    runs: Annotated[tuple[RunOf, ...], Field(min_length=1, max_length=1_000_000)]
    """Every setting, secondary ones too, at every seed."""

    @property
    def digest(self) -> str:
        """Identity of the registration, 64 hexadecimal digits."""
        return _digest(self.model_dump(mode="json"))

    def sha256_of(self, setting: str, seed: int) -> str | None:
        """Which run a setting is at a seed; None where none was registered."""
        for run in self.runs:
            if (run.setting, run.seed) == (setting, seed):
                return run.sha256
        return None


def setting_of(row: str) -> str:
    """The setting of a report's row: ``fedse (personal)`` is of ``fedse``."""
    return row.partition(" (")[0]


def read_draft(path: Path) -> Draft:
    """Read and check a draft, TOML of at most 1 MiB.

    Raises:
        RegistrationError: With every problem found.
    """
    try:
        document = parse_toml(path.read_bytes(), max_bytes=MAX_BYTES)
        return validated(Draft, document, prefix="")
    except (OSError, TomlError) as error:
        raise RegistrationError([f"{path}: {error}"]) from error
    except ExperimentFileError as error:
        raise RegistrationError([f"{path}: {problem}" for problem in error.problems]) from error


def read_registration(path: Path) -> Registration:
    """Read a registration that ``write_registration`` wrote.

    Raises:
        RegistrationError: It is none, or not the one that its digest is of.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise RegistrationError([f"{path}: larger than {MAX_BYTES} bytes"])
        content = json.loads(text, object_pairs_hook=_unique)
        kept = content["registration"]
        registration = Registration.model_validate_json(json.dumps(kept))
        told = content["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise RegistrationError([f"{path}: no registration: {error}"]) from error
    if told != registration.digest or told != _digest(kept) or content.keys() != _FILE_KEYS:
        raise RegistrationError(
            [f"{path}: its digest is not that of its content: it was changed after it was written"]
        )
    return registration


def write_registration(path: Path, registration: Registration) -> bool:
    """Write a registration; False where the very same is there already.

    Raises:
        RegistrationError: Something else is there.
    """
    content = {"digest": registration.digest, "registration": registration.model_dump(mode="json")}
    text = (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    if len(text) > MAX_BYTES:
        raise RegistrationError(
            [f"a registration is at most {MAX_BYTES} bytes, and this is longer"]
        )
    if path.exists():
        if path.read_bytes() == text:
            return False
        raise RegistrationError(
            [f"{path} holds another registration: what is registered is not changed; give --out"]
        )
    # It is to be committed, and is no secret.
    replace_file(path, (text,), mode=0o644)
    return True


_FILE_KEYS: Final = {"digest": "", "registration": ""}.keys()


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(_DOMAIN + text.encode("ascii")).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key appears twice")
    return content
