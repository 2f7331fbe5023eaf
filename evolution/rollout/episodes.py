"""Playing many episodes at once.

Episodes are played in batches; every turn of a batch is one call of the engine. As soon as an
episode ends the next one takes its seat, so a batch stays full until no task is left, however
different in length its episodes are. Invariants:

1. An episode's random draws depend on the seed and on its key, never on the batch, so the same
   call with another batch size plays the same episodes (up to rounding). Where even rounding may
   not pass from one task to another they are played ``apart``: only tries of one task, which come
   one after the other, share a batch, and where memory ran out in one task the next one is tried
   in whole batches again.
2. An environment is foreign: whatever it raises, from its making to its verdict, ends *its*
   episode, which is dropped and counted. The other episodes go on, and no later one is played in
   an environment that failed. What its closing raises is logged and changes nothing.
3. So does the engine: where it fails for a batch, each of its conversations that has no answer yet
   is asked for alone, and those that fail alone are dropped.
4. An episode that would outgrow the model's context, the longest row that is trained on
   (``max_tokens``), or its environment's ``max_steps``, ends there, unsolved and ``truncated``; so
   does one that its environment cuts off. So what one try
   costs is bounded by numbers: turns, tokens of a turn, context.
5. With ``try_s`` an environment that takes longer in one try ends that try alone
   (``own_time.py``); the model's time, which a batch shares, does not count.
6. Between two turns the time for local work may end everything, and so may the end of what it is
   for (``local_time.py``).
7. What a step returned is checked before anything is made of it (``evolution/envs/outcome.py``).
8. A task's prefix is replayed before the first turn, in the try's own time. One that ends the
   episode, or leaves no step of ``max_steps``, drops the try; so does a variant where the
   environment takes none. Neither is ever left out in silence, for the try would be one at another
   task. A task's scaffold is read by the agent and by no environment; an environment that plays
   itself has no place for one, and drops the try.

9. Environments that wait for somebody else (``Environment.waits``) begin and step together, each
   on a thread of its own; all others one after the other, here. An object is called once at a time.
10. Tasks of an environment that plays itself (``PlaysItself``: a harness behind the gateway) are
   played by it, before the others, and their tries stand at their own places.

Covered: synchronous environments, in this process and behind a server. Not covered: a batch whose
environments are as different in speed as in length (a turn waits for its slowest, with ``try_s`` no
longer than that).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment, Example, TakesVariants
from evolution.envs.foreign.spec import HARNESS
from evolution.envs.outcome import Outcome, outcome_of
from evolution.errors import PartlyAnsweredError, PrefixError, RolloutError, VariantError
from evolution.local_time import require_time, require_wanted
from evolution.rollout.engine import ANY_NUMBER, Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.environment_pool import EnvironmentPool
from evolution.rollout.own_time import OwnTime
from evolution.trajectory import Group, Step, Task, Trajectory
from ops.logs.logger import get_logger

__all__ = ["EpisodeBatch", "PlaysItself", "figures_of", "run_episodes"]

T = TypeVar("T")
_Stepped = tuple[Outcome, bool, bool]
"""What a step came to, whether it solved the task, and whether it broke a stated rule."""
_NO_MOVE: Final = ("", Generation(token_ids=(), logprobs=(), ended=False))

_log = get_logger(__name__)


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
    bare: tuple[int, ...] | None = None
    """See ``Step.bare_ids``."""
    steps: list[Step] = field(default_factory=list)
    acted: int = 0
    """Actions sent to the environment, the one that it failed at included; none of the prefix."""
    move: tuple[str, Generation] = _NO_MOVE
    """What the agent did last, and the answer that it was read from."""
    success: bool = False
    violated: bool = False
    truncated: bool = False
    over: bool = False
    failed: bool = False
    trajectory: Trajectory | None = None
    """What it came to; none while it is played, and none where it was dropped."""

    @property
    def task_name(self) -> tuple[str, int]:
        """The task, however it begins."""
        return self.task.environment, self.task.task_id


_Answers = Callable[[], Iterator[tuple[_Episode, Generation]]]
"""Waits for the engine; then an episode with its answer, one after the other."""


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
    apart: bool = False,
    max_tokens: int | None = None,
) -> EpisodeBatch:
    """Play one episode per task, ``batch_size`` at once, with whatever adapter the engine holds.

    A task that appears twice is played twice; temperature 0 is greedy. The seed and the episode's
    key, by default its place in ``tasks``, decide every draw; keys are distinct. The round is
    recorded in the trajectories. ``try_s`` is the most seconds that one episode's
    environment may take in all; without it there is no limit. ``apart`` lets only tries of one task
    share a batch. ``max_tokens`` bounds what is trained on: an episode ends where not even one
    token more would fit into it.
    """
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
    if any(task.environment.startswith(HARNESS) for task in tasks):
        by_turns = partial(
            run_episodes,
            engine,
            temperature=temperature,
            seed=seed,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            round_index=round_index,
            try_s=try_s,
            make_environment=make_environment,
            apart=apart,
            max_tokens=max_tokens,
        )

        def by_itself(asked: Sequence[Task], *, keys: Sequence[int]) -> EpisodeBatch:
            environment = make_environment(asked[0].environment)
            if not isinstance(environment, PlaysItself):
                raise RolloutError("a harness: environment does not play itself")
            return environment.play(
                engine,
                asked,
                keys=keys,
                sampling=sampling,
                batch_size=batch_size,
                round_index=round_index,
                try_s=try_s,
            )

        keys = range(len(tasks)) if keys is None else keys
        return _by_who_plays(tasks, keys, by_turns=by_turns, by_itself=by_itself)
    keys = range(len(tasks)) if keys is None else keys
    episodes = [_Episode(key=key, task=task) for key, task in zip(keys, tasks, strict=True)]
    own_time = OwnTime(try_s)
    table = _Table(
        engine=engine,
        sampling=sampling,
        own_time=own_time,
        pool=EnvironmentPool(make_environment, own_time),
        round=round_index,
        room=min(engine.context_limit - max_new_tokens, (max_tokens or engine.context_limit) - 1),
    )
    # A lane for each part of the engine: environments step in one while others are answered.
    count = engine.lanes if batch_size >= engine.lanes else 1
    lanes = deque(
        _lane(
            table,
            deque(episode for episode in episodes if episode.key % count == lane),
            size=(batch_size + lane) // count,
            apart=apart,
        )
        for lane in range(count)
    )
    try:
        while lanes:
            lane = lanes.popleft()
            if next(lane, None) is not None:
                lanes.append(lane)
    finally:
        table.pool.close()
        own_time.close()
    return EpisodeBatch(
        tries=tuple(episode.trajectory for episode in episodes),
        dropped=sum(episode.failed for episode in episodes),
        environment_steps=sum(episode.acted for episode in episodes),
        tasks=tuple(tasks),
        round=round_index,
    )


def _lane(
    table: _Table, waiting: deque[_Episode], *, size: int, apart: bool
) -> Iterator[Literal[True]]:
    """Play what waits, ``size`` at once; says so whenever it has asked for answers."""
    seats: list[_Episode] = []
    while True:
        room = min(size, _most_at_once(table.engine, seats, apart=apart))
        seats, joined = _seated(seats, waiting, size=room, apart=apart)
        if not seats:
            return
        table.begin(joined)
        # Who is over before its first turn leaves its seat to another before the batch plays.
        if not any(episode.over for episode in joined):
            answers = table.ask(seats)
            yield True
            table.play_turn(seats, answers)
        for episode in seats:
            if episode.over:
                table.leave(episode)


class _Tries(Protocol):
    def __call__(self, asked: Sequence[Task], /, *, keys: Sequence[int]) -> EpisodeBatch: ...


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
        parts.append(play([tasks[place] for place in own], keys=[keys[place] for place in own]))
        for place, played in zip(own, parts[-1].tries, strict=True):
            tries[place] = played
    return EpisodeBatch(
        tries=tuple(tries),
        dropped=sum(part.dropped for part in parts),
        environment_steps=sum(part.environment_steps for part in parts),
        tasks=tuple(tasks),
        round=parts[0].round,
    )


def _most_at_once(engine: RolloutEngine, seats: Sequence[_Episode], *, apart: bool) -> int:
    """How many the engine has room for; memory that ran out in one task is not held against others.

    Else it would divide their tries, where nothing may pass from one task to another.
    """
    if apart and all(episode.over for episode in seats):
        engine.most_at_once = ANY_NUMBER
    return engine.most_at_once


def _seated(
    seats: Sequence[_Episode], waiting: deque[_Episode], *, size: int, apart: bool
) -> tuple[list[_Episode], list[_Episode]]:
    """Who plays the next turn, and who of them begins with it.

    A new episode takes the seat of one that is over, so that an engine need not move the others.
    """
    playing = [episode for episode in seats if not episode.over]
    joined: list[_Episode] = []
    while waiting and len(playing) + len(joined) < size:
        company = [*playing[:1], *joined[:1]]
        if apart and company and company[0].task_name != waiting[0].task_name:
            break
        joined.append(waiting.popleft())
    new = iter(joined)
    taken = [next(new, None) if episode.over else episode for episode in seats]
    return [episode for episode in (*taken, *new) if episode is not None], joined


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """What episodes are played with."""

    engine: RolloutEngine
    sampling: Sampling
    own_time: OwnTime
    pool: EnvironmentPool
    round: int
    room: int
    """Most tokens before an answer."""

    def begin(self, joined: Sequence[_Episode]) -> None:
        """Start episodes, up to the agent's first turn."""
        for episode in joined:
            _guarded(episode, _sit_down, self.pool, episode)
        begun = [
            (episode, partial(_begin, _environment_of(episode), episode.task))
            for episode in joined
            if not episode.failed
        ]
        for episode, first in _asked(begun, self.own_time):
            _guarded(episode, _take_first, self.engine, episode, first)
        self._end_without_room(joined)

    def ask(self, seats: Sequence[_Episode]) -> _Answers:
        """Have the agent begin to answer in every episode; what is returned waits for it."""
        require_wanted()
        require_time()
        prompts = [Prompt(key=e.key, token_ids=e.history + e.context) for e in seats]
        try:
            asked = self.engine.ask(prompts, self.sampling)
        except Exception:  # noqa: BLE001  # it fails again where answers are waited for
            asked = partial(self.engine.generate, prompts, self.sampling)
        return partial(_answers, self.engine, seats, prompts, asked, self.sampling)

    def play_turn(self, seats: Sequence[_Episode], answers: _Answers) -> None:
        """Have the environments answer the agent."""
        moves: list[tuple[_Episode, Callable[[], _Stepped]]] = []
        for episode, answer in answers():
            _guarded(episode, _move, self.engine, episode, answer, moves)
        for episode, stepped in _asked(moves, self.own_time):
            _guarded(episode, _take_step, self.engine, episode, stepped)
        self._end_without_room(seats)

    def leave(self, episode: _Episode) -> None:
        """Note what an episode came to, and let go of what it was played with."""
        if episode.environment is not None:
            self.pool.take_back(
                episode.task.environment, episode.environment, failed=episode.failed
            )
            episode.environment = None
        if not episode.failed:
            helped = episode.task.scaffold
            episode.trajectory = Trajectory(
                task=replace(episode.task, scaffold=None),
                steps=tuple(episode.steps),
                final_observation=episode.observation,
                success=episode.success,
                adapter_sha256=self.engine.adapter_version,
                round=self.round,
                truncated=episode.truncated,
                helped_by=() if helped is None else helped.made_of,
                violated=episode.violated,
            )
        episode.steps, episode.history, episode.context = [], [], []

    def _end_without_room(self, episodes: Sequence[_Episode]) -> None:
        """End episodes whose next answer might not fit."""
        for episode in episodes:
            if not episode.over and len(episode.history) + len(episode.context) > self.room:
                episode.over = episode.truncated = True
                episode.failed = not episode.steps


