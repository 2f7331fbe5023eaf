"""A few episodes of one environment, played for the operator who sets it up.

The silo's own tasks of the training split are played by the bare base model, one after the other,
as a round would play them. Invariants:

1. Nothing is sent, asked of the coordinator, charged, trained or kept; no store, memory or state of
   the silo is read or written. The daemon may run. An environment may write what it always writes.
2. Texts are as the model reads them: of bounded length, and without chat markers.
3. What an environment's own code raises is said as the environment's failure, never as ours.

Covered: every environment of the silo that is declared in ``silo.toml``, also a harness. Not
covered: adapters; several episodes at once, which a round plays faster than one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evolution.envs.environment import Environment, Example
from evolution.envs.tasks import Split
from evolution.errors import (
    EnvironmentFailureError,
    EnvironmentSetupError,
    EvolutionError,
    RolloutError,
)
from evolution.rollout.conversation import MAX_OBSERVATION_CHARS, ChatFormat
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.rollout.trial import Trial, trial_of
from evolution.trajectory import Task, Trajectory
from silo_agent.config import SiloConfig
from silo_agent.errors import ConfigError

__all__ = ["Asked", "Played", "Tried", "Turn", "try_environment"]

_ALPHA: Final = 16.0
_BARE: Final = "base"
"""The version of no adapter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the operator may decide."""

    episodes: int = 5
    """How many."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    max_new_tokens: int = 8
    """Longest answer in one turn."""
    dtype: str = "float32"
    """Of the base weights."""
    seed: int = 0
    """Decides every draw."""
    texts: bool = False
    """Whether the conversations are wanted; each task is then begun once more, to ask for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    """system, user or assistant."""
    text: str
    """At most ``MAX_OBSERVATION_CHARS`` characters, as they are: whoever shows it makes it safe."""
    example: bool = False
    """It is shown before the first turn, and was not played."""
    cut_off: bool = False
    """The answer reached the longest allowed length."""
    not_read: bool = False
    """The environment could not read the answer as an action."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """One episode."""

    number: int
    """From 1."""
    task_id: int
    """Of the environment."""
    label: str
    """What the task is dealt out by."""
    outcome: str
    """solved, not solved or dropped."""
    truncated: bool
    """A limit ended it."""
    answers: int
    """Turns of the model."""
    duration_s: float
    """Of this episode."""
    turns: tuple[Turn, ...]
    """Empty unless texts were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What came of it."""

    trial: Trial
    """In numbers."""
    unknown_words: tuple[str, ...]
    """Which words the base model does not know; empty unless texts were asked for."""


def try_environment(
    config: SiloConfig,
    name: str,
    asked: Asked,
    *,
    say: Callable[[str], None],
    told: Callable[[Played], None],
) -> Tried:
    """Play episodes of an environment that the silo declares; ``told`` hears of each.

    Raises:
        ConfigError: There is no base model, or no such environment is declared.
        EnvironmentFailureError: The environment cannot be made, or cannot begin a first task.
        RolloutError: The base model cannot be loaded.
    """
    if config.base_model is None:
        raise ConfigError("no base model to play with: set base_model in silo.toml")
    _require_declared(config, name)
    say(f"beginning a first task of {name}")
    tasks = _Tasks(config, name)
    say(f"loading the base model {config.base_model}")
    with closing(_engine(config.base_model, config, asked)) as engine:
        engine.load_adapter(_BARE, {})
        desk = _Desk(config=config, tasks=tasks, asked=asked, engine=engine)
        for number in range(1, asked.episodes + 1):
            say(f"playing episode {number} of {asked.episodes}")
            told(desk.play(number))
        return desk.tried()


class _Tasks:
    """The silo's own tasks of an environment, and what each tells beside its observations.

    An environment is made for each question and closed again: a server may have one seat alone.
    """

    def __init__(self, config: SiloConfig, name: str) -> None:
        self.name = name
        self._make = config.catalogue().make
        entries = (entry for entry in config.environments if entry.environment == name)
        shard = next((entry.assignment().shard for entry in entries), None)
        with self._made() as environment:
            self._ids = environment.task_ids(Split.TRAIN, shard=shard)
            environment.reset(self._ids[0])

    def of(self, number: int) -> int:
        """The task of an episode, counted from 1; few tasks come again."""
        return self._ids[(number - 1) % len(self._ids)]

    def label(self, task_id: int) -> str:
        """What the task is dealt out by."""
        with self._made() as environment:
            return environment.task_label(task_id)

    def opening(self, task_id: int) -> tuple[str, tuple[Example, ...]]:
        """Instruction and example turns, which may suit the task."""
        with self._made() as environment:
            environment.reset(task_id)
            return environment.told, tuple(environment.examples)

    @contextmanager
    def _made(self) -> Iterator[Environment]:
        try:
            with closing(self._make(self.name)) as environment:
                yield environment
        except EnvironmentFailureError as error:
            raise EnvironmentSetupError(f"{self.name} does not start: {error}") from error
        except Exception as error:
            raise EnvironmentSetupError(f"{self.name} does not start: {_shown(error)}") from error


class _Desk:
    """Plays episode after episode, and adds up what came of them."""

    def __init__(
        self, *, config: SiloConfig, tasks: _Tasks, asked: Asked, engine: RolloutEngine
    ) -> None:
        self._make = config.catalogue().make
        self._tasks, self._asked, self._engine = tasks, asked, engine
        self._tries: list[Trajectory] = []
        self._dropped = 0
        self._duration_s = 0.0
        self._unknown: dict[str, None] = {}

    def play(self, number: int) -> Played:
        """Play an episode."""
        asked, task_id = self._asked, self._tasks.of(number)
        opening = self._tasks.opening(task_id) if asked.texts else None
        began_s = time.monotonic()
        batch = run_episodes(
            self._engine,
            [Task(environment=self._tasks.name, task_id=task_id)],
            keys=[number],
            temperature=asked.temperature,
            seed=asked.seed,
            max_new_tokens=asked.max_new_tokens,
            batch_size=1,
            make_environment=self._make,
        )
        duration_s = time.monotonic() - began_s
        (one,) = batch.tries
        self._duration_s += duration_s
        self._dropped += one is None
        turns: tuple[Turn, ...] = ()
        if one is not None:
            self._tries.append(one)
            if opening is not None:
                turns = _conversation(self._engine.chat, *opening, one)
                self._note_unknown(turns)
        return Played(
            number=number,
            task_id=task_id,
            label=self._tasks.label(task_id),
            outcome="dropped" if one is None else "solved" if one.success else "not solved",
            truncated=one is not None and one.truncated,
            answers=0 if one is None else len(one.steps),
            duration_s=duration_s,
            turns=turns,
        )

    def _note_unknown(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if turn.role != "assistant" or turn.example:
                self._unknown |= dict.fromkeys(self._engine.chat.unknown_words(turn.text))

    def tried(self) -> Tried:
        """What all episodes came to."""
        return Tried(
            trial=trial_of(
                self._engine.chat,
                self._tries,
                dropped=self._dropped,
                duration_s=self._duration_s,
            ),
            unknown_words=tuple(self._unknown),
        )


def _require_declared(config: SiloConfig, name: str) -> None:
    declared = {entry.environment for entry in config.environments}
    declared |= {*config.plugins, *config.foreign}
    if name not in declared:
        known = ", ".join(sorted(declared)) or "none"
        raise ConfigError(f"silo.toml declares no environment {name!r}; declared there: {known}")


def _engine(base_model: Path, config: SiloConfig, asked: Asked) -> RolloutEngine:
    try:
        return make_engine(
            base_model,
            alpha=_ALPHA,
            dtype=asked.dtype,
            threads=config.threads,
            spec=config.rollout,
        )
    except EvolutionError:
        raise
    except Exception as error:
        raise RolloutError(
            f"the base model {base_model} cannot be loaded: {_shown(error)}"
        ) from error


def _shown(error: Exception) -> str:
    """What another's code raised, for the operator who has it."""
    return f"{type(error).__name__}: {error}"[:500]


def _conversation(
    chat: ChatFormat, told: str, examples: Sequence[Example], one: Trajectory
) -> tuple[Turn, ...]:
    """The episode as the model read and wrote it."""
    turns = [Turn(role="system", text=chat.clean(told))]
    for observation, action in examples:
        turns.append(Turn(role="user", text=chat.clean(observation), example=True))
        turns.append(Turn(role="assistant", text=chat.clean(action), example=True))
    for step in one.steps:
        turns.append(Turn(role="user", text=chat.clean(step.observation)))
        turns.append(
            Turn(
                role="assistant",
                text=chat.text_of(step.action_ids)[:MAX_OBSERVATION_CHARS],
                cut_off=step.cut_off,
                not_read=step.invalid,
            )
        )
    last = chat.clean(one.final_observation)
    return (*turns, Turn(role="user", text=last)) if last else tuple(turns)
