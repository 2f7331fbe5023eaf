"""Playing many episodes at once.

Episodes are played in batches; every turn of a batch is one call of the engine. Invariants:

1. An episode's random draws depend on the seed and on its place in ``tasks``, never on the batch
   size, so the same call with another batch size plays the same episodes (up to rounding).
2. An environment is foreign: whatever it raises, from its making to its verdict, ends *its*
   episode, which is dropped and counted. The other episodes go on, and no later one is played in
   an environment that failed. What its closing raises is logged and changes nothing.
3. So does the engine: where it fails for a batch, each of its conversations is asked for alone,
   and those that fail alone are dropped.
4. An episode that would outgrow the model's context ends there, unsolved.
5. Between two turns the site's time for local work may end everything, and so may the end of what
   it is for (``local_time.py``).

Covered: synchronous environments in this process. Not covered: environments slower than the model
(the batch waits for its slowest member).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment
from evolution.errors import RolloutError
from evolution.local_time import require_time, require_wanted
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling
from evolution.trajectory import Step, Task, Trajectory

__all__ = ["EpisodeBatch", "run_episodes"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBatch:
    """What ``run_episodes`` played."""

    trajectories: tuple[Trajectory, ...]
    """Finished episodes, in the order of their tasks."""
    dropped: int
    """Episodes whose environment or engine failed or whose opening alone outgrows the context."""
    environment_steps: int
    """Steps taken, including those of dropped episodes."""


@dataclass(kw_only=True, slots=True)
class _Episode:
    """An episode while it is played."""

    key: int
    task: Task
    environment: Environment | None = None
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
    """Play one episode per task, ``batch_size`` at once, with whatever adapter the engine holds.

    A task that appears twice is played twice; temperature 0 is greedy. The seed decides every draw,
    and the round is recorded in the trajectories.
    """
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
    pool = _Pool(make_environment)
    played: list[Trajectory] = []
    dropped = environment_steps = 0
    try:
        for start in range(0, len(tasks), batch_size):
            wave = [
                _Episode(key=key, task=task)
                for key, task in enumerate(tasks[start : start + batch_size], start)
            ]
            for episode in wave:
                _guarded(episode, pool.lend, episode)
            _play(engine, wave, sampling)
            for episode in wave:
                pool.take_back(episode)
                environment_steps += len(episode.steps)
                dropped += episode.failed
            played += [
                Trajectory(
                    task=episode.task,
                    steps=tuple(episode.steps),
                    final_observation=episode.observation,
                    success=episode.success,
                    adapter_sha256=engine.adapter_version,
                    round=round_index,
                )
                for episode in wave
                if not episode.failed
            ]
    finally:
        pool.close()
    return EpisodeBatch(
        trajectories=tuple(played), dropped=dropped, environment_steps=environment_steps
    )


class _Pool:
    """Environments that no episode is being played in, by name."""

    def __init__(self, make_environment: Callable[[str], Environment]) -> None:
        self._make = make_environment
        self._free: dict[str, list[Environment]] = {}

    def lend(self, episode: _Episode) -> None:
        free = self._free.get(episode.task.environment)
        name = episode.task.environment
        episode.environment = free.pop(0) if free else self._make(name)

    def take_back(self, episode: _Episode) -> None:
        environment, episode.environment = episode.environment, None
        if environment is None:
            return
        if episode.failed:
            # What a failure left in it must not reach the next task.
            _close(episode.task.environment, environment)
        else:
            self._free.setdefault(episode.task.environment, []).append(environment)

    def close(self) -> None:
        for name, free in self._free.items():
            for environment in free:
                _close(name, environment)


def _close(name: str, environment: Environment) -> None:
    try:
        environment.close()
    except Exception as error:  # noqa: BLE001  # foreign code; its episodes are over already
        _log.warning("environment_not_closed", environment=name, error=type(error).__name__)


def _play(engine: RolloutEngine, wave: Sequence[_Episode], sampling: Sampling) -> None:
    for episode in wave:
        if not episode.failed:
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
        require_wanted()
        require_time()
        for episode, answer in _answers(engine, active, sampling):
            _guarded(episode, _advance, engine, episode, answer)


def _answers(
    engine: RolloutEngine, active: Sequence[_Episode], sampling: Sampling
) -> Iterator[tuple[_Episode, Generation]]:
    """The next answer of each episode; those that the engine cannot answer are dropped."""
    prompts = [Prompt(key=e.key, token_ids=e.history + e.context) for e in active]
    try:
        answers = engine.generate(prompts, sampling)
    except Exception as error:  # noqa: BLE001  # one conversation may have done it: see invariant 3
        _log.warning("batch_not_answered", episodes=len(active), error=type(error).__name__)
    else:
        yield from zip(active, answers, strict=True)
        return
    for episode, prompt in zip(active, prompts, strict=True):
        answers = []
        _guarded(episode, _ask, engine, prompt, sampling, answers)
        if not episode.failed:
            yield episode, answers[0]


def _ask(
    engine: RolloutEngine, prompt: Prompt, sampling: Sampling, answers: list[Generation]
) -> None:
    (answer,) = engine.generate([prompt], sampling)
    answers.append(answer)


def _environment_of(episode: _Episode) -> Environment:
    if episode.environment is None:
        raise RolloutError("an episode without an environment cannot be played")
    return episode.environment


def _start(engine: RolloutEngine, episode: _Episode) -> None:
    environment = _environment_of(episode)
    episode.observation, _ = environment.reset(episode.task.task_id)
    episode.context = engine.chat.opening(environment.instruction, episode.observation)


def _advance(engine: RolloutEngine, episode: _Episode, answer: Generation) -> None:
    environment = _environment_of(episode)
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
    observation, _, terminated, truncated, info = environment.step(action)
    episode.observation = observation
    episode.over = terminated or truncated
    if episode.over:
        episode.success = bool(environment.success(info))
    else:
        cut_off = [] if answer.ended else [engine.chat.turn_end_id]
        episode.context = cut_off + engine.chat.next_turn(observation)


def _guarded(episode: _Episode, act: Callable[..., None], *args: Any) -> None:
    try:
        act(*args)
    except Exception as error:  # noqa: BLE001  # an environment is foreign code: see invariant 2
        episode.failed = episode.over = True
        _log.warning(
            "episode_dropped", environment=episode.task.environment, error=type(error).__name__
        )
