"""An experiment file: read, checked, and turned into runs.

A run is one setting at one seed, with every value spelled out. Invariants:

1. Unknown keys are errors that name the key's path and the nearest valid key.
2. ``Run.sha256`` is the digest of everything that decides a run's result; two runs with one digest
   are the same run. Where the base model lies on the disk is not part of it, its content is.
3. Names of silos and of settings are unique, and every reference resolves before anything runs:
   environments, methods, shards, cohorts that are large enough for a sum.

Covered: the document. Not covered: names of aggregation methods and their options, which
``lab.aggregation`` refuses when a run begins (``runner.py`` asks it once for each before any run).

Errors: ``ExperimentFileError`` with one line for each problem.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

from federation.aggregate.registry import GROUP_METHODS, GROUP_OPTIMISERS
from federation.errors import TomlError
from federation.plan.toml import parse_toml
from lab.experiment.errors import ExperimentFileError
from lab.experiment.methods import LEAST_CLUSTER, METHODS
from lab.experiment.tables import (
    AggregationTable,
    Alpha,
    AttackTable,
    EvolveTable,
    GroupsTable,
    JudgeTable,
    NoiseTable,
    Rank,
    Rounds,
    Section,
    Seed,
    SettingTable,
    SiloTable,
    Slug,
    Sums,
)

__all__ = ["Experiment", "Run", "load_experiment", "read_run"]

MAX_FILE_BYTES: Final = 1 << 20
_MAX_SHOWN: Final = 60
ModelT = TypeVar("ModelT", bound=BaseModel)
OverriddenT = TypeVar("OverriddenT", EvolveTable, AggregationTable, NoiseTable)


class Run(Section):
    """One setting at one seed."""

    experiment: Slug
    """The file's ``name``."""
    setting: Slug
    """The row."""
    method: str
    """What is run."""
    seed: Seed
    """Decides everything random."""
    rounds: Rounds
    """How many."""
    base: str
    """Directory of the base model."""
    base_sha256: str
    """Its content."""
    rank: Rank
    """LoRA r."""
    alpha: Alpha
    """LoRA α."""
    sums: Sums
    """How vectors are summed."""
    evolve: EvolveTable
    """Local work."""
    aggregation: AggregationTable
    """What becomes of the sums."""
    noise: NoiseTable
    """Clip, grid, noise."""
    judge: JudgeTable
    """On what, and when."""
    silos: tuple[SiloTable, ...]
    """Who takes part."""
    groups: GroupsTable | None = None
    """Whose sums; None: one sum of all."""
    attack: AttackTable | None = None
    """Who does not keep to the protocol; None: nobody."""

    @property
    def sha256(self) -> str:
        """Identity of the run, 64 hexadecimal digits."""
        content = json.dumps(self.described(), sort_keys=True)
        return hashlib.sha256(b"chorale/lab-run/v1\0" + content.encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON; groups and attack only where there are any.

        So runs that were done before there were such keep their digests.
        """
        unset = {name for name in ("groups", "attack") if getattr(self, name) is None}
        return self.model_dump(mode="json", exclude={"base"} | unset)

    def judged_after(self, round_number: int, *, shared: bool) -> bool:
        """Whether adapters are judged after a round: shared ones, or each silo's or cluster's."""
        every = self.judge.every if shared else self.judge.silos_every
        return round_number == self.rounds or (every > 0 and round_number % every == 0)


class Experiment(Section):
    """The whole file."""

    name: Slug
    """What reports call it."""
    base: Annotated[str, Field(min_length=1, max_length=512)]
    """Directory of the base model, relative to the file."""
    rounds: Annotated[int, Field(ge=1, le=10_000)]
    """Of every setting that does not say otherwise."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000)]
    """Each setting is run once for each."""
    rank: Rank = 8
    """LoRA r."""
    alpha: Alpha = 16.0
    """LoRA α; the adapter is scaled by α/r."""
    sums: Sums = "plain"
    """``masked`` runs every sum through the real secure aggregation; the bits are the same."""
    evolve: EvolveTable = EvolveTable()
    """Local work."""
    aggregation: AggregationTable = AggregationTable()
    """What becomes of the sums."""
    noise: NoiseTable = NoiseTable()
    """Clip, grid, noise."""
    judge: JudgeTable = JudgeTable()
    """On what adapters are judged, and when."""
    silo: Annotated[tuple[SiloTable, ...], Field(min_length=1, max_length=200)]
    """Who takes part."""
    setting: Annotated[tuple[SettingTable, ...], Field(min_length=1, max_length=1000)]
    """The rows."""

    def runs(self, *, base_dir: Path, base_sha256: str) -> list[Run]:
        """Every run, seed by seed, so that what finishes first can be compared already.

        Raises:
            ExperimentFileError: An overridden key is wrong, or a setting cannot run.
        """
        problems: list[str] = []
        runs = []
        for index, row in enumerate(self.setting):
            try:
                one = self._resolve(row, index, base_dir=base_dir, base_sha256=base_sha256)
            except ExperimentFileError as error:
                problems += error.problems
                continue
            problems += [f"setting.{index}: {problem}" for problem in _unrunnable(one)]
            runs.append(one)
        if problems:
            raise ExperimentFileError(problems)
        return [run.model_copy(update={"seed": seed}) for seed in self.seeds for run in runs]

    def _resolve(self, row: SettingTable, index: int, *, base_dir: Path, base_sha256: str) -> Run:
        rounds = self.rounds if row.rounds is None else row.rounds
        if METHODS[row.method].topology == "none":
            rounds = 0
        return Run(
            experiment=self.name,
            setting=row.name,
            method=row.method,
            seed=self.seeds[0],
            rounds=rounds,
            base=str(base_dir),
            base_sha256=base_sha256,
            rank=self.rank if row.rank is None else row.rank,
            alpha=self.alpha if row.alpha is None else row.alpha,
            sums=self.sums if row.sums is None else row.sums,
            evolve=_overridden(self.evolve, row.evolve, f"setting.{index}.evolve"),
            aggregation=_overridden(
                self.aggregation, row.aggregation, f"setting.{index}.aggregation"
            ),
            noise=_overridden(self.noise, row.noise, f"setting.{index}.noise"),
            judge=self.judge,
            silos=self.silo,
            groups=row.groups,
            attack=row.attack,
        )


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file, TOML of at most 1 MiB.

    Raises:
        ExperimentFileError: With every problem found.
    """
    try:
        document = parse_toml(path.read_bytes(), max_bytes=MAX_FILE_BYTES)
    except (OSError, TomlError) as error:
        raise ExperimentFileError([f"{path}: {error}"]) from error
    experiment = _validated(Experiment, document, prefix="")
    problems = list(_between_tables(experiment))
    if problems:
        raise ExperimentFileError(problems)
    return experiment


def read_run(path: Path) -> Run:
    """Read a run that ``Run.model_dump_json`` wrote.

    Raises:
        ExperimentFileError: It is not one.
    """
    try:
        return Run.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ExperimentFileError([f"{path}: {error}"]) from error


def _between_tables(experiment: Experiment) -> Iterator[str]:
    for table, names in (
        ("silo", [silo.name for silo in experiment.silo]),
        ("setting", [setting.name for setting in experiment.setting]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{table}: the name {name!r} appears twice; names are unique"
    if len(set(experiment.seeds)) != len(experiment.seeds):
        yield "seeds: a seed appears twice"
    for index, silo in enumerate(experiment.silo):
        if silo.shard_index >= silo.shard_count:
            yield (
                f"silo.{index}.shard_index: parts count from 0, so the last of "
                f"{silo.shard_count} is {silo.shard_count - 1}, got {silo.shard_index}"
            )
        if len(set(silo.environments)) != len(silo.environments):
            yield f"silo.{index}.environments: an environment appears twice"
        yield from _environments(index, silo)
    for index, setting in enumerate(experiment.setting):
        if setting.method not in METHODS:
            nearest = difflib.get_close_matches(setting.method, METHODS, n=1, cutoff=0.0)[0]
            yield (
                f"setting.{index}.method: there is no method {setting.method!r}; the nearest is "
                f"{nearest!r} (of {', '.join(METHODS)})"
            )


def _environments(index: int, silo: SiloTable) -> Iterator[str]:
    from evolution.envs.catalogue import BUILT_IN

    for name in silo.environments:
        if name not in BUILT_IN.names:
            yield (
                f"silo.{index}.environments: there is no environment {name!r}; known: "
                f"{', '.join(BUILT_IN.names)}"
            )
            continue
        labels = len(BUILT_IN.make(name).labels)
        if labels % silo.shard_count:
            parts = ", ".join(str(n) for n in range(1, labels + 1) if labels % n == 0)
            yield (
                f"silo.{index}.shard_count: the {labels} labels of {name!r} cannot be dealt into "
                f"{silo.shard_count} equal parts; use one of {parts}"
            )


def _unrunnable(run: Run) -> Iterator[str]:
    """What the resolved values of a setting do not allow."""
    method = METHODS[run.method]
    if run.rounds == 0 and method.topology != "none":
        yield f"method {run.method!r} needs at least one round"
    if not method.explores and method.topology != "none":
        empty = [silo.name for silo in run.silos if not silo.demonstrations]
        if empty:
            yield (
                f"method {run.method!r} learns from demonstrations alone, and silo {empty[0]!r} "
                "has none: set its demonstrations"
            )
    if method.topology == "federated" and len(run.silos) < LEAST_CLUSTER:
        yield f"a sum needs at least {LEAST_CLUSTER} silos, and the file has {len(run.silos)}"
    if run.groups is not None or run.attack is not None:
        yield from _between_silos(run)
    if method.explores and run.evolve.episodes < run.evolve.tries_per_task:
        yield "evolve.episodes: fewer than evolve.tries_per_task, so no task is tried in full"


def _between_silos(run: Run) -> Iterator[str]:
    """What groups and an attack do not allow."""
    method, groups = METHODS[run.method], run.groups
    if method.topology != "federated" or method.clustered:
        yield f"method {run.method!r} has no sum of all silos that groups or an attack are about"
    if run.attack is not None and run.attack.silo not in {silo.name for silo in run.silos}:
        yield f"attack.silo: there is no silo {run.attack.silo!r}"
    if groups is None:
        return
    if groups.count < 2 * groups.byzantine + 1:
        yield (
            f"groups.count: {2 * groups.byzantine + 1} groups outvote {groups.byzantine}, "
            f"{groups.count} do not"
        )
    if len(run.silos) < LEAST_CLUSTER * groups.count:
        yield (
            f"groups.count: a sum needs at least {LEAST_CLUSTER} silos, so {len(run.silos)} "
            f"silos are at most {len(run.silos) // LEAST_CLUSTER} groups"
        )
    for key, value, known in (
        ("method", run.aggregation.method, GROUP_METHODS),
        ("server_optimiser", run.aggregation.server_optimiser, GROUP_OPTIMISERS),
    ):
        if value not in known:
            yield f"groups: aggregation.{key} is one of {', '.join(sorted(known))}, not {value!r}"


def _overridden(table: OverriddenT, changes: Mapping[str, Any], prefix: str) -> OverriddenT:
    """A table with some keys replaced, checked like the table itself."""
    document = {**table.model_dump(), **changes}
    return _validated(type(table), document, prefix=prefix)


def _validated(model: type[ModelT], document: Mapping[str, Any], *, prefix: str) -> ModelT:
    try:
        # As JSON, because TOML's arrays and integers are what strict mode takes there for tuples
        # and floats. Dates and infinities have no place in a file and fail as strings.
        return model.model_validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise ExperimentFileError(
            [_worded(item, model, prefix) for item in error.errors(include_url=False)]
        ) from error


def _worded(item: Any, model: type[BaseModel], prefix: str) -> str:
    path = tuple(str(part) for part in item["loc"])
    where = ".".join(part for part in (prefix, *path) if part) or "file"
    if item["type"] == "extra_forbidden":
        valid = sorted(_table(path[:-1], model).model_fields)
        nearest = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.0)[0]
        return f"{where}: unknown key; the nearest valid key is {nearest!r} (of {', '.join(valid)})"
    if item["type"] == "missing":
        return f"{where}: this key is required: add it"
    shown = repr(item["input"])
    shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"
    return f"{where}: {item['msg'].removeprefix('Value error, ')}, got {shown}"


def _table(path: tuple[str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model that a path leads to, through tables and arrays of tables."""
    for name in path:
        field = model.model_fields.get(name)
        if field is None:
            continue  # The index of an array.
        model = next(iter(_models(field.annotation)), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
