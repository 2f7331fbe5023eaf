"""``silo.toml``: what one silo daemon runs with.

::

    policy_file = "policy.toml"          # relative paths are relative to the data directory
    base_model = "base"                  # a directory, or a model id that is in the local cache
    probes_listen = "127.0.0.1:0"
    threads = 2
    evaluate = true
    environments = [{ environment = "craft", shard_index = 0, shard_count = 4 }]
                                         # and declared_tasks = 400, if plans are held against it
                                         # and variant = { kind = "field-subset", index = 3 }, where
                                         # the environment has stages: ``evolution/envs/variants``

    plugins = ["chess"]                  # environments of installed packages

    [evolve]                             # options of whatever recipe: evolution/methods/options.py
    buffer_capacity = 20000

    [rollout]                            # what plays the episodes: ``evolution/rollout/engine.py``
    kind = "hf"

    [training]                           # on what is trained: ``evolution/train/trainer.py``
    micro_batch_tokens = 8192

    [guard]                              # judges adopted adapters: ``evolution/guard/options.py``
    serve_dir = "served"

    [foreign."openenv:calendar"]         # an environment server: ``evolution/envs/foreign/spec.py``
    url = "ws://127.0.0.1:8001/ws"
    ...

Invariants:

1. An unknown key is an error, in the file and in the environment.
2. ``CHORALE_SILO_<KEY>`` overrides the file, for example ``CHORALE_SILO_THREADS=4``; tables and
   lists are written as JSON there.
3. No secret is in it. Keys live in files of their own that only the daemon's user can read.
4. The tables whose keys are another module's dataclass (environments described here, engine,
   trainer) are checked as strictly as the rest: JSON types, no coercion, no NaN. An unknown key
   names the nearest known one, and every problem is told at once.
5. An environment that the silo does not have, built in, plugged in or described, is an error here
   and not in a round. A described one may not have a name that another has.
6. Without a base model the digest is 32 zero bytes: only a plan that names this digest, and a
   policy that lists it, fit such a silo.

Covered: the file, the environment, finding the base model. Not covered: fetching a model; put it on
the machine first.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from evolution.envs.catalogue import Catalogue
from evolution.envs.foreign.spec import KINDS, ForeignSpec, kind_of
from evolution.envs.tasks import Shard
from evolution.envs.variants.spec import VariantSpec
from evolution.errors import BaseModelError, EnvironmentFailureError
from evolution.guard.options import GuardSection
from evolution.methods.evolver import Assignment
from evolution.model.identity import base_sha256
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import TrainerSpec
from federation.errors import TomlError
from federation.plan.families import CONSTANT, family_of_name
from federation.plan.recipe import Recipe
from federation.plan.toml import parse_toml
from ops.address import split_address
from ops.files import replace_file
from ops.settings import OverrideError, overridden
from silo_agent.errors import ConfigError, NoSiloError

if TYPE_CHECKING:
    from federation.plan.plan import Plan

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_PREFIX",
    "NO_BASE_MODEL",
    "EnvironmentEntry",
    "SiloConfig",
    "foreign_specs",
    "require_base_model",
    "spec_of",
    "write_starter",
]

CONFIG_FILE = "silo.toml"
_OLD_EVOLVE = "fed-se"
"""What the table of recipes' options was called when there was one recipe."""
ENVIRONMENT_PREFIX = "CHORALE_SILO_"
NO_BASE_MODEL = bytes(32)
"""Digest of a silo without a base model, for methods that need none."""
_ROUND_DIGITS = 2
_MAX_FOREIGN = 64
Options = Mapping[str, str | int | float]
SpecT = TypeVar("SpecT")
ModelT = TypeVar("ModelT", bound=BaseModel)


