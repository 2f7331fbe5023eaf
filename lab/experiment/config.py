"""An experiment file: read, checked, and turned into runs.

A run is one setting at one seed, with every value spelled out. Invariants:

1. Unknown keys are errors that name the key's path and the nearest valid key.
2. ``Run.sha256`` is the digest of everything that decides a run's result; two runs with one digest
   are the same run. Where the base model lies on the disk is not part of it, its content is.
3. Names of silos and of settings are unique, and every reference resolves before anything runs:
   environments, methods, shards, cohorts that are large enough for a sum.

Covered: the document; ``ExperimentFileError`` has a line for each problem. Not covered: options of
aggregation methods, which ``lab.aggregation`` refuses (``runner.py`` asks it before any run).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, ValidationError

from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.errors import EnvironmentFailureError
from federation.adapter.target import ALL_LINEAR, TargetKey
from federation.aggregate.registry import GROUP_METHODS, GROUP_OPTIMISERS
from federation.errors import TomlError
from federation.plan.toml import parse_toml
from lab.experiment.checked import validated
from lab.experiment.errors import ExperimentFileError
from lab.experiment.guards.vetoes import unguarded
from lab.experiment.methods import LEAST_CLUSTER, METHODS
from lab.experiment.orchestration.allowed import unsimulated
from lab.experiment.participation import wrong_part
from lab.experiment.tables import (
    EVOLVE_LATER,
    MAX_SILOS,
    AggregationTable,
    Alpha,
    AttackTable,
    Dtype,
    EnvironmentName,
    EvolveTable,
    GroupsTable,
    GuardTable,
    JudgeTable,
    NoiseTable,
    OrchestrationTable,
    PerRound,
    Rank,
    RolloutTable,
    Rounds,
    Section,
    Seed,
    SettingTable,
    SilosTable,
    SiloTable,
    Slug,
    Sums,
    TrainingTable,
    VariantsTable,
)
from lab.experiment.tasks.dealing import undealt
from lab.experiment.tasks.environments import catalogue_of, foreign_of, labels_of
from lab.experiment.tasks.panels import unjudged
from lab.experiment.tasks.partition import PartitionTable, overridden_partition, pinned

__all__ = ["Experiment", "Run", "load_experiment", "read_run"]

MAX_FILE_BYTES: Final = 1 << 20
RUN_DTYPE: Final = "float32"  # Of every run that says nothing else.
_OPTIONAL: Final = ("groups", "attack", "guard", "per_round", "partition", "orchestration")
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
    target: TargetKey = ALL_LINEAR
    """Which linear layers carry an adapter."""
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
    guard: GuardTable | None = None
    """Whether honest silos judge and veto; None: nobody does."""
    per_round: Annotated[int, Field(ge=3)] | None = None
    """How many silos take part in a round; None: all."""
    partition: PartitionTable | None = None
    """Who has which training tasks; None: as ``silos`` says."""
    orchestration: OrchestrationTable | None = None
    """Rounds in simulated time; None: everybody who takes part is there at once."""
    dtype: Dtype = "float32"
    """Of the base weights."""
    rollout: RolloutTable = RolloutTable()
    """What plays."""
    training: TrainingTable = TrainingTable()
    """What trains."""
    plugins: tuple[str, ...] = ()
    """Environments of installed packages."""
    foreign: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Environments that the file describes, those that a silo explores."""

    @property
    def sha256(self) -> str:
        """Identity of the run, 64 hexadecimal digits."""
        content = json.dumps(self.described(), sort_keys=True)
        return hashlib.sha256(b"chorale/lab-run/v1\0" + content.encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON.

        What was added to the files later is in it only where it is used, so that runs which were
        done before keep their digests: groups, an attack, ``per_round``, a purpose, a partition,
        variants, another recipe or other parts of it, a choice between adapters, another ``dtype``,
        a target, another engine (whose draws are others), foreign environments. Where a server
        listens, what is computed on and how it fits into memory change results by rounding at most;
        where a partition's file of flags lies changes nothing, and its content stands for it.
        """
        without = {"base", "rollout", "training", "plugins", "foreign"}
        without |= {name for name in _OPTIONAL if getattr(self, name) is None}
        if self.dtype == RUN_DTYPE:
            without.add("dtype")
        if self.target == ALL_LINEAR:
            without.add("target")
        found = self.model_dump(mode="json", exclude=without)
        _leave_out(found["evolve"], EVOLVE_LATER, EvolveTable())
        _leave_out(found["judge"], ("split", "purpose"), JudgeTable())
        if self.attack is not None and not self.attack.poisons:
            del found["attack"]["poisons"]
        for silo in found["silos"]:
            if silo["variant"] is None:
                del silo["variant"]
        if self.partition is not None:
            found["partition"] = self.partition.described()
        if self.rollout.kind != "hf":
            found["engine"] = self.rollout.kind
        if self.foreign:
            found["foreign"] = {
                name: {key: value for key, value in table.items() if key != "url"}
                for name, table in self.foreign.items()
            }
        return found

    def judged_after(self, round_number: int, *, shared: bool) -> bool:
        """Whether adapters are judged after a round: shared ones, or each silo's or cluster's."""
        every = self.judge.every if shared else self.judge.silos_every
        return round_number == self.rounds or (every > 0 and round_number % every == 0)


def _leave_out(found: dict[str, Any], names: Sequence[str], usual: Section) -> None:
    """Remove keys that say what an empty table says."""
    plain = usual.model_dump(mode="json")
    for name in names:
        if found[name] == plain[name]:
            del found[name]


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
    target: TargetKey = ALL_LINEAR
    """Which linear layers carry an adapter: all but the head, or those that a list names."""
    sums: Sums = "plain"
    """``masked`` runs every sum through the real secure aggregation; the bits are the same."""
    per_round: PerRound = 0
    """How many silos, drawn anew, take part in a round (``participation.py``); 0: all."""
    dtype: Dtype = RUN_DTYPE
    """Of the base weights; the adapter is always trained in float32."""
    rollout: RolloutTable = RolloutTable()
    """What plays the episodes."""
    training: TrainingTable = TrainingTable()
    """On what is trained."""
    plugins: Annotated[tuple[EnvironmentName, ...], Field(max_length=64)] = ()
    """Environments of installed packages."""
    foreign: Annotated[dict[str, dict[str, Any]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Environments that the file describes, with the keys of ``silo.toml``."""
    evolve: EvolveTable = EvolveTable()
    """Local work."""
    aggregation: AggregationTable = AggregationTable()
    """What becomes of the sums."""
    noise: NoiseTable = NoiseTable()
    """Clip, grid, noise."""
    judge: JudgeTable = JudgeTable()
    """On what adapters are judged, and when."""
    variants: VariantsTable | None = None
    """How environments differ from silo to silo; None: as each silo's own table says."""
    orchestration: OrchestrationTable | None = None
    """Rounds in simulated time, of silos that come late, drop out and lie."""
    partition: PartitionTable | None = None
    """Who has which training tasks; without it each ``[[silo]]`` says what it has."""
    silo: Annotated[tuple[SilosTable, ...], Field(min_length=1, max_length=MAX_SILOS)]
    """Who takes part."""
    setting: Annotated[tuple[SettingTable, ...], Field(min_length=1, max_length=1000)]
    """The rows."""

    @property
    def silos(self) -> tuple[SiloTable, ...]:
        """Every silo, one by one."""
        return tuple(silo for table in self.silo for silo in table.silos)

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
            # What is wrong with the file's own [partition] is found once for each setting.
            raise ExperimentFileError(list(dict.fromkeys(problems)))
        return [run.model_copy(update={"seed": seed}) for seed in self.seeds for run in runs]

    def _resolve(self, row: SettingTable, index: int, *, base_dir: Path, base_sha256: str) -> Run:
        rounds = self.rounds if row.rounds is None else row.rounds
        if METHODS[row.method].topology == "none":
            rounds = 0
        per_round = self.per_round if row.per_round is None else row.per_round
        silos = self._silos(row, index)
        if problem := wrong_part(per_round, len(silos), row.method):
            raise ExperimentFileError([f"setting.{index}: per_round: {problem}"])
        where = f"setting.{index}.partition" if row.partition else "partition"
        partition = overridden_partition(self.partition, row.partition, where)
        explored = {name for silo in self.silo for name in silo.environments}
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
            target=self.target if row.target is None else row.target,
            sums=self.sums if row.sums is None else row.sums,
            evolve=_overridden(self.evolve, row.evolve, f"setting.{index}.evolve"),
            aggregation=_overridden(
                self.aggregation, row.aggregation, f"setting.{index}.aggregation"
            ),
            noise=_overridden(self.noise, row.noise, f"setting.{index}.noise"),
            judge=self.judge,
            silos=silos,
            groups=row.groups,
            attack=row.attack,
            guard=row.guard,
            per_round=per_round or None,
            partition=None if partition is None else pinned(partition, where),
            orchestration=self._orchestration(row, index),
            dtype=self.dtype,
            rollout=self.rollout,
            training=self.training,
            plugins=self.plugins,
            foreign={name: table for name, table in self.foreign.items() if name in explored},
        )

    def _orchestration(self, row: SettingTable, index: int) -> OrchestrationTable | None:
        """What a setting's rounds are simulated by; a method without rounds has none."""
        given = row.orchestration
        if self.orchestration is not None:
            given = {**self.orchestration.model_dump(mode="json", exclude_unset=True), **given}
        if not given or METHODS[row.method].topology == "none":
            return None
        return validated(OrchestrationTable, given, prefix=f"setting.{index}.orchestration")

    def _silos(self, row: SettingTable, index: int) -> tuple[SiloTable, ...]:
        """The silos of a setting, each with its demonstrations and its variant."""
        silos = self.silos
        if row.demonstrations is not None:
            changed = {"demonstrations": row.demonstrations}
            silos = tuple(silo.model_copy(update=changed) for silo in silos)
        given: dict[str, Any] = {}
        if self.variants is not None and "kind" not in row.variants:
            given = self.variants.model_dump(exclude_none=True)
        if not given and not row.variants:
            return silos
        prefix = f"setting.{index}.variants"
        table = validated(VariantsTable, {**given, **row.variants}, prefix=prefix)
        if own := [silo.name for silo in silos if silo.variant is not None]:
            raise ExperimentFileError(
                [f"{prefix}: silo {own[0]!r} has a variant of its own: leave one of the two out"]
            )
        return tuple(
            silo.model_copy(update={"variant": table.of_silo(number)})
            for number, silo in enumerate(silos, start=1)
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
    experiment = validated(Experiment, document, prefix="")
    problems = list(_between_tables(experiment))
    if problems:
        raise ExperimentFileError(problems)
    directory = path.resolve().parent
    update: dict[str, Any] = {"rollout": _below(directory, experiment.rollout)}
    if experiment.partition is not None and experiment.partition.solved is not None:
        solved = str(directory / experiment.partition.solved)
        update["partition"] = experiment.partition.model_copy(update={"solved": solved})
    update["setting"] = tuple(_flags_below(directory, row) for row in experiment.setting)
    return experiment.model_copy(update=update)


def read_run(path: Path) -> Run:
    """Read a run that ``Run.model_dump_json`` wrote.

    Raises:
        ExperimentFileError: It is not one.
    """
    try:
        return Run.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ExperimentFileError([f"{path}: {error}"]) from error


def _below(directory: Path, rollout: RolloutTable) -> RolloutTable:
    """The table with its paths below the file's directory."""
    paths = {"api_key_file": rollout.api_key_file, "adapter_dir": rollout.adapter_dir}
    given = {key: str(directory / path) for key, path in paths.items() if path is not None}
    return rollout.model_copy(update=given)


def _flags_below(directory: Path, row: SettingTable) -> SettingTable:
    """The setting with the path of its file of flags below the experiment's directory."""
    named = row.partition.get("solved")
    if not isinstance(named, str):
        return row
    return row.model_copy(update={"partition": {**row.partition, "solved": str(directory / named)}})


def _between_tables(experiment: Experiment) -> Iterator[str]:
    for table, names in (
        ("silo", [silo.name for silo in experiment.silos]),
        ("setting", [setting.name for setting in experiment.setting]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{table}: the name {name!r} appears twice; names are unique"
    asked = experiment.rollout
    for key in ("url", "model", "adapter_dir") if asked.kind == "openai" else ():
        if not getattr(asked, key) and not (key == "url" and asked.urls):
            yield f"rollout.{key}: kind 'openai' needs it: add it"
    if (silos := len(experiment.silos)) > MAX_SILOS:
        yield f"silo: at most {MAX_SILOS} silos, and with every count there are {silos}"
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
    yield from _environments(experiment)
    yield from _unknown_methods(experiment)


def _unknown_methods(experiment: Experiment) -> Iterator[str]:
    for index, setting in enumerate(experiment.setting):
        if setting.method not in METHODS:
            nearest = difflib.get_close_matches(setting.method, METHODS, n=1, cutoff=0.0)[0]
            yield (
                f"setting.{index}.method: there is no method {setting.method!r}; the nearest is "
                f"{nearest!r} (of {', '.join(METHODS)})"
            )


def _environments(experiment: Experiment) -> Iterator[str]:
    try:
        known = catalogue_of(experiment)
    except ExperimentFileError as error:
        yield from error.problems
        return
    except EnvironmentFailureError as error:
        yield f"plugins: {error}"
        return
    for index, silo in enumerate(experiment.silo):
        for name in silo.environments:
            if name not in known:
                yield (
                    f"silo.{index}.environments: there is no environment {name!r}; known: "
                    f"{', '.join(known.names)}"
                )
                continue
            yield from _explored(experiment, index, name)


def _explored(experiment: Experiment, index: int, name: str) -> Iterator[str]:
    """What one silo cannot explore of one environment as it says."""
    silo = experiment.silo[index]
    try:
        labels = len(labels_of(experiment, name))
    except EnvironmentFailureError as error:
        yield f"silo.{index}.environments: {error}"
        return
    if labels % silo.shard_count:
        parts = ", ".join(str(n) for n in range(1, labels + 1) if labels % n == 0)
        yield (
            f"silo.{index}.shard_count: the {labels} labels of {name!r} cannot be dealt into "
            f"{silo.shard_count} equal parts; use one of {parts}"
        )
    described = foreign_of(experiment.foreign).get(name)
    if described is None:
        return
    if silo.demonstrations:
        yield (
            f"silo.{index}.demonstrations: {name!r} has no expert to show anything: set it to 0, "
            "or give the environment to a silo of its own"
        )
    if described.tasks is not None and not described.tasks.size(Split.HELD_OUT):
        yield f'foreign."{name}".tasks.held_out: adapters are judged there: leave some tasks for it'


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
    if run.guard is not None:
        some = run.per_round is not None
        yield from unguarded(run.method, method, run.aggregation, run.noise, some=some)
    if run.partition is not None:
        yield from undealt(run, run.partition)
    yield from unjudged(run)
    if run.orchestration is not None:
        yield from unsimulated(
            run.orchestration,
            method=method,
            aggregation=run.aggregation,
            silos=run.silos,
            is_chosen_otherwise=bool(run.groups or run.attack or run.per_round),
        )
    yield from _variants(run)
    if method.explores and run.evolve.episodes < run.evolve.tries_per_task:
        yield "evolve.episodes: fewer than evolve.tries_per_task, so no task is tried in full"


def _variants(run: Run) -> Iterator[str]:
    """What variants are not possible, alone or beside each other."""
    known = catalogue_of(run)
    by_name: dict[str, list[VariantSpec | None]] = {}
    for silo in run.silos:
        for name in silo.environments:
            by_name.setdefault(name, []).append(silo.variant)
            try:
                if silo.variant is not None:
                    known.require_variant(name, silo.variant)
            except EnvironmentFailureError as error:
                yield f"variant of silo {silo.name!r}: {error}"
    for name, specs in by_name.items():
        if METHODS[run.method].topology == "central" and len(set(specs)) > 1:
            yield (
                f"method {run.method!r} pools silos, and each has its own {name!r}: set "
                'variants = { kind = "none" } here, and it learns in the one that all are judged in'
            )
        said = {spec.kind if spec is not None and spec.descriptor else None for spec in specs}
        if len(said) > 1:
            yield (
                f"variants: where all silos of {name!r} are judged it says one line before the "
                "instruction: set descriptor alike in all, with one kind"
            )


def _attack(run: Run) -> Iterator[str]:
    attack = run.attack
    if attack is None:
        return
    attackers = [silo for silo in run.silos if silo.name == attack.silo]
    if not attackers:
        yield f"attack.silo: there is no silo {attack.silo!r}"
    elif attack.poisons:
        labels = {label for name in attackers[0].environments for label in labels_of(run, name)}
        if attack.poisons not in labels:
            yield f"attack.poisons: {attack.silo!r} has no label {attack.poisons!r}"
        if attack.direction != "own":
            yield "attack.poisons: only a silo whose direction is 'own' uploads what it learned"


def _between_silos(run: Run) -> Iterator[str]:
    """What groups and an attack do not allow."""
    method, groups = METHODS[run.method], run.groups
    if method.topology != "federated" or method.clustered:
        yield f"method {run.method!r} has no sum of all silos that groups or an attack are about"
    yield from _attack(run)
    if groups is None:
        return
    if groups.count < 2 * groups.byzantine + 1:
        yield (
            f"groups.count: {2 * groups.byzantine + 1} groups outvote {groups.byzantine}, "
            f"{groups.count} do not"
        )
    summed = run.per_round or len(run.silos)
    if summed < LEAST_CLUSTER * groups.count:
        yield (
            f"groups.count: a sum needs at least {LEAST_CLUSTER} silos, so {summed} "
            f"silos are at most {summed // LEAST_CLUSTER} groups"
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
    return validated(type(table), document, prefix=prefix)
