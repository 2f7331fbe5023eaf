"""Judging adapters on held-out tasks, task by task.

An engine plays the same tasks with the same random streams for every adapter of a seed: a task's
draws depend on the seed and on its place in the panel (``evolution.rollout.episodes``), so two
methods can be compared task by task (McNemar) at equal seed. A shorter judgement is a prefix of a
longer one.

Invariants:
    1. An outcome string has one character for each task of a label, in the order of the
       panel (``tasks/panels.py``).
    2. An episode that was dropped is an error: a missing task would shift all that follow.

A silo that chooses what to use (``evolution/methods/personal/choice.py``) does so by tasks of the
same split with its own labels, of which none is judged, whoever's adapter it is.

Covered: the run's environments, with an engine that is lent or one of its own; a silo's choice. Not
covered: intervals and tests (``lab/report``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evolution.envs.tasks import Split
from evolution.methods.evolver import Evaluation
from evolution.methods.personal.choice import choose, tasks_to_choose_by
from evolution.methods.personal.compared import Choices
from evolution.methods.personal.personal import identity_of
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from lab.experiment.config import Run
from lab.experiment.engines.machines import engine_of
from lab.experiment.errors import JudgeError
from lab.experiment.tasks.environments import judged_catalogue
from lab.experiment.tasks.own_tasks import own_labels
from lab.experiment.tasks.panels import judged_ids

__all__ = ["Judge", "Judged"]

_STREAM = 0x1D6E
"""Keeps the judge's draws apart from the silos'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One adapter on the held-out tasks of one label."""

    environment: str
    """Where."""
    family: str
    """The environment's."""
    label: str
    """Of the tasks."""
    temperature: float
    """0 is greedy."""
    outcomes: str
    """``1`` or ``0`` for each task, in the order of the split."""


class Judge:
    """See the module; one for a run."""

    def __init__(self, run: Run, *, engine: RolloutEngine | None = None) -> None:
        """Judge with an engine that is lent, and that others may use in between, or an own one."""
        self._run = run
        self._is_lent = engine is not None
        self._engine = engine_of(run) if engine is None else engine
        parts = [run.seed, _STREAM]
        self._seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])

    @property
    def chat(self) -> ChatFormat:
        """How episodes become tokens with this base."""
        return self._engine.chat

    def judge(
        self, version: str, adapter: Mapping[str, np.ndarray], held_out: Mapping[str, int]
    ) -> list[Judged]:
        """Play held-out tasks with an adapter; no factors judge the bare base model.

        ``held_out`` says how many tasks of each environment; with 0 it is left out. There is one
        entry per environment, temperature and label, in that order.

        Raises:
            JudgeError: An episode was dropped.
        """
        self._engine.load_adapter(version, adapter)
        return [
            judged
            for name, count in held_out.items()
            if count
            for temperature in self._run.judge.temperatures
            for judged in self._play(name, count, temperature)
        ]

    def choose(
        self, silo: int, *, shared: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]
    ) -> Choices:
        """What a silo would use of the shared adapter, its own, what lies between, and the base.

        Raises:
            JudgeError: An episode was dropped.
        """
        run, catalogue = self._run, judged_catalogue(self._run)
        split = Split(run.judge.split)
        tasks: list[Task] = []
        members: dict[str, str] = {}
        for name in run.silos[silo].environments:
            environment = catalogue.make(name)
            members[name] = environment.family
            tasks += tasks_to_choose_by(
                environment,
                name=name,
                shard=None,
                judged=judged_ids(run, name),
                count=run.evolve.personal_choice,
                split=split,
                labels=own_labels(run, silo, name),
            )
            environment.close()
        found = choose(
            self._engine,
            shared=shared,
            own=own,
            tasks=tasks,
            members=members,
            work=Evaluation(
                round=0,
                adapter=shared,
                adapter_sha256=identity_of(shared),
                temperatures=run.judge.temperatures,
                max_new_tokens=run.evolve.max_new_tokens,
                rollout_batch=run.evolve.rollout_batch,
                seed=self._seed,
            ),
            make_environment=catalogue.make,
        )
        if {one.tasks for one in found.overall.compared} != {len(tasks)}:
            raise JudgeError(f"silo {silo} chose by fewer than its {len(tasks)} tasks")
        return found

    def close(self) -> None:
        """Release the model, unless it is lent."""
        if not self._is_lent:
            self._engine.close()

    def _play(self, name: str, count: int, temperature: float) -> list[Judged]:
        catalogue = judged_catalogue(self._run)
        environment = catalogue.make(name)
        labels = environment.labels
        environment.close()
        ids = judged_ids(self._run, name)[:count]
        played = run_episodes(
            self._engine,
            [Task(environment=name, task_id=task_id) for task_id in ids],
            temperature=temperature,
            seed=self._seed,
            max_new_tokens=self._run.evolve.max_new_tokens,
            batch_size=self._run.evolve.rollout_batch,
            make_environment=catalogue.make,
        )
        if played.dropped or len(played.trajectories) != len(ids):
            raise JudgeError(f"{played.dropped} held-out episodes of {name!r} were dropped")
        outcomes: dict[int, list[str]] = {}
        for trajectory in played.trajectories:
            label = trajectory.task.task_id % len(labels)
            outcomes.setdefault(label, []).append("1" if trajectory.success else "0")
        return [
            Judged(
                environment=name,
                family=environment.family,
                label=labels[label],
                temperature=temperature,
                outcomes="".join(verdicts),
            )
            for label, verdicts in sorted(outcomes.items())
        ]
