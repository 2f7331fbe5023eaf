"""Playing many episodes at once.

Episodes are played in batches; every turn of a batch is one call of the engine. Invariants:

1. An episode's random draws depend on the seed and on its key, never on the batch size, so the
   same call with another batch size plays the same episodes (up to rounding).
2. An environment is foreign: whatever it raises, from its making to its verdict, ends *its*
   episode, which is dropped and counted. The other episodes go on, and no later one is played in
   an environment that failed. What its closing raises is logged and changes nothing.
3. So does the engine: where it fails for a batch, each of its conversations is asked for alone,
   and those that fail alone are dropped.
4. An episode that would outgrow the model's context, or its environment's ``max_steps``, ends
   there, unsolved and ``truncated``; so does one that its environment cuts off. So what one try
   costs is bounded by numbers: turns, tokens of a turn, context.
5. With ``try_s`` an environment that takes longer in one try ends that try alone
   (``own_time.py``); the model's time, which a batch shares, does not count.
6. Between two turns the time for local work may end everything, and so may the end of what it is
   for (``local_time.py``).
7. What a step returned is checked before anything is made of it (``evolution/envs/outcome.py``).
8. A task's prefix is replayed before the first turn, in the try's own time. One that ends the
   episode, or leaves no step of ``max_steps``, drops the try; so does a variant where the
   environment takes none. Neither is ever left out in silence, for the try would be one at another
   task.

9. Tasks of an environment that plays itself (``PlaysItself``: a harness behind the gateway) are
   played by it, before the others, and their tries stand at their own places.

Covered: synchronous environments in this process. Not covered: environments slower than the model
(the batch waits for its slowest member, with ``try_s`` no longer than that).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import structlog

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment, Example, TakesVariants
from evolution.envs.foreign.spec import HARNESS
from evolution.envs.outcome import Outcome, outcome_of
from evolution.errors import PrefixError, RolloutError, VariantError
from evolution.local_time import require_time, require_wanted
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.own_time import OwnTime
from evolution.trajectory import Group, Step, Task, Trajectory

__all__ = ["EpisodeBatch", "PlaysItself", "figures_of", "run_episodes"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBatch:
    """What ``run_episodes`` played."""

    tries: tuple[Trajectory | None, ...]
    """What became of each task, in order; None where its episode was dropped."""
    dropped: int
    """Episodes whose environment or engine failed or whose opening alone outgrows the context."""
    environment_steps: int
    """Steps taken, including those of dropped episodes."""
    tasks: tuple[Task, ...] = ()
    """What was to be played: an episode for each, in this order."""
    round: int = 0
    """The round it was played in."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Finished episodes, in the order of their tasks."""
        return tuple(one for one in self.tries if one is not None)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The tries by task, in the order in which the tasks come first.

        A task whose tries were all dropped is there, with an empty group.
        """
        asked = Counter(self.tasks)
        found: dict[Task, list[Trajectory]] = {task: [] for task in asked}
        for trajectory in self.trajectories:
            found[trajectory.task].append(trajectory)
        return tuple(
            Group(
                task=task,
                round=self.round,
                trajectories=tuple(tries),
                dropped=asked[task] - len(tries),
            )
            for task, tries in found.items()
        )

    @property
    def figures(self) -> dict[str, float]:
        """What was played in numbers, for the silo's own operator."""
        return {
            **figures_of(self.trajectories),
            "dropped": float(self.dropped),
            "environment_steps": float(self.environment_steps),
        }


def figures_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How many answers were cut off, actions could not be read, and tries ended by a limit."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    return {
        "cut_off": float(sum(step.cut_off for step in steps)),
        "invalid_actions": float(sum(step.invalid for step in steps)),
        "truncated": float(sum(trajectory.truncated for trajectory in trajectories)),
    }


@runtime_checkable
class PlaysItself(Protocol):
    """An environment that asks the model by itself instead of being asked for turns."""

    def play(
        self,
        engine: RolloutEngine,
        tasks: Sequence[Task],
        *,
        keys: Sequence[int],
        sampling: Sampling,
        batch_size: int,
        round_index: int,
        try_s: float | None,
    ) -> EpisodeBatch:
        """Play an episode of each task; what the arguments mean says ``run_episodes``."""


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
    acted: int = 0
    """Actions sent to the environment, the one that it failed at included; none of the prefix."""
    success: bool = False
    truncated: bool = False
    over: bool = False
    failed: bool = False


