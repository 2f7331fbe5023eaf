"""A silo chooses what to use: the shared adapter, its own, something between, or the base.

All candidates play the same tasks of the silo's own with the same draws (``compared.py`` has the
candidates and the rule). The tasks are of the held-out split, so nobody learned from them, and of
the part of it that is *not* judged: what is reported of the chosen adapter was not chosen by.

Invariants:

1. No task by which is chosen is among those that the run judges; they are taken from the other end
   of the split.
2. Nothing about it leaves the silo, and nothing that a round computes reads it: the stores of
   trajectories, the shared adapter and the personal one are as they were.
3. Equal adapters and tasks give equal choices.

Covered: any number of environments, with the silo's shard of each. Not covered: a split that is
judged as a whole, which leaves no task to choose by, so the shared adapter stays; two ids of a
split that are one task in all but their number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from evolution.envs.environment import Environment
from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Evaluation
from evolution.methods.personal.compared import (
    CANDIDATES,
    SHARED,
    Candidate,
    Choices,
    choice_of,
)
from evolution.methods.personal.interpolation import interpolated
from evolution.methods.personal.personal import identity_of
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

__all__ = ["choose", "tasks_to_choose_by", "tensors_of", "version_of"]

Tensors = Mapping[str, np.ndarray]


def tasks_to_choose_by(
    environment: Environment,
    *,
    name: str,
    shard: Shard | None,
    judged: Collection[int],
    count: int,
    split: Split = Split.HELD_OUT,
    labels: Collection[str] | None = None,
) -> list[Task]:
    """At most ``count`` of the silo's own tasks of a split that are not judged, from its end.

    With ``labels`` only tasks of these are its own.
    """
    judged = frozenset(judged)
    own = (
        task_id
        for task_id in reversed(environment.task_ids(split, shard=shard))
        if task_id not in judged and (labels is None or environment.task_label(task_id) in labels)
    )
    return [Task(environment=name, task_id=task_id) for task_id in islice(own, count)]


def tensors_of(candidate: Candidate, *, shared: Tensors, own: Tensors) -> Tensors:
    """What plays; empty is the base model.

    Raises:
        AdapterMismatchError: The two adapters are not of the same layers.
    """
    if candidate.kind == "base":
        return {}
    if candidate.kind == "shared":
        return shared
    if candidate.kind == "own" or own is shared:
        return own
    return interpolated(shared, own, candidate.weight)


def version_of(tensors: Tensors) -> str:
    """By what an engine tells candidates apart."""
    return identity_of(tensors) if tensors else "base"


def choose(
    engine: RolloutEngine,
    *,
    shared: Tensors,
    own: Tensors,
    tasks: Sequence[Task],
    members: Mapping[str, str],
    work: Evaluation,
    make_environment: Callable[[str], Environment],
) -> Choices:
    """Let all candidates play every task once, at the first of the work's temperatures.

    ``members`` has the family of each environment. The engine holds some candidate afterwards.

    Raises:
        AdapterMismatchError: The two adapters are not of the same layers.
    """
    own_sha256 = identity_of(own)
    # Before a silo has learned anything of its own, what it has is the shared adapter.
    if own_sha256 == identity_of(shared):
        own = shared
    played: dict[str, list[bool | None]] = {}
    solved: dict[Candidate, list[bool | None]] = {}
    for candidate in (SHARED, *CANDIDATES):
        tensors = tensors_of(candidate, shared=shared, own=own)
        version = version_of(tensors)
        if version not in played:
            engine.load_adapter(version, tensors)
            batch = run_episodes(
                engine,
                tasks,
                temperature=work.temperatures[0],
                seed=work.seed,
                max_new_tokens=work.max_new_tokens,
                batch_size=work.rollout_batch,
                round_index=work.round,
                make_environment=make_environment,
            )
            played[version] = [None if one is None else one.success for one in batch.tries]
        solved[candidate] = played[version]
    return Choices(
        families={
            family: choice_of(_of_family(solved, family, tasks, members))
            for family in sorted(set(members.values()))
        },
        members=dict(members),
        own_sha256=own_sha256,
    )


def _of_family(
    solved: Mapping[Candidate, Sequence[bool | None]],
    family: str,
    tasks: Sequence[Task],
    members: Mapping[str, str],
) -> dict[Candidate, list[bool | None]]:
    inside = [members[task.environment] == family for task in tasks]

    def taken(outcomes: Iterable[bool | None]) -> list[bool | None]:
        return [one for one, here in zip(outcomes, inside, strict=True) if here]

    return {candidate: taken(outcomes) for candidate, outcomes in solved.items()}
