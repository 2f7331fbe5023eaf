"""Demonstrations by weak players, from which the base model learns the formats.

A weak player follows the environment's scripted expert with some probability per step and plays a
random action otherwise. The probability differs from episode to episode, so that the model sees
good and bad play without being told which is which: it comes out knowing every format and a little
of every skill, with room to improve. Failures stay in the data for the same reason.

Invariants:

1. Episodes depend on the environment's name, the seed and their number alone, so that they can be
   made in any order and any amount.
2. Only the pre-training split is used.

Covered: environments with a scripted player. Not covered: expert data for federated runs; the
buffer of a silo starts empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from evolution.envs import EnvironmentFailureError, ScriptedEnvironment, Split, make
from evolution.rollout.conversation import ChatFormat, RenderedEpisode

__all__ = ["SKILL", "Episode", "demonstrations", "play_weakly", "scripted"]

# How often a player follows the expert: the range an episode's probability is drawn from. Wordle's
# difficulty lies in spelling, BabyAI's and the maze's in many steps, so they differ. In the shop
# one purchase too early costs the episode and a random search leads away from the goal: of players
# from 0.4 to 0.8 a model learns to buy the right thing in a twentieth of its tries.
SKILL: MappingProxyType[str, tuple[float, float]] = MappingProxyType(
    {
        "babyai": (0.3, 0.6),
        "craft": (0.3, 0.65),
        "maze": (0.25, 0.5),
        "shop": (0.75, 0.95),
        "wordle": (0.6, 0.95),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One episode as text."""

    instruction: str
    """What the player was told."""
    observations: tuple[str, ...]
    """What was seen before each action."""
    actions: tuple[str, ...]
    """What was done."""
    success: bool
    """The environment's verdict."""


def scripted(name: str) -> ScriptedEnvironment:
    """Make an environment that can play itself.

    Raises:
        EnvironmentFailureError: It has no scripted player.
    """
    environment = make(name)
    if not isinstance(environment, ScriptedEnvironment):
        raise EnvironmentFailureError(f"{name} has no scripted player")
    return environment


def play_weakly(
    environment: ScriptedEnvironment, task_id: int, *, skill: float, rng: np.random.Generator
) -> Episode:
    """Play one episode, following the expert at each step with probability ``skill``."""
    observation, info = environment.reset(task_id)
    observations, actions = [], []
    ended = False
    while not ended:
        try:
            # The expert is asked before every step, because some must see them all.
            expert = environment.expert_action(rng)
        except EnvironmentFailureError:
            # It has no way on from here; the player does, being weak anyway.
            expert = environment.random_action(rng)
        action = expert if rng.random() < skill else environment.random_action(rng)
        observations.append(observation)
        actions.append(action)
        observation, _, terminated, truncated, info = environment.step(action)
        ended = terminated or truncated
    return Episode(
        instruction=environment.told,
        observations=tuple(observations),
        actions=tuple(actions),
        success=environment.success(info),
    )


def demonstrations(name: str, count: int, *, seed: int, chat: ChatFormat) -> list[RenderedEpisode]:
    """Make tokenised episodes; the seed decides all of them."""
    environment = scripted(name)
    lowest, highest = SKILL[name]
    tasks = environment.task_ids(Split.PRETRAIN)
    episodes = []
    for number in range(count):
        rng = np.random.default_rng([seed, number, *name.encode()])
        task_id = tasks[int(rng.integers(len(tasks)))]
        played = play_weakly(environment, task_id, skill=rng.uniform(lowest, highest), rng=rng)
        episodes.append(chat.render(played.instruction, played.observations, played.actions))
    environment.close()
    return episodes
