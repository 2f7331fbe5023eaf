"""Reading what a step of any environment returned: figures and flags are checked before use.

Built-in environments, those of installed packages and adapters to foreign servers all pass through
here, so what a method computes with (``evolution/trajectory.py``) never holds a NaN, an infinity or
a number that would swallow all others in a sum. Invariants:

1. A reward is a finite number of at most ``MAX_REWARD`` in size.
2. ``info["valid"]`` is a bool and says whether the environment could read the action. An
   environment that does not say it has read every one.
3. Whatever else comes is an ``OutcomeError`` and ends that episode; no value of the environment's
   is part of the message.

Covered: reward, flags, shape. Not covered: observations, which
``evolution/rollout/conversation.py`` bounds and cleans; what ``success`` makes of the info.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

import numpy as np

from evolution.errors import OutcomeError

__all__ = ["MAX_REWARD", "Outcome", "outcome_of", "reward_of"]

MAX_REWARD: Final = 1e9
_PARTS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a step came to."""

    observation: str
    """The environment's text."""
    reward: float
    """Of this step."""
    terminated: bool
    """The task is over, by the environment's verdict."""
    truncated: bool
    """The environment ended the episode by a limit; never together with ``terminated``."""
    valid: bool
    """The environment could read the action."""
    info: Any
    """What ``Environment.success`` reads."""

    @property
    def over(self) -> bool:
        """Whether the episode ended here."""
        return self.terminated or self.truncated


def outcome_of(returned: object) -> Outcome:
    """What ``Environment.step`` returned.

    Raises:
        OutcomeError: It is not of the form.
    """
    if not isinstance(returned, tuple) or len(returned) != _PARTS:
        raise OutcomeError("a step returns observation, reward, terminated, truncated and info")
    observation, reward, terminated, truncated, info = returned
    if not isinstance(observation, str):
        raise OutcomeError("an observation is not text")
    ended = bool(terminated)
    return Outcome(
        observation=observation,
        reward=reward_of(reward),
        terminated=ended,
        truncated=bool(truncated) and not ended,
        valid=_valid(info),
        info=info,
    )


def reward_of(value: object) -> float:
    """A reward, as a float.

    Raises:
        OutcomeError: It is no number, not finite, or absurdly large.
    """
    if not isinstance(value, Real):
        raise OutcomeError("a reward is not a number")
    try:
        reward = float(value)
    except (OverflowError, ValueError, TypeError) as error:
        raise OutcomeError("a reward is not a finite number") from error
    if not math.isfinite(reward) or abs(reward) > MAX_REWARD:
        raise OutcomeError(f"a reward is not a finite number of at most {MAX_REWARD:g} in size")
    return reward


def _valid(info: object) -> bool:
    said = info.get("valid", True) if isinstance(info, Mapping) else True
    if not isinstance(said, bool | np.bool_):
        raise OutcomeError("info['valid'] is not a bool")
    return bool(said)