def run_episodes(
    engine: RolloutEngine,
    tasks: Sequence[Task],
    *,
    temperature: float,
    seed: int,
    keys: Sequence[int] | None = None,
    max_new_tokens: int = 16,
    batch_size: int = 64,
    round_index: int = 0,
    try_s: float | None = None,
    make_environment: Callable[[str], Environment] = make,
) -> EpisodeBatch:
    """Play one episode per task, ``batch_size`` at once, with whatever adapter the engine holds.

    A task that appears twice is played twice; temperature 0 is greedy. The seed and the episode's
    key, by default its place in ``tasks``, decide every draw; keys are distinct. The round is
    recorded in the trajectories. ``try_s`` is the most seconds that one episode's
    environment may take in all; without it there is no limit.
    """
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
    if any(task.environment.startswith(HARNESS) for task in tasks):

        def by_turns(asked: Sequence[Task], own_keys: Sequence[int]) -> EpisodeBatch:
            return run_episodes(
                engine,
                asked,
                temperature=temperature,
                seed=seed,
                keys=own_keys,
                max_new_tokens=max_new_tokens,
                batch_size=batch_size,
                round_index=round_index,
                try_s=try_s,
                make_environment=make_environment,
            )

        def by_itself(asked: Sequence[Task], own_keys: Sequence[int]) -> EpisodeBatch:
            environment = make_environment(asked[0].environment)
            if not isinstance(environment, PlaysItself):
                raise RolloutError("a harness: environment does not play itself")
            return environment.play(
                engine,
                asked,
                keys=own_keys,
                sampling=sampling,
                batch_size=batch_size,
                round_index=round_index,
                try_s=try_s,
            )

        keys = range(len(tasks)) if keys is None else keys
        return _by_who_plays(tasks, keys, by_turns=by_turns, by_itself=by_itself)
    own_time = OwnTime(try_s)
    pool = _Pool(make_environment, own_time)
    played: list[Trajectory | None] = []
    keys = range(len(tasks)) if keys is None else keys
    dropped = environment_steps = 0
    try:
        for start in range(0, len(tasks), batch_size):
            wave = [
                _Episode(key=key, task=task)
                for key, task in zip(
                    keys[start : start + batch_size],
                    tasks[start : start + batch_size],
                    strict=True,
                )
            ]
            for episode in wave:
                _guarded(episode, pool.lend, episode)
            _play(engine, wave, sampling, own_time)
            for episode in wave:
                pool.take_back(episode)
                environment_steps += episode.acted
                dropped += episode.failed
            played += [
                None
                if episode.failed
                else Trajectory(
                    task=episode.task,
                    steps=tuple(episode.steps),
                    final_observation=episode.observation,
                    success=episode.success,
                    adapter_sha256=engine.adapter_version,
                    round=round_index,
                    truncated=episode.truncated,
                )
                for episode in wave
            ]
    finally:
        pool.close()
        own_time.close()
    return EpisodeBatch(
        tries=tuple(played),
        dropped=dropped,
        environment_steps=environment_steps,
        tasks=tuple(tasks),
        round=round_index,
    )


_Tries = Callable[[Sequence[Task], Sequence[int]], EpisodeBatch]


def _by_who_plays(
    tasks: Sequence[Task], keys: Sequence[int], *, by_turns: _Tries, by_itself: _Tries
) -> EpisodeBatch:
    """Harness after harness, then everything that is played by turns, in one batch again."""
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        who = task.environment if task.environment.startswith(HARNESS) else ""
        places.setdefault(who, []).append(place)
    tries: list[Trajectory | None] = [None] * len(tasks)
    parts = []
    for who, own in sorted(places.items(), reverse=True):
        play = by_itself if who else by_turns
        parts.append(play([tasks[place] for place in own], [keys[place] for place in own]))
        for place, played in zip(own, parts[-1].tries, strict=True):
            tries[place] = played
    return EpisodeBatch(
        tries=tuple(tries),
        dropped=sum(part.dropped for part in parts),
        environment_steps=sum(part.environment_steps for part in parts),
        tasks=tuple(tasks),
        round=parts[0].round,
    )