class EnvironmentEntry(BaseModel):
    """One environment the silo explores, and its share of the tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str
    """A name of the silo's catalogue."""
    shard_index: Annotated[int, Field(ge=0)] | None = None
    """Which share, counted from 0; all tasks when absent."""
    shard_count: Annotated[int, Field(ge=1)] | None = None
    """How many shares there are."""
    declared_tasks: Annotated[int, Field(ge=1)] | None = None
    """How many tasks of a round may be asked for: a round number of the operator's choice, which a
    refusal may tell. No comparison is made when absent."""
    variant: VariantSpec | None = None
    """What this silo's own differs in; nobody outside is told. As everybody has it when absent."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.shard_index is None) != (self.shard_count is None):
            raise ValueError("shard_index and shard_count go together")
        if self.shard_index is not None and self.shard_index >= (self.shard_count or 0):
            raise ValueError(f"there is no shard {self.shard_index} of {self.shard_count}")
        if len(str(self.declared_tasks or 0).rstrip("0")) > _ROUND_DIGITS:
            raise ValueError(
                f"declared_tasks = {self.declared_tasks} is no round number and may tell how many "
                f"tasks there are: write {_ROUND_DIGITS} digits and then zeros, such as 400"
            )
        return self

    def assignment(self) -> Assignment:
        """The form the evolution methods read."""
        if self.shard_index is None or self.shard_count is None:
            return Assignment(environment=self.environment)
        shard = Shard(index=self.shard_index, count=self.shard_count)
        return Assignment(environment=self.environment, shard=shard)


class SiloConfig(BaseModel):
    """The configuration of one daemon; ``load`` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data_dir: Path
    """Keys, ledger, memory, reports; paths in this file are relative to it."""
    policy_file: Path = Path("policy.toml")
    """What this site allows."""
    base_model: Path | None = None
    """Directory of the base model, or the id of one that is in the local cache; none when absent,
    which only a plan that needs none fits."""
    probes_listen: str = "127.0.0.1:0"
    """``host:port`` of probes and metrics; port 0 is written to ``probes.address``."""
    probes_certificate: Path | None = None
    """PEM: TLS for the probes; a relative path is below the data directory."""
    probes_key: Path | None = None
    """PEM: the key of ``probes_certificate``."""
    probes_token_file: Path | None = None
    """What a scraper of /metrics shows as its bearer token; needed, with TLS, beyond loopback."""
    environments: tuple[EnvironmentEntry, ...] = ()
    """What is explored here."""
    plugins: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    """Environments of installed packages that this silo has."""
    foreign: dict[str, ForeignSpec] = {}
    """Environments that the operator describes, by name."""
    rollout: EngineSpec = EngineSpec()
    """What plays the episodes."""
    training: TrainerSpec = TrainerSpec()
    """On what is trained."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of the learning framework."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """This silo's own, for which tasks it draws and in which order it trains."""
    evaluate: bool = True
    """Whether adopted adapters are judged on held-out tasks when a plan asks for it."""
    held_out_offset: Annotated[int, Field(ge=0)] = 0
    """Where in the held-out tasks the evaluation starts."""
    guard: GuardSection | None = None
    """What this site serves of what it adopts; nothing is judged for that when absent."""
    constant: dict[str, str | int | float] = {}
    """Options of the test method ``constant``: ``value``, ``family``, ``episodes``, ``successes``
    and ``units``."""
    evolve: dict[str, str | int | float] = {}
    """What the silo chooses by itself for any method that explores."""

    @classmethod
    def load(cls, data_dir: Path) -> SiloConfig:
        """Read ``silo.toml`` of a data directory and the environment.

        Raises:
            NoSiloError: There is none.
            ConfigError: With every problem found.
        """
        path = data_dir / CONFIG_FILE
        document = _document(path)
        document.setdefault("data_dir", str(data_dir))
        if _OLD_EVOLVE in document:
            if "evolve" in document:
                raise ConfigError(f"{path}: [evolve] and [{_OLD_EVOLVE}] are one table: join them")
            document["evolve"] = document.pop(_OLD_EVOLVE)
        _require_known_environment()
        try:
            return cls(**overridden(cls, document, prefix=ENVIRONMENT_PREFIX))
        except ValidationError as error:
            raise ConfigError(f"{path}: {'; '.join(_problems(error, cls))}") from error
        except OverrideError as error:
            raise ConfigError(f"the environment overrides {path}: {error}") from error

    @field_validator("probes_listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("environments", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A bare name stands for all tasks of that environment."""
        if isinstance(value, list | tuple):
            return tuple({"environment": v} if isinstance(v, str) else v for v in value)
        return value

    @field_validator("foreign", mode="before")
    @classmethod
    def _foreign(cls, value: Any) -> Any:
        return foreign_specs(value)

    @field_validator("rollout", mode="before")
    @classmethod
    def _rollout(cls, value: Any, info: ValidationInfo) -> Any:
        return spec_of(EngineSpec, value, directory=info.data.get("data_dir"))

    @field_validator("training", mode="before")
    @classmethod
    def _training(cls, value: Any, info: ValidationInfo) -> Any:
        return spec_of(TrainerSpec, value, directory=info.data.get("data_dir"))

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        data_dir = self.data_dir.expanduser().absolute()
        object.__setattr__(self, "data_dir", data_dir)
        object.__setattr__(self, "policy_file", data_dir / self.policy_file.expanduser())
        if (self.probes_certificate is None) != (self.probes_key is None):
            raise ValueError("probes_certificate and probes_key go together")
        for name in ("probes_certificate", "probes_key", "probes_token_file"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, data_dir / path.expanduser())
        if self.base_model is not None:
            object.__setattr__(self, "base_model", _base_directory(data_dir, self.base_model))
        if self.guard is not None:
            object.__setattr__(self, "guard", self.guard.below(data_dir))
        names = [entry.environment for entry in self.environments]
        if len(set(names)) != len(names):
            raise ValueError("environments: name each environment once")
        self._require_environments()
        return self

    def _require_environments(self) -> None:
        try:
            catalogue = self.catalogue()
            for entry in self.environments:
                if entry.environment not in catalogue:
                    known = ", ".join(catalogue.names)
                    raise ValueError(f"unknown environment {entry.environment!r}; known: {known}")
                catalogue.require_shards(entry.environment, entry.shard_count or 1)
                if entry.variant is not None:
                    catalogue.require_variant(entry.environment, entry.variant)
            if self.guard is not None:
                self.guard.require_known(catalogue.names)
        except EnvironmentFailureError as error:
            raise ValueError(f"environments: {error}") from error

    @cached_property
    def _catalogue(self) -> Catalogue:
        variants = {e.environment: e.variant for e in self.environments if e.variant is not None}
        return Catalogue(plugins=self.plugins, foreign=self.foreign, variants=variants)

    def catalogue(self) -> Catalogue:
        """The environments this silo has; always the same object.

        Raises:
            EnvironmentPluginError: No installed package has one of the plugins.
        """
        return self._catalogue

    @cached_property
    def _base_sha256(self) -> bytes:
        if self.base_model is None:
            return NO_BASE_MODEL
        try:
            return bytes.fromhex(base_sha256(self.base_model))
        except BaseModelError as error:
            raise ConfigError(str(error)) from error

    def base_sha256(self) -> bytes:
        """Digest of the base model's files, computed once.

        Raises:
            ConfigError: The directory is no base model.
        """
        return self._base_sha256

    def assignments(self) -> tuple[Assignment, ...]:
        """What the silo explores."""
        return tuple(entry.assignment() for entry in self.environments)

    def families(self, plan: Plan | None = None) -> tuple[str, ...]:
        """Environment families this silo declares to the coordinator: public.

        Of a plan it declares what that calls the environments which it has as well, whatever their
        family here; and the constant one where nothing is explored.

        Raises:
            ConfigError: An installed package's environment cannot be used.
        """
        explored = {entry.environment for entry in self.environments}
        try:
            names = {self.catalogue().family(name) for name in explored}
        except EnvironmentFailureError as error:
            raise ConfigError(str(error)) from error
        if "family" in self.constant:
            names.add(str(self.constant["family"]))
        if plan is not None:
            names.update(map(family_of_name, explored & set(plan.evolve.environments)))
            if not plan.needs_tasks and not plan.evolve.environments:
                names.add(CONSTANT)
        return tuple(sorted(names))

    def options(self, recipe: Recipe) -> Options:
        """The options of a plan's method; empty for one without a table."""
        if recipe.parts:
            return self.evolve
        return self.constant if recipe.method.name == "constant" else {}


def require_base_model(base_model: str) -> str:
    """What a new silo.toml is to say of a base model that was named on the command line.

    A directory is relative to where the command was typed, and comes back absolute.

    Raises:
        ConfigError: It is no directory, and no model in the local cache.
    """
    directory = Path.cwd() / Path(base_model).expanduser()
    if directory.is_dir():
        return str(directory)
    try:
        _base_directory(Path.cwd(), Path(base_model))
    except ValueError as error:
        raise ConfigError(f"{error}; nothing was sent or written") from error
    return base_model


def write_starter(data_dir: Path, *, base_model: str | None = None) -> bool:
    """Write a commented ``silo.toml``; False if there is one, which is left as it is."""
    path = data_dir / CONFIG_FILE
    if path.exists():
        return False
    # A JSON string is a TOML string as well.
    model = f"base_model = {json.dumps(base_model)}" if base_model else '# base_model = "/models/x"'
    replace_file(path, (_STARTER.format(base_model=model).encode(),))
    return True


def foreign_specs(tables: Any) -> dict[str, ForeignSpec]:
    """The tables ``[foreign."kind:alias"]``.

    Specs among them are taken as they are.

    Raises:
        ValueError: With every problem found.
    """
    if not isinstance(tables, Mapping) or len(tables) > _MAX_FOREIGN:
        raise ValueError(f"expected at most {_MAX_FOREIGN} tables, one for each environment")
    specs: dict[str, ForeignSpec] = {}
    wrong: list[str] = []
    for name, table in tables.items():
        try:
            specs[name] = table if isinstance(table, ForeignSpec) else _foreign_spec(name, table)
        except ValueError as error:
            wrong.append(f'"{name}": {error}')
    if wrong:
        raise ValueError("; ".join(wrong))
    return specs


def spec_of(kind: type[SpecT], table: Any, *, directory: Path | None = None) -> SpecT:
    """A frozen dataclass of a table as TOML gave it, with the dataclass's fields as keys.

    Annotations and defaults are what is checked; a ready ``kind`` is taken as it is. Relative paths
    are relative to ``directory``.

    Raises:
        ValueError: With every problem found.
    """
    if isinstance(table, kind):
        return table
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {
        item.name: (hints[item.name], _default(item)) for item in dataclasses.fields(kind)
    }
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model = create_model(kind.__name__, __config__=strict, **fields)
    checked = _validated(model, table)
    values = {name: getattr(checked, name) for name in hints}
    if directory is not None:
        values = {
            name: _below(directory, value) if isinstance(value, Path) else value
            for name, value in values.items()
        }
    return kind(**values)


def _document(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_bytes())
    except FileNotFoundError as error:
        raise NoSiloError(
            f"{path.parent} is no silo's data directory, for {path} does not exist: "
            f"`chorale-silo join - --data {path.parent}` makes one"
        ) from error
    except (OSError, TomlError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _require_known_environment() -> None:
    known = {name.upper() for name in SiloConfig.model_fields}
    # The CLI's own variable says where the data directory is.
    known.add("DATA")
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX)
            if key not in known:
                raise ConfigError(f"the environment variable {name} overrides no key of silo.toml")


def _nearest_key(key: str, known: Collection[str]) -> str:
    """What an unknown key was probably meant to be, as a part of a message."""
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
    nearest = f"nearest: {close[0]}; " if close else ""
    return f"unknown key ({nearest}known: {', '.join(sorted(known))})"


def _problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each problem, with the known keys of the table it is in."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            text = _nearest_key(str(item["loc"][-1]), _keys(model, item["loc"][:-1]))
        else:
            text = item["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text}" if path else text)
    return lines


def _foreign_spec(name: str, table: Any) -> ForeignSpec:
    kind, alias = kind_of(name)
    if not isinstance(table, Mapping):
        raise ValueError("not a table")  # noqa: TRY004  # a problem of the file, told with the others
    if "name" in table:
        raise ValueError("name: the name is the table's own, between the quotes")
    return _validated(KINDS[kind], {"family": alias, **table, "name": name})


def _validated(model: type[ModelT], table: Any) -> ModelT:
    try:
        # As JSON, because a strict model takes arrays and paths from it, and nothing is coerced.
        text = json.dumps(table)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value has no place in this table: {error}") from error
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error, model))) from error


