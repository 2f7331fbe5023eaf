"""Playing many episodes at once.

Episodes are played in batches; every turn of a batch is one call of the engine. Invariants:

1. An episode's random draws depend on the seed and on its place in ``tasks``, never on the batch
   size, so the same call with another batch size plays the same episodes (up to rounding).
2. An environment is foreign: whatever it raises ends *its* episode, which is dropped and counted.
   The other episodes go on.
3. An episode that would outgrow the model's context ends there, unsolved.

Covered: synchronous environments in this process. Not covered: environments slower than the model
(the batch waits for its slowest member).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from silo_agent.envs.environment import Environment
from silo_agent.envs.registry import make
from silo_agent.rollout.engine import Prompt, RolloutEngine, Sampling
from silo_agent.trajectory import Step, Task, Trajectory

__all__ = ["EpisodeBatch", "run_episodes"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBatch:
    """What ``run_episodes`` played."""

    trajectories: tuple[Trajectory, ...]
    """Finished episodes, in the order of their tasks."""
    dropped: int
    """Episodes whose environment failed or whose opening alone outgrows the context."""
    environment_steps: int
    """Steps taken, including those of dropped episodes."""


@dataclass(kw_only=True, slots=True)
class _Episode:
    """An episode while it is played."""

    key: int
    task: Task
    environment: Environment
    observation: str = ""
    context: list[int] = field(default_factory=list)
    """Tokens since the agent's last answer."""
    history: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    success: bool = False
    over: bool = False
    failed: bool = False


def run_episodes(
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int = 16,
    batch_size: int = 64,
    round_index: int = 0,
    make_environment: Callable[[str], Environment] = make,
) -> EpisodeBatch:
    """Play one episode per task.

    Args:
        engine: Plays with whatever adapter it holds.
        tasks: What to play; a task that appears twice is played twice.
        temperature: 0 is greedy.
        seed: Decides every draw.
        max_new_tokens: Longest answer per turn.
        batch_size: Episodes played at once.
        round_index: Recorded in the trajectories.
        make_environment: Makes an environment by name.

    Returns:
        The finished episodes and the counts.
    """
    episodes: list[_Episode] = []
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
    made: dict[str, list[Environment]] = {}
    try:
        for start in range(0, len(tasks), batch_size):
            wave: list[_Episode] = []
            used = dict.fromkeys(made, 0)
            for key, task in enumerate(tasks[start : start + batch_size], start):
                of_its_kind = made.setdefault(task.environment, [])
                index = used.get(task.environment, 0)
                used[task.environment] = index + 1
                if index == len(of_its_kind):
                    of_its_kind.append(make_environment(task.environment))
                wave.append(_Episode(key=key, task=task, environment=of_its_kind[index]))
            _play(engine, wave, sampling)
            episodes += wave
    finally:
        for of_its_kind in made.values():
            for environment in of_its_kind:
                environment.close()
    return EpisodeBatch(
        trajectories=tuple(
            Trajectory(
                task=episode.task,
                steps=tuple(episode.steps),
                final_observation=episode.observation,
                success=episode.success,
                adapter_sha256=engine.adapter_version,
                round=round_index,
            )
            for episode in episodes
            if not episode.failed
        ),
        dropped=sum(episode.failed for episode in episodes),
        environment_steps=sum(len(episode.steps) for episode in episodes),
    )


def _play(engine: RolloutEngine, wave: Sequence[_Episode], sampling: Sampling) -> None:
    for episode in wave:
        _guarded(episode, _start, engine, episode)
    room = engine.context_limit - sampling.max_new_tokens
    while True:
        for episode in wave:
            if len(episode.history) + len(episode.context) > room:
                episode.over = True
                episode.failed = episode.failed or not episode.steps
        active = [episode for episode in wave if not episode.over]
        if not active:
            return
        prompts = [Prompt(key=e.key, token_ids=e.history + e.context) for e in active]
        for episode, answer in zip(active, engine.generate(prompts, sampling), strict=True):
            action = engine.chat.parse_action(answer.token_ids)
            episode.steps.append(
                Step(
                    observation=episode.observation,
                    action=action,
                    context_ids=tuple(episode.context),
                    action_ids=answer.token_ids,
                    action_logprobs=answer.logprobs,
                )
            )
            episode.history += [*episode.context, *answer.token_ids]
            cut_off = [] if answer.ended else [engine.chat.turn_end_id]
            _guarded(episode, _advance, engine, episode, action, cut_off)


def _start(engine: RolloutEngine, episode: _Episode) -> None:
    episode.observation, _ = episode.environment.reset(episode.task.task_id)
    episode.context = engine.chat.opening(episode.environment.instruction, episode.observation)


def _advance(engine: RolloutEngine, episode: _Episode, action: str, cut_off: list[int]) -> None:
    observation, _, terminated, truncated, info = episode.environment.step(action)
    episode.observation = observation
    episode.over = terminated or truncated
    if episode.over:
        episode.success = episode.environment.success(info)
    else:
        episode.context = cut_off + engine.chat.next_turn(observation)


def _guarded(episode: _Episode, act: Callable[..., None], *args: Any) -> None:
    try:
        act(*args)
    except Exception as error:  # noqa: BLE001  # an environment is foreign code: see invariant 2
        episode.failed = episode.over = True
        _log.warning(
            "episode_dropped", environment=episode.task.environment, error=type(error).__name__
        )
