"""Demonstrations: the small expert set that seeds a buffer (Fed-SE, arXiv 2512.08870, algorithm 1).

D_train[k, 0] = D_expert[k]: where the base model solves next to nothing, the success filter keeps
nothing, and imitation needs something to begin with. Invariants:

1. A demonstration is a success, by the environment's own verdict.
2. Its tokens are those that an agent would have seen and said: ``ChatFormat`` lays them out, as it
   does for the rollout engine.
3. It carries ``EXPERT_ROUND`` and no adapter: no released adapter played it, so under record-level
   privacy it belongs to no unit and is not trained on (``evolution/methods/population.py``).
4. The same arguments give the same demonstrations, and each task's depends on the seed and on that
   task alone.

Covered: environments that can play themselves. Not covered: demonstrations that an operator has in
a file (``evolution/methods/expert_file.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolution.envs.catalogue import BUILT_IN, Catalogue
from evolution.envs.environment import ScriptedEnvironment
from evolution.errors import EnvironmentFailureError, ExpertError
from evolution.rollout.conversation import ChatFormat
from evolution.trajectory import EXPERT_ROUND, Step, Task, Trajectory

__all__ = ["EXPERT_ROUND", "demonstrations"]


def demonstrations(
    environment_name: str,
    task_ids: Sequence[int],
    *,
    chat: ChatFormat,
    seed: int,
    catalogue: Catalogue = BUILT_IN,
) -> list[Trajectory]:
    """Successes of an environment's own expert, in the order of ``task_ids``.

    Tasks that it does not solve are left out. The seed decides what it does where several actions
    are good. Log-probabilities are 0: no model sampled them.

    Raises:
        ExpertError: The environment cannot play itself.
        UnknownEnvironmentError: The catalogue has no such environment.
    """
    environment = catalogue.make(environment_name)
    try:
        if not isinstance(environment, ScriptedEnvironment):
            raise ExpertError(f"{environment_name!r} has no expert: import a file instead")
        played = [_play(environment, environment_name, i, chat=chat, seed=seed) for i in task_ids]
    finally:
        environment.close()
    return [trajectory for trajectory in played if trajectory is not None]


def _play(
    environment: ScriptedEnvironment, name: str, task_id: int, *, chat: ChatFormat, seed: int
) -> Trajectory | None:
    """One episode, or None where the expert does not solve it."""
    rng = np.random.default_rng([seed, task_id, *name.encode()])
    steps: list[Step] = []
    try:
        observation, _ = environment.reset(task_id)
        context = chat.opening(environment.told, observation, environment.examples)
        ended = solved = False
        while not ended:
            action = environment.expert_action(rng)
            answer = chat.answer(action)
            steps.append(
                Step(
                    observation=observation,
                    action=action,
                    context_ids=tuple(context),
                    action_ids=tuple(answer),
                    action_logprobs=(0.0,) * len(answer),
                )
            )
            observation, _, terminated, truncated, info = environment.step(action)
            context = chat.next_turn(observation)
            ended = terminated or truncated
            solved = ended and bool(environment.success(info))
    except EnvironmentFailureError:
        # The expert has no way on from here: this task is one that it does not solve.
        return None
    if not solved:
        return None
    return Trajectory(
        task=Task(environment=name, task_id=task_id, subject=environment.task_subject(task_id)),
        steps=tuple(steps),
        final_observation=observation,
        success=True,
        adapter_sha256="",
        round=EXPERT_ROUND,
    )