def _below(directory: Path, path: Path) -> Path:
    return (directory.expanduser() / path.expanduser()).absolute()


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default is not dataclasses.MISSING:
        return item.default
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return ...


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    """The keys of the table at a path; those of the outermost model where it has no model."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field else []
        if inner:
            model = inner[0]
    return {key for key, field in model.model_fields.items() if not field.exclude}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def _base_directory(data_dir: Path, base_model: Path) -> Path:
    directory = data_dir / base_model.expanduser()
    if directory.is_dir():
        return directory
    if base_model.is_absolute() or len(base_model.parts) != 2:
        raise ValueError(f"base_model: {directory} is no directory")
    return _cached(str(base_model))


def _cached(model_id: str) -> Path:
    # Imported only for a model id, because a directory needs nothing of it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_id, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise ValueError(
            f"base_model: {model_id!r} is neither a directory nor a model in the local cache; "
            f"download it first, for example with `hf download {model_id}`"
        ) from error


_STARTER = """\
# What this silo daemon runs with. What it may take part in is a matter of policy.toml.
# Every key can be overridden by CHORALE_SILO_<KEY>; an unknown key is an error.

# A directory, relative to this file, or a model id that is in the local cache.
{base_model}

# What is explored here. One entry, for all tasks:
#   environments = ["craft"]
# or one share of four of its tasks:
#   environments = [{{ environment = "craft", shard_index = 0, shard_count = 4 }}]
# With declared_tasks in an entry a plan is refused that needs more tasks of it in a round. Write a
# round number: the refusal tells it, and how many tasks there are is nobody's to know.
#   environments = [{{ environment = "craft", declared_tasks = 400 }}]
environments = []

# Environments of installed packages (entry points "chorale.environments"), by name:
#   plugins = ["chess"]
# Others are described in tables [foreign."kind:alias"]; kinds: openenv, agentgym, gym,
# reasoning-gym, textworld, trl, harness. Examples are in docs/environments.md and docs/gateway.md.
# What plays the episodes is chosen in [rollout], on what is trained in [training].

# Judge every adopted adapter on held-out tasks when a plan asks for it.
evaluate = true
# Judge it on probes of this site's own before its server reads it: [guard], docs/guard.md.

# Threads of the learning framework.
threads = 1

# Probes and metrics. Port 0 lets the system choose and writes it to probes.address; set a fixed
# port for Prometheus. Plain HTTP, or TLS with a certificate and a key (PEM):
#   probes_certificate = "probes.pem"
#   probes_key = "probes.key"
# Beyond loopback /metrics is shown over TLS, and to whoever has the token of a file:
#   probes_token_file = "probes.token"
probes_listen = "127.0.0.1:0"
"""