def _answers(
    engine: RolloutEngine,
    seats: Sequence[_Episode],
    prompts: Sequence[Prompt],
    asked: Callable[[], list[Generation]],
    sampling: Sampling,
) -> Iterator[tuple[_Episode, Generation]]:
    """The next answer of each episode; those that the engine cannot answer are dropped."""
    answers: list[Any] = [None] * len(seats)
    try:
        answers = list(asked())
    except PartlyAnsweredError as error:
        answers = list(error.answers)
        _log.warning("batch_not_answered", episodes=answers.count(None))
    except Exception as error:  # noqa: BLE001  # one conversation may have done it: see invariant 3
        _log.warning("batch_not_answered", episodes=len(seats), error=type(error).__name__)
    for episode, prompt, answer in zip(seats, prompts, answers, strict=True):
        alone = [] if answer is None else [answer]
        if answer is None:
            _guarded(episode, _ask, engine, prompt, sampling, alone)
        if not episode.failed:
            yield episode, alone[0]


def _ask(
    engine: RolloutEngine, prompt: Prompt, sampling: Sampling, answers: list[Generation]
) -> None:
    (answer,) = engine.generate([prompt], sampling)
    answers.append(answer)


def _environment_of(episode: _Episode) -> Environment:
    if episode.environment is None:
        raise RolloutError("an episode without an environment cannot be played")
    return episode.environment


