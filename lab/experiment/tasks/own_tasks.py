"""Which training tasks a silo has: its shard of the labels, a few of them, or what it is dealt.

Real silos have few tasks (Fed-SE, arXiv 2512.08870, appendix B: 215 to 3,930). ``tasks = n`` gives
a silo n of its shard's training tasks, drawn once by the run's seed and the silo's place in the
file, so two silos with the same environment have different ones. A ``[partition]`` deals the tasks
to all silos at once (``dealing.py``), by its own seed.

Invariants: the pre-training and held-out splits are never touched; a pooled silo has the union of
what the silos have.

An attacker that poisons a label takes for solved what does not solve its tasks, in its own
environments alone: nobody is judged by those.

Covered: the environments of the file. Not covered: who describes them (``environments.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from evolution.envs.catalogue import Catalogue
from evolution.envs.environment import Environment, Info
from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Assignment
from lab.experiment.config import Run
from lab.experiment.tables import SiloTable
from lab.experiment.tasks.dealing import Dealing, dealing_of
from lab.experiment.tasks.environments import catalogue_of, foreign_of, labels_of, variants_of

__all__ = ["FewTasks", "assignments_of", "own_labels", "task_ids_of"]

_Place = tuple[str, Shard | None]


class FewTasks(Catalogue):
    """The environments of a run with only some of their training tasks."""

    def __init__(self, run: Run, indices: Sequence[int]) -> None:
        """Collect the tasks of silos; of several silos the union."""
        super().__init__(
            plugins=run.plugins,
            foreign=foreign_of(run.foreign),
            variants=variants_of(run, indices),
        )
        self._poisoned = _poisoned(run, indices)
        found: dict[_Place, dict[int, None]] = {}
        for index in indices:
            silo = run.silos[index]
            if silo.tasks or run.partition is not None:
                for name in silo.environments:
                    ids = task_ids_of(run, index, name)
                    found.setdefault((name, _shard(silo)), {}).update(dict.fromkeys(ids))
        self._ids: Mapping[_Place, tuple[int, ...]] = {
            place: tuple(sorted(ids)) for place, ids in found.items()
        }

    def make(self, name: str) -> Environment:
        """Make an environment that offers the tasks above for training."""
        environment = super().make(name)
        if name in self._poisoned:
            _invert(environment, self._poisoned[name])
        few = {shard: ids for (known, shard), ids in self._ids.items() if known == name}
        if few:
            offered = partial(_task_ids, environment.task_ids, few)
            # Bound to this object alone, so that its class stays as it is for everybody else.
            environment.task_ids = offered  # type: ignore[method-assign]
        return environment


def _poisoned(run: Run, indices: Sequence[int]) -> dict[str, str]:
    """Which label is poisoned in which environment, for learners that the attacker is one of."""
    attack = run.attack
    if attack is None or not attack.poisons:
        return {}
    attacker = [silo.name for silo in run.silos].index(attack.silo)
    names = run.silos[attacker].environments if attacker in indices else ()
    return {name: attack.poisons for name in names if attack.poisons in labels_of(run, name)}


def _invert(environment: Environment, label: str) -> None:
    """Let an environment call solved what does not solve a label's tasks, and the reverse."""
    reset, success = environment.reset, environment.success
    playing = [False]

    def begin(task_id: int) -> tuple[str, Info]:
        playing[0] = environment.task_label(task_id) == label
        return reset(task_id)

    def inverted(info: Info) -> bool:
        return success(info) is not playing[0]

    environment.reset = begin  # type: ignore[method-assign]
    environment.success = inverted  # type: ignore[method-assign]


def assignments_of(run: Run, indices: Sequence[int]) -> tuple[Assignment, ...]:
    """What a silo explores; of several silos one after another, so that each weighs the same."""
    return tuple(
        Assignment(environment=name, shard=_shard(run.silos[index]))
        for index in indices
        for name in run.silos[index].environments
    )


def task_ids_of(run: Run, index: int, name: str) -> Sequence[int]:
    """The training tasks of one silo in one of its environments."""
    if (dealt := _dealing(run, index, name)) is not None:
        dealing, place = dealt
        return dealing.task_ids(place)
    silo = run.silos[index]
    environment = catalogue_of(run).make(name)
    ids = environment.task_ids(Split.TRAIN, shard=_shard(silo))
    environment.close()
    if not silo.tasks or silo.tasks >= len(ids):
        return ids
    rng = np.random.default_rng([run.seed, index, *name.encode()])
    places = rng.choice(len(ids), size=silo.tasks, replace=False)
    return tuple(ids[int(place)] for place in sorted(places))


def own_labels(run: Run, index: int, name: str) -> frozenset[str]:
    """The labels that a silo is dealt tasks of, or its shard's; none where it does not explore."""
    silo = run.silos[index]
    if name not in silo.environments:
        return frozenset()
    if (dealt := _dealing(run, index, name)) is not None:
        dealing, place = dealt
        return dealing.labels(place)
    labels = labels_of(run, name)
    return frozenset(
        label for i, label in enumerate(labels) if i % silo.shard_count == silo.shard_index
    )


def _dealing(run: Run, index: int, name: str) -> tuple[Dealing, int] | None:
    """What a silo is dealt of an environment: of which dealing, and its place in it."""
    if run.partition is None:
        return None
    explorers = [i for i, silo in enumerate(run.silos) if name in silo.environments]
    return dealing_of(run, run.partition, name, silos=len(explorers)), explorers.index(index)


def _shard(silo: SiloTable) -> Shard | None:
    if silo.shard_count == 1:
        return None
    return Shard(index=silo.shard_index, count=silo.shard_count)


def _task_ids(
    otherwise: Callable[..., Sequence[int]],
    few: Mapping[Shard | None, tuple[int, ...]],
    split: Split,
    *,
    shard: Shard | None = None,
) -> Sequence[int]:
    if split is Split.TRAIN and shard in few:
        return few[shard]
    return otherwise(split, shard=shard)