class _Pool:
    """Environments that no episode is being played in, by name."""

    def __init__(self, make_environment: Callable[[str], Environment], own_time: OwnTime) -> None:
        self._make = make_environment
        self._own_time = own_time
        self._free: dict[str, list[Environment]] = {}

    def lend(self, episode: _Episode) -> None:
        free = self._free.get(episode.task.environment)
        name = episode.task.environment
        episode.environment = (
            free.pop(0) if free else self._own_time.call(episode.key, self._make, name)
        )

    def take_back(self, episode: _Episode) -> None:
        environment, episode.environment = episode.environment, None
        if environment is None:
            return
        if episode.failed:
            # What a failure left in it must not reach the next task.
            self._own_time.unheard(_close, episode.task.environment, environment)
        else:
            self._free.setdefault(episode.task.environment, []).append(environment)

    def close(self) -> None:
        for name, free in self._free.items():
            for environment in free:
                self._own_time.unheard(_close, name, environment)


def _close(name: str, environment: Environment) -> None:
    try:
        environment.close()
    except Exception as error:  # noqa: BLE001  # foreign code; its episodes are over already
        _log.warning("environment_not_closed", environment=name, error=type(error).__name__)


def _play(
    engine: RolloutEngine, wave: Sequence[_Episode], sampling: Sampling, own_time: OwnTime
) -> None:
    for episode in wave:
        if not episode.failed:
            _guarded(episode, _start, engine, episode, own_time)
    room = engine.context_limit - sampling.max_new_tokens
    while True:
        for episode in wave:
            if not episode.over and len(episode.history) + len(episode.context) > room:
                episode.over = episode.truncated = True
                episode.failed = not episode.steps
        active = [episode for episode in wave if not episode.over]
        if not active:
            return
        require_wanted()
        require_time()
        for episode, answer in _answers(engine, active, sampling):
            _guarded(episode, _advance, engine, episode, answer, own_time)


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


def _start(engine: RolloutEngine, episode: _Episode, own_time: OwnTime) -> None:
    environment = _environment_of(episode)

    def begin() -> tuple[str, str, tuple[Example, ...]]:
        first = _begun(environment, episode.task)
        return first, environment.instruction, tuple(environment.examples)

    episode.observation, instruction, examples = own_time.call(episode.key, begin)
    episode.context = engine.chat.opening(instruction, episode.observation, examples)


def _begun(environment: Environment, task: Task) -> str:
    """Start a task's episode; returns what the agent sees first.

    Raises:
        VariantError: The environment takes no variants.
        PrefixError: The prefix leaves nothing to play.
        OutcomeError: A step returned what is not of the form.
    """
    if len(task.prefix) >= environment.max_steps:
        raise PrefixError("the prefix takes every step that the environment allows")
    if not task.variant:
        observation, _ = environment.reset(task.task_id)
    elif isinstance(environment, TakesVariants):
        observation, _ = environment.reset_variant(task.task_id, task.variant)
    else:
        raise VariantError("the environment takes no task that somebody wrote")
    for action in task.prefix:
        outcome = outcome_of(environment.step(action))
        if outcome.over:
            raise PrefixError("the prefix ends the episode")
        observation = outcome.observation
    return observation


def _advance(
    engine: RolloutEngine, episode: _Episode, answer: Generation, own_time: OwnTime
) -> None:
    environment = _environment_of(episode)
    action = engine.chat.parse_action(answer.token_ids)
    episode.acted += 1

    def act() -> tuple[Outcome, bool]:
        outcome = outcome_of(environment.step(action))
        return outcome, outcome.over and bool(environment.success(outcome.info))

    # What it returns is read here: a call that is left behind must not touch the episode.
    outcome, episode.success = own_time.call(episode.key, act)
    episode.steps.append(
        Step(
            observation=episode.observation,
            action=action,
            context_ids=tuple(episode.context),
            action_ids=answer.token_ids,
            action_logprobs=answer.logprobs,
            reward=outcome.reward,
            invalid=not outcome.valid,
            cut_off=not answer.ended,
        )
    )
    episode.history += [*episode.context, *answer.token_ids]
    episode.observation = outcome.observation
    episode.over, episode.truncated = outcome.over, outcome.truncated
    if not episode.over:
        # One that does not keep its own bound ends all the same, unsolved.
        played = len(episode.task.prefix) + len(episode.steps)
        episode.over = episode.truncated = played >= environment.max_steps
        cut_off = [] if answer.ended else [engine.chat.turn_end_id]
        episode.context = cut_off + engine.chat.next_turn(episode.observation)


def _guarded(episode: _Episode, act: Callable[..., None], *args: Any) -> None:
    try:
        act(*args)
    except Exception as error:  # noqa: BLE001  # an environment is foreign code: see invariant 2
        episode.failed = episode.over = True
        _log.warning(
            "episode_dropped", environment=episode.task.environment, error=type(error).__name__
        )
