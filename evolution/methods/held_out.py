"""Judging an adapter on held-out tasks.

An adapter is judged on ``episodes`` consecutive ids of each environment's held-out split, which
hold all labels in equal parts when the count is a multiple of their number. The same start is the
same tasks on every silo.

Covered: counts per environment, label and temperature. Not covered: intervals; whoever reports the
counts computes them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment
from evolution.envs.tasks import Split
from evolution.methods.evolver import Evaluation, EvaluationRow
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

__all__ = ["judge"]


def judge(
    engine: RolloutEngine,
    environments: Sequence[str],
    work: Evaluation,
    *,
    make_environment: Callable[[str], Environment] = make,
) -> list[EvaluationRow]:
    """Play the held-out tasks with the adapter the engine holds.

    One row per environment, temperature and label.
    """
    rows: list[EvaluationRow] = []
    for name in environments:
        environment = make_environment(name)
        ids = environment.task_ids(Split.HELD_OUT)[work.first_task :][: work.episodes]
        for temperature in work.temperatures:
            played = run_episodes(
                engine,
                [Task(environment=name, task_id=task_id) for task_id in ids],
                temperature=temperature,
                seed=work.seed,
                max_new_tokens=work.max_new_tokens,
                batch_size=work.rollout_batch,
                round_index=work.round,
                make_environment=make_environment,
            )
            episodes: Counter[int] = Counter()
            successes: Counter[int] = Counter()
            violations: Counter[int] = Counter()
            solved: dict[int, list[int]] = defaultdict(list)
            for trajectory in played.trajectories:
                label = trajectory.task.task_id % len(environment.labels)
                episodes[label] += 1
                successes[label] += trajectory.success
                violations[label] += trajectory.violated
                if trajectory.success:
                    solved[label].append(trajectory.task.task_id)
            rows += [
                EvaluationRow(
                    environment=name,
                    label=environment.labels[label],
                    shard=label % work.shards,
                    temperature=temperature,
                    episodes=count,
                    successes=successes[label],
                    violations=violations[label],
                    solved=tuple(sorted(solved[label])),
                )
                for label, count in sorted(episodes.items())
            ]
        environment.close()
    return rows
