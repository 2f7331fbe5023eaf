"""``gym:``, a Gymnasium environment with text observations, in this process.

Its code was installed and named by the operator and runs with the daemon's rights, like every
import; what it returns is checked like a server's all the same. Invariants:

1. ``reset`` seeds the environment with the task's number.
2. A Text action space takes the agent's text where it contains it; a Discrete one takes the
   position in ``actions``, which has one word for each action. Other spaces are refused.

Covered: registered ids and ``module:attribute``, text, numbers and short lists as observations,
dictionaries of these. Not covered: images and other arrays; a limit on time or memory, which a
process has and a function call has not (put it behind an OpenEnv server); environments that are not
deterministic under their seed.
"""

from __future__ import annotations

import importlib
from typing import Any

from evolution.envs.foreign.foreign import Breaker, ForeignEnvironment, Turn
from evolution.envs.foreign.spec import GymSpec
from evolution.errors import EnvironmentFailureError, EnvironmentSetupError, ForeignReplyError

__all__ = ["GymEnvironment"]

_STEP_PARTS = 5


class GymEnvironment(ForeignEnvironment[GymSpec]):
    """See the module."""

    def __init__(self, spec: GymSpec, breaker: Breaker) -> None:
        super().__init__(spec, breaker)
        self.observed = spec.observation
        self._gym: Any = None

    def _begin(self, index: int) -> Turn:
        if self._gym is None:
            self._gym = _make(self._spec)
            self._require_actions()
        result = self._call("reset", seed=index)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ForeignReplyError("reset did not return observation and info")
        return Turn(observation=result[0])

    def _act(self, action: str | int) -> Turn:
        space = self._gym.action_space
        if isinstance(action, int):
            action += int(space.start)
        elif not space.contains(action):
            # Like any action that an environment does not understand: it costs a step.
            return Turn(observation="That is no action here.", ours=True)
        result = self._call("step", action)
        if not isinstance(result, tuple) or len(result) != _STEP_PARTS:
            raise ForeignReplyError("step did not return five values")
        observation, reward, terminated, truncated, info = result
        return Turn(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )

    def _end(self) -> None:
        gym, self._gym = self._gym, None
        if gym is not None:
            _run(gym.close)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _run(getattr(self._gym, method), *args, **kwargs)

    def _require_actions(self) -> None:
        from gymnasium.spaces import Discrete, Text

        space, words = self._gym.action_space, self._spec.actions
        if isinstance(space, Discrete):
            if len(words) != int(space.n):
                raise EnvironmentSetupError(
                    f"{self.name} has {int(space.n)} actions and the table {len(words)} words"
                )
        elif not isinstance(space, Text) or words:
            raise EnvironmentSetupError(
                f"{self.name} takes neither text nor one of {len(words)} numbered actions"
            )


def _make(spec: GymSpec) -> Any:
    try:
        if spec.entry_point is not None:
            module, _, attribute = spec.entry_point.partition(":")
            return getattr(importlib.import_module(module), attribute)(**spec.options)
        import gymnasium

        # The checker only warns; what an environment returns is checked here.
        return gymnasium.make(str(spec.id), disable_env_checker=True, **spec.options)
    except Exception as error:
        raise EnvironmentSetupError(f"{spec.name} cannot be made: {error}") from error


def _run(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call foreign code."""
    try:
        return call(*args, **kwargs)
    except EnvironmentFailureError:
        raise
    except Exception as error:
        raise ForeignReplyError(f"the environment raised {type(error).__name__}") from error
