"""The policies that probes ask: an engine with one adapter or another.

Two policies are compared on the same histories, token for token, with the same random stream: where
they are equal they then do the same, whatever the temperature, and the share of histories at which
they differ is at least the total variation of what they do (a coupling).

Covered: playing in a world, with and without a prefix; the next action at a history. Not covered:
distributions themselves, which no engine gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolution.diagnose.rates import Rate
from evolution.diagnose.worlds import World
from evolution.rollout.engine import Prompt, RolloutEngine, Sampling
from evolution.rollout.episodes import EpisodeBatch, run_episodes
from evolution.trajectory import Task, Trajectory

__all__ = ["Held", "History", "Policies", "histories"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """An adapter with its name."""

    version: str
    """Never used again for other tensors."""
    tensors: Mapping[str, np.ndarray] = field(repr=False)
    """Empty for the bare base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A state as the agent sees it: everything before its next word."""

    trajectory: Trajectory
    turn: int
    """Counted from 0: the answer that comes next."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens before the answer."""
        steps = self.trajectory.steps
        before = [t for s in steps[: self.turn] for t in (*s.context_ids, *s.action_ids)]
        return (*before, *steps[self.turn].context_ids)

    @property
    def actions(self) -> tuple[str, ...]:
        """Those that led here, the task's prefix among them."""
        played = (step.action for step in self.trajectory.steps[: self.turn])
        return (*self.trajectory.task.prefix, *played)


class Policies:
    """An engine, and how it is asked."""

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        temperature: float,
        max_new_tokens: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self._engine = engine
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._batch_size = batch_size
        self._seed = seed

    def play(self, policy: Held, world: World, tasks: Sequence[Task]) -> EpisodeBatch:
        """One episode of each task; the n-th has the n-th random stream, in every world."""
        self._engine.load_adapter(policy.version, policy.tensors)
        return run_episodes(
            self._engine,
            tasks,
            temperature=self._temperature,
            seed=self._seed,
            max_new_tokens=self._max_new_tokens,
            batch_size=self._batch_size,
            make_environment=world.catalogue.make,
        )

    def act(
        self, policy: Held, states: Sequence[History], *, temperature: float, stream: int = 0
    ) -> list[str]:
        """The next action at each history; equal policies give equal ones in a stream."""
        self._engine.load_adapter(policy.version, policy.tensors)
        sampling = Sampling(
            temperature=temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed + stream,
        )
        found: list[str] = []
        for start in range(0, len(states), self._batch_size):
            prompts = [
                Prompt(key=start + place, token_ids=state.token_ids)
                for place, state in enumerate(states[start : start + self._batch_size])
            ]
            answers = self._engine.generate(prompts, sampling)
            found += [self._engine.chat.parse_action(answer.token_ids) for answer in answers]
        return found

    def agreement(self, one: Held, other: Held, states: Sequence[History]) -> Rate:
        """At how many histories two policies do the same, at the temperature of exploration."""
        mine, theirs = (self.act(p, states, temperature=self._temperature) for p in (one, other))
        same = sum(a == b for a, b in zip(mine, theirs, strict=True))
        return Rate(count=same, total=len(states))


def histories(
    trajectories: Sequence[Trajectory], most: int, *, turns: Sequence[int] | None = None
) -> list[History]:
    """States that were visited, spread evenly over all of them.

    ``turns`` says of each trajectory how many of its turns count; all of them where it is absent.
    """
    counts = [len(t.steps) for t in trajectories]
    if turns is not None:
        counts = [min(count, wanted) for count, wanted in zip(counts, turns, strict=True)]
    every = [
        History(trajectory=trajectory, turn=turn)
        for trajectory, count in zip(trajectories, counts, strict=True)
        for turn in range(count)
    ]
    if len(every) <= most:
        return every
    places = np.linspace(0, len(every) - 1, most).round().astype(int)
    return [every[place] for place in places]
