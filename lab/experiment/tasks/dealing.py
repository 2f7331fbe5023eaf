"""``[partition]`` applied: the first training tasks of an environment, dealt to who explores it.

The type of a task is its label. Every environment is dealt by itself, to all silos that explore it,
in the order of the file.

Invariants:
    1. Only training tasks are dealt. Flags of other tasks are refused, so that nobody has played
       held-out tasks for a partition.
    2. Equal tables, environments and numbers of silos give equal dealings; the run's seed and
       method are no part of it.

Covered: making and keeping dealings. Not covered: the constructions (``lab/partitions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evolution.envs.catalogue import Catalogue
from evolution.envs.tasks import Split
from evolution.errors import EnvironmentFailureError
from lab.experiment.errors import ExperimentFileError
from lab.experiment.tasks.environments import HasEnvironments, HasSilos, catalogue_of
from lab.experiment.tasks.flags import Flags, read_flags
from lab.experiment.tasks.partition import PartitionTable
from lab.partitions.dealing import Dealt, coverage, hardness, joint, preference
from lab.partitions.errors import PartitionError, PoolError
from lab.partitions.quotas import Bounds
from lab.partitions.streams import Streams

__all__ = ["Dealing", "Pool", "deal", "dealing_of", "pool_of", "undealt"]

_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The tasks of an environment that are dealt."""

    task_ids: npt.NDArray[np.int64]
    """By place."""
    labels: tuple[str, ...]
    """Those that occur."""
    types: npt.NDArray[np.int64]
    """By place: which label."""
    solved: npt.NDArray[np.bool_] | None
    """By place; None where nobody asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealing:
    """Who has which tasks of an environment."""

    pool: Pool
    """Of what."""
    dealt: Dealt
    """Places of the pool, by silo."""

    def task_ids(self, place: int) -> tuple[int, ...]:
        """The tasks of one of the silos that explore the environment, ascending."""
        return tuple(int(i) for i in self.pool.task_ids[self.dealt.silos[place]])

    def labels(self, place: int) -> frozenset[str]:
        """The labels that such a silo has tasks of."""
        return frozenset(self.pool.labels[i] for i in set(self.pool.types[self.dealt.silos[place]]))


def dealing_of(owner: HasEnvironments, table: PartitionTable, name: str, *, silos: int) -> Dealing:
    """The dealing of an environment to the silos that explore it.

    Raises:
        PartitionError: It cannot be dealt so.
        ExperimentFileError: The file of flags is not what it should be.
    """
    return _dealing(catalogue_of(owner), table, name, silos)


@lru_cache(maxsize=64)
def _dealing(catalogue: Catalogue, table: PartitionTable, name: str, silos: int) -> Dealing:
    pool = pool_of(catalogue, table, name)
    return Dealing(pool=pool, dealt=deal(pool, table, name, silos=silos, seed=table.seed))


def undealt(run: HasSilos, partition: PartitionTable) -> Iterator[str]:
    """What a partition and the silos do not allow each other."""
    for silo in run.silos:
        if silo.tasks or silo.shard_count > 1:
            yield (
                f"partition: it deals all tasks, and silo {silo.name!r} has its own by "
                f"{'tasks' if silo.tasks else 'shard_count'}: remove one of the two"
            )
            return
    explorers = Counter(name for silo in run.silos for name in silo.environments)
    for name, silos in explorers.items():
        try:
            dealing_of(run, partition, name, silos=silos)
        except (PartitionError, EnvironmentFailureError) as error:
            yield f"partition: {name}: {error}"
        except ExperimentFileError as error:
            yield from error.problems


def pool_of(catalogue: Catalogue, table: PartitionTable, name: str) -> Pool:
    """The tasks of an environment that a table deals.

    Raises:
        PoolError: There are not so many, or they do not all have a flag.
        ExperimentFileError: The file of flags is not what it should be.
        EnvironmentFailureError: The environment cannot be made.
    """
    environment = catalogue.make(name)
    try:
        split = environment.task_ids(Split.TRAIN)
        ids = split[: table.pool]
        labels = [environment.task_label(task_id) for task_id in ids]
    finally:
        environment.close()
    if len(ids) < table.pool:
        raise PoolError(
            f"pool: {name!r} has {len(split)} training tasks, and {table.pool} are to be dealt: "
            f"set pool = {len(split)} or less"
        )
    known = tuple(sorted(set(labels)))
    number = {label: i for i, label in enumerate(known)}
    solved = None
    if table.solved is not None and table.solved_sha256 is not None:
        flags = read_flags(table.solved, table.solved_sha256)
        solved = _flags_of(flags, name, ids, training=split)
    return Pool(
        task_ids=np.array(ids, dtype=np.int64),
        labels=known,
        types=np.array([number[label] for label in labels], dtype=np.int64),
        solved=solved,
    )


def deal(pool: Pool, table: PartitionTable, name: str, *, silos: int, seed: int) -> Dealt:
    """A pool dealt as the table says, with the draws of a seed.

    Raises:
        PartitionError: It cannot be dealt so.
    """
    rng = Streams(seed, name)
    omega, xi, xi_hard = table.omega or 0.0, table.xi or 0.0, table.xi_hard or 0.0
    sizes, length = table.size_bounds, table.length or 0
    if table.kind == "preference":
        return preference(pool.types, omega=omega, length=length, silos=silos, rng=rng)
    if table.kind == "coverage":
        return coverage(len(pool.task_ids), xi=xi, sizes=sizes, silos=silos, rng=rng)
    if pool.solved is None:
        raise PoolError(f"kind {table.kind!r} deals by flags, and the table names no file of them")
    if table.kind == "hardness":
        return hardness(
            pool.solved,
            xi_hard=xi_hard,
            length=length,
            solved_counts=Bounds(*table.solved_counts),
            silos=silos,
            rng=rng,
        )
    return joint(
        pool.types,
        pool.solved,
        omega=omega,
        xi=xi,
        xi_hard=xi_hard,
        sizes=sizes,
        solved_shares=table.share_bounds,
        silos=silos,
        rng=rng,
    )


def _flags_of(
    flags: Flags, name: str, ids: Sequence[int], *, training: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """The flags of a pool, by place."""
    trained = training if isinstance(training, range) else frozenset(training)
    outside = [task for known, task in flags if known == name and task not in trained]
    if outside:
        raise PoolError(
            f"solved: {len(outside)} tasks of {name!r} are no training tasks "
            f"({', '.join(map(str, outside[:_SHOWN]))}): remove their lines"
        )
    missing = [task for task in ids if (name, task) not in flags]
    if missing:
        raise PoolError(
            f"solved: {len(missing)} of {len(ids)} tasks of {name!r} have no line "
            f"({', '.join(map(str, missing[:_SHOWN]))}): play them with chorale-lab partition "
            "flags, or take a smaller pool"
        )
    return np.array([flags[name, task] for task in ids], dtype=np.bool_)
