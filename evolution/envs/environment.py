"""The seam every environment sits behind: Gymnasium's signature, with text.

Invariants:

1. ``reset(task_id)`` fully decides the episode: the same id and the same actions give the same
   observations, on every silo.
2. Any string is a legal argument of ``step``. An action the environment does not understand costs a
   step and is answered by an observation; the action's text is never echoed back.
3. ``step`` reports ``truncated`` on step ``max_steps`` unless the episode terminated there.
4. Whether an episode succeeded is the environment's own rule, ``success(info)``; nobody compares
   rewards from the outside.
5. Observations of the built-in environments use a closed vocabulary (``vocabulary``) and at most
   ``MAX_OBSERVATION_WORDS`` words.
6. ``examples`` are of no task of any split. They are shown as turns that the agent might have
   played, which tells a model more than an instruction does, and are never trained on.
7. The info of a step may say ``valid``: False where the action could not be read at all, True where
   it was read, whatever came of it. The built-in environments say it in every step; where it is
   missing the action counts as read.

What not every environment can do are protocols of their own, used only where an environment has
them: ``SaysAdmissible``, ``SaysViolations``, ``SolvesTasks``, ``TakesVariants``.

8. An environment whose class says ``waits`` waits for somebody else in most of a call: a server, a
   process. Its objects are then called at the same time, each on a thread, which need not be the
   same from call to call; one object is never called twice at once. Without it every call is made
   on one thread, for code that was written for one, and because threads gain quick code nothing.

Covered: text environments, one episode at a time per object. Not covered: remote environment
servers (adapters implement this same class).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from evolution.envs.outcome import outcome_of
from evolution.envs.tasks import Shard, Split, label_index, shard_index, task_range
from evolution.errors import EnvironmentFailureError, VariantError

__all__ = [
    "MAX_OBSERVATION_WORDS",
    "Environment",
    "Example",
    "Info",
    "SaysAdmissible",
    "SaysViolations",
    "ScriptedEnvironment",
    "SolvesTasks",
    "TakesVariants",
]

MAX_OBSERVATION_WORDS = 64
_AFTER: Final = "after "

Info = dict[str, Any]
Example = tuple[str, str]
"""An observation and the action that answers it, as an episode of the environment might have it."""


class Environment(ABC):
    """One family of tasks; an object plays one episode at a time."""

    name: ClassVar[str]
    family: ClassVar[str]  # the public name, used for metrics and clusters
    max_steps: ClassVar[int]
    labels: ClassVar[tuple[str, ...]]  # values of the attribute tasks are dealt out by
    vocabulary: ClassVar[frozenset[str]] = frozenset()  # empty: open vocabulary
    waits: ClassVar[bool] = False  # for somebody else: objects are called at the same time
    replays: ClassVar[bool] = True  # a task may begin after actions of an earlier try
    descriptor: str = ""  # of one object: a line before the instruction that says which it is

    @property
    @abstractmethod
    def instruction(self) -> str:
        """What the agent has to do."""

    @property
    def told(self) -> str:
        """What the agent is told once, before the first observation."""
        return f"{self.descriptor} {self.instruction}" if self.descriptor else self.instruction

    @property
    def examples(self) -> Sequence[Example]:
        """Turns that come before the first, at most 16; asked for once the episode has begun."""
        return ()

    @abstractmethod
    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task; return its first observation."""

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one action; return observation, reward, terminated, truncated, info."""

    @abstractmethod
    def success(self, info: Info) -> bool:
        """Whether the episode that ended with this info counts as solved."""

    def task_ids(self, split: Split, *, shard: Shard | None = None) -> Sequence[int]:
        """The task ids of a split, or of one shard of it."""
        return task_range(split, labels=len(self.labels), shard=shard)

    def task_label(self, task_id: int) -> str:
        """The label of a task."""
        return self.labels[label_index(task_id, labels=len(self.labels))]

    def task_subject(self, task_id: int) -> str:  # noqa: ARG002  # tasks are nobody's by default
        """Whose data a task is made of; empty if nobody's. A subject is one unit of "user"."""
        return ""

    def shard_of(self, task_id: int, count: int) -> int:
        """Which of ``count`` shards owns the label of a task."""
        return shard_index(task_id, labels=len(self.labels), count=count)

    def close(self) -> None:  # noqa: B027  # most environments hold nothing to release
        """Release whatever the environment holds."""


class ScriptedEnvironment(Environment):
    """An environment that can also be played without a model, to make demonstrations.

    Its tasks have variants that begin nearer to their end: ``after 2`` is what is left of a task
    once the expert has played its first two actions. They count as steps, so that the expert ends
    a variant at the very step at which it ends the task.
    """

    @abstractmethod
    def expert_action(self, rng: np.random.Generator) -> str:
        """A good next action in the current state."""

    @abstractmethod
    def random_action(self, rng: np.random.Generator) -> str:
        """Any action the environment understands in the current state."""

    def solve(self, task_id: int) -> Sequence[str]:
        """The expert's actions from the reset to the solution; none where it does not get there.

        They are the same whenever they are asked for. The expert plays in this object, so an
        episode under way is over.
        """
        rng = np.random.default_rng([task_id, *self.name.encode()])
        self.reset(task_id)
        actions: list[str] = []
        while True:
            try:
                action = self.expert_action(rng)
            except EnvironmentFailureError:
                # The expert has no way on from here.
                return ()
            outcome = outcome_of(self.step(action))
            actions.append(action)
            if outcome.over:
                return tuple(actions) if self.success(outcome.info) else ()

    def variants(self, task_id: int) -> Sequence[str]:
        """The task after each of the expert's actions but the last, farthest from the end first.

        An episode under way is over.
        """
        return tuple(f"{_AFTER}{done}" for done in range(1, len(self.solve(task_id))))

    def reset_variant(self, task_id: int, variant: str) -> tuple[str, Info]:
        """Start the episode of a variant; return its first observation.

        Raises:
            VariantError: It is none of the task's.
        """
        if variant not in self.variants(task_id):
            raise VariantError("the task has no such variant")
        actions = self.solve(task_id)[: int(variant.removeprefix(_AFTER))]
        observation, info = self.reset(task_id)
        for action in actions:
            observation, *_, info = self.step(action)
        return observation, info


@runtime_checkable
class SaysAdmissible(Protocol):
    """An environment that knows what may be done next."""

    def admissible(self) -> Sequence[str]:
        """Every action that is possible in the current state; the same state, the same order."""


@runtime_checkable
class SaysViolations(Protocol):
    """An environment that states rules and knows when one was broken, whatever that came to."""

    def violates(self, info: Info) -> bool:
        """Whether the step with this info broke a rule that the environment states."""


@runtime_checkable
class SolvesTasks(Protocol):
    """An environment with an expert of its own."""

    def solve(self, task_id: int) -> Sequence[str]:
        """The expert's actions from the reset to the solution; none where it has no solution."""


@runtime_checkable
class TakesVariants(Protocol):
    """An environment whose tasks somebody may write anew; it checks itself that they are solvable.

    A task that carries a variant (``Task.variant``) is begun by ``reset_variant`` instead of
    ``reset``, for it is another task than the one that the id alone stands for.
    """

    def variants(self, task_id: int) -> Sequence[str]:
        """The variants of a task that it would take."""

    def reset_variant(self, task_id: int, variant: str) -> tuple[str, Info]:
        """Start the episode of a variant; return its first observation.

        Raises:
            EnvironmentFailureError: It is not one that the environment takes.
        """
