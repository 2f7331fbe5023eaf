"""What every adapter to a foreign environment has in common.

An adapter only translates: ``_begin`` and ``_act`` return a ``Turn`` with whatever the environment
said, unchecked. This class bounds and checks it, counts steps, adds rewards up and decides success.
Invariants:

1. Nothing unchecked leaves ``reset`` and ``step``: text is bounded, rewards are finite, flags are
   bools, ``info["valid"]`` included; anything else is a ``ForeignEnvironmentError`` and ends the
   episode.
2. After an error the episode is over, and what it held is released. The next ``reset`` starts anew.
3. An episode is over after ``max_steps`` steps, whatever the environment says.
4. With a table of action words, a word that is not in it costs a step, is answered here, and never
   reaches the environment. The word is not echoed, and the step is an invalid one. Beside that an
   environment may say itself which actions it could not read (``valid`` in the info).
5. An environment that three times in a row could not be reached or did not answer is left alone for
   a minute: its episodes fail at once, so that a round does not wait for each of them. Not where
   units are protected (``Catalogue.apart``).

Covered: one episode at a time per object. Not covered: an environment that lies. Its reward is the
label that is trained on, and nothing here can tell a false one; ``max_steps``, the site policy and
the choice of server are what limits it.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from evolution.envs.environment import Environment, Example, Info
from evolution.envs.foreign.reply import bool_of, field_of, reward_of, visible_text
from evolution.envs.foreign.spec import ForeignSpec
from evolution.envs.tasks import Shard, Split
from evolution.errors import (
    EnvironmentFailureError,
    EpisodeStateError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)

__all__ = ["Breaker", "ForeignEnvironment", "Turn", "make_foreign"]

SpecT = TypeVar("SpecT", bound=ForeignSpec)
ResultT = TypeVar("ResultT")

_ADAPTERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "AgentGymSpec": "evolution.envs.foreign.agentgym:AgentGymEnvironment",
        "GymSpec": "evolution.envs.foreign.gym:GymEnvironment",
        "HarnessSpec": "evolution.gateway.environment:HarnessEnvironment",
        "OpenEnvSpec": "evolution.envs.foreign.openenv:OpenEnvEnvironment",
        "ReasoningGymSpec": "evolution.envs.foreign.reasoning_gym:ReasoningGymEnvironment",
        "TextWorldSpec": "evolution.envs.foreign.textworld:TextWorldEnvironment",
        "TrlSpec": "evolution.envs.foreign.trl:TrlEnvironment",
    }
)
"""By kind of spec; imported when an environment is made, because each needs a package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What an environment said, unchecked."""

    observation: object
    """What the agent may see, or an object with fields of it."""
    reward: object = 0.0
    """Of this step."""
    terminated: object = False
    """The task is over."""
    truncated: object = False
    """The environment cut the episode off."""
    info: object = field(default_factory=dict)
    """What else it said."""
    ours: bool = False
    """The observation is a text of Chorale's own: the action never reached the environment."""