def _asked(
    calls: Sequence[tuple[_Episode, Callable[[], T]]], own_time: OwnTime
) -> Iterator[tuple[_Episode, Callable[[], T]]]:
    """Call environments; each episode comes with what gives its own's answer, or raises its error.

    What is called may not touch the episode: it may be left behind, and go on unheard.
    """
    together = [i for i, (episode, _) in enumerate(calls) if _environment_of(episode).waits]
    futures = own_time.call_together([(calls[i][0].key, calls[i][1]) for i in together])
    heard = dict(zip(together, futures, strict=True))
    for i, (episode, act) in enumerate(calls):
        future = heard.get(i)
        yield (
            episode,
            partial(own_time.call, episode.key, act) if future is None else future.result,
        )


def _sit_down(pool: EnvironmentPool, episode: _Episode) -> None:
    episode.environment = pool.lend(episode.key, episode.task.environment)


def _begin(environment: Environment, task: Task) -> tuple[str, str, tuple[Example, ...]]:
    """Start an episode: what the agent sees first, the instruction and the examples."""
    first = _begun(environment, task)
    return first, environment.told, tuple(environment.examples)


def _take_first(
    engine: RolloutEngine,
    episode: _Episode,
    first: Callable[[], tuple[str, str, tuple[Example, ...]]],
) -> None:
    episode.observation, instruction, examples = first()
    episode.context = engine.chat.opening(instruction, episode.observation, examples)
    helped = episode.task.scaffold
    if helped is not None:
        episode.bare = None if helped.stays else tuple(episode.context)
        episode.context = engine.chat.opening(
            instruction, episode.observation, examples, scaffold=helped.text
        )


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


def _move(
    engine: RolloutEngine,
    episode: _Episode,
    answer: Generation,
    moves: list[tuple[_Episode, Callable[[], _Stepped]]],
) -> None:
    """Note what the agent does next, and the call that does it."""
    action = engine.chat.parse_action(answer.token_ids)
    episode.acted += 1
    episode.move = (action, answer)
    moves.append((episode, partial(_step, _environment_of(episode), action)))


def _step(environment: Environment, action: str) -> _Stepped:
    outcome = outcome_of(environment.step(action))
    solved = outcome.over and bool(environment.success(outcome.info))
    # ``SaysViolations``, of which asking with ``isinstance`` takes as long as a cheap step.
    violates = getattr(environment, "violates", None)
    broke = violates is not None and bool(violates(outcome.info))
    return outcome, solved, broke


def _take_step(engine: RolloutEngine, episode: _Episode, stepped: Callable[[], _Stepped]) -> None:
    outcome, episode.success, broke = stepped()
    episode.violated = episode.violated or broke
    action, answer = episode.move
    environment = _environment_of(episode)
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
            bare_ids=None if episode.steps else episode.bare,
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