@dataclass(kw_only=True, slots=True)
class Breaker:
    """Whether an environment is left alone for now.

    Shared by all objects of one environment, which may be called on several threads.
    """

    failures: int = 3
    """In a row, until it is left alone."""
    pause_s: float = 60.0
    """For how long."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    _failed: int = 0
    _until_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __getstate__(self) -> tuple[int, float, Callable[[], float]]:
        """What goes along to another process: not how it stands, nor the lock."""
        return self.failures, self.pause_s, self.clock

    def __setstate__(self, state: tuple[int, float, Callable[[], float]]) -> None:
        """Begin closed."""
        self.failures, self.pause_s, self.clock = state
        self._failed, self._until_s, self._lock = 0, 0.0, threading.Lock()

    def require_closed(self) -> None:
        """Fail at once while the environment is left alone.

        Raises:
            ForeignUnreachableError: It is.
        """
        if self.clock() < self._until_s:
            raise ForeignUnreachableError("the environment failed too often and is left alone")

    def note(self, *, answered: bool) -> None:
        """Count an answer, or that there was none."""
        with self._lock:
            self._failed = 0 if answered else self._failed + 1
            if self._failed >= self.failures:
                # After the pause one more failure is enough.
                self._failed = self.failures - 1
                self._until_s = self.clock() + self.pause_s


class ForeignEnvironment(Environment, Generic[SpecT]):
    """An environment behind an adapter; see the module. Made by ``make_foreign``."""

    observed: Sequence[str] = ()
    """Fields of an observation that the agent sees; empty for the observation itself."""

    def __init__(self, spec: SpecT, breaker: Breaker) -> None:
        self._spec = spec
        self._breaker = breaker
        self._playing = False
        self._steps = 0
        self._return = 0.0

    @property
    def instruction(self) -> str:
        """The operator's."""
        return self._spec.instruction

    @property
    def examples(self) -> Sequence[Example]:
        """The operator's."""
        return self._spec.examples

    def task_ids(self, split: Split, *, shard: Shard | None = None) -> Sequence[int]:
        """The task ids of a split, or of one shard of it; few where the operator says so."""
        return self._spec.task_ids(split, shard)

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task in one of the splits.

        Raises:
            TaskIdError: The environment has no such task.
            ForeignEnvironmentError: It could not start the episode.
        """
        index = self._spec.task_index(task_id)
        self._playing = False
        self._steps = 0
        self._return = 0.0
        turn = self._guarded(self._begin, index)
        text = self._checked(visible_text, turn.observation, self.observed)
        self._playing = True
        return text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one action; the info of the last step is what ``success`` reads.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
            ForeignEnvironmentError: The environment failed; the episode is over.
        """
        if not self._playing:
            raise EpisodeStateError("the episode is over; reset first")
        self._steps += 1
        words = self._spec.actions
        if words and action not in words:
            told = f"That is no action. Actions: {', '.join(words)}."
            turn = Turn(observation=told, ours=True)
        else:
            turn = self._guarded(self._act, words.index(action) if words else action)
        result = self._checked(self._read, turn)
        if result[2] or result[3]:
            self._over()
        return result

    def success(self, info: Info) -> bool:
        """Whether the episode that ended with this info is solved by the operator's rule."""
        rule = self._spec.success
        if rule.reward_at_least is not None:
            return bool(info["reward"] >= rule.reward_at_least)
        if rule.return_at_least is not None:
            return bool(info["return"] >= rule.return_at_least)
        return bool(info["success"])

    def close(self) -> None:
        """Release what the episode and the connection hold."""
        self._playing = False
        self._end()

    @abstractmethod
    def _begin(self, index: int) -> Turn:
        """Start the environment's own task of that number; only the observation counts."""

    @abstractmethod
    def _act(self, action: str | int) -> Turn:
        """Play one action: text, or its number where the operator gave words."""

    @abstractmethod
    def _end(self) -> None:
        """Release everything; may be called at any time and more than once."""

    def _over(self) -> None:
        """The episode is over: release what only it needed."""

    def _read(self, turn: Turn) -> tuple[str, float, bool, bool, Info]:
        text = visible_text(turn.observation, () if turn.ours else self.observed)
        reward = reward_of(turn.reward)
        terminated = bool_of(turn.terminated, "terminated")
        ended = bool_of(turn.truncated, "truncated") or terminated
        self._return += reward
        said = turn.info.get("valid", True) if isinstance(turn.info, dict) else True
        info: Info = {
            "reward": reward,
            "return": self._return,
            "success": False,
            "valid": not turn.ours and bool_of(said, "valid"),
        }
        key = self._spec.success.info
        if key is not None and ended:
            # An episode that was cut off here need not have the key; one that ended there must.
            info["success"] = bool_of(field_of(turn.info, key), "info")
        self._playing = not ended and self._steps < self.max_steps
        return text, reward, terminated, not self._playing and not terminated, info

    def _guarded(self, act: Callable[..., Turn], *args: Any) -> Turn:
        """Ask the environment, unless it is left alone."""
        try:
            self._breaker.require_closed()
        except ForeignUnreachableError:
            self._release()
            raise
        try:
            turn = act(*args)
        except EnvironmentFailureError as error:
            silent = isinstance(error, ForeignTimeoutError | ForeignUnreachableError)
            self._breaker.note(answered=not silent)
            self._release()
            raise
        self._breaker.note(answered=True)
        return turn

    def _checked(self, check: Callable[..., ResultT], *args: Any) -> ResultT:
        try:
            return check(*args)
        except EnvironmentFailureError:
            self._release()
            raise

    def _release(self) -> None:
        """End the episode after a failure, whose error is the one to tell."""
        with contextlib.suppress(EnvironmentFailureError):
            self.close()


def make_foreign(spec: ForeignSpec, breaker: Breaker) -> Environment:
    """Make an environment of one table of silo.toml; nothing is connected before its first reset.

    All objects of this environment share the breaker.
    """
    module, _, attribute = _ADAPTERS[type(spec).__name__].partition(":")
    adapter = getattr(importlib.import_module(module), attribute)
    # Names and limits belong to the class of an environment, so each table makes one of its own.
    constants = {
        "name": spec.name,
        "family": spec.family,
        "max_steps": spec.max_steps,
        "labels": spec.labels,
    }
    environment = type(attribute, (adapter,), constants)(spec, breaker)
    if not isinstance(environment, Environment):
        raise TypeError(f"{attribute} is not an environment")
    return environment
