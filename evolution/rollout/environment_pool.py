"""Environments between two episodes: one that ended well is played in again.

Covered: what an environment raises when it is closed, which changes nothing. Not covered: an
environment that keeps something of an episode for the next one (``envs/environment.py`` forbids
it).
"""

from __future__ import annotations

from collections.abc import Callable

from evolution.envs.environment import Environment
from evolution.rollout.own_time import OwnTime
from ops.logs.logger import get_logger

__all__ = ["EnvironmentPool"]

_log = get_logger(__name__)


class EnvironmentPool:
    """Environments that no episode is being played in, by name."""

    def __init__(self, make_environment: Callable[[str], Environment], own_time: OwnTime) -> None:
        self._make = make_environment
        self._own_time = own_time
        self._free: dict[str, list[Environment]] = {}

    def lend(self, key: int, name: str) -> Environment:
        """One of this name for the episode with this key, in whose time it is made."""
        free = self._free.get(name)
        return free.pop(0) if free else self._own_time.call(key, self._make, name)

    def take_back(self, name: str, environment: Environment, *, failed: bool) -> None:
        """After an episode; what a failure left in it must not reach the next one."""
        if failed:
            self._own_time.unheard(_close, name, environment)
        else:
            self._free.setdefault(name, []).append(environment)

    def close(self) -> None:
        """Close them all."""
        for name, free in self._free.items():
            for environment in free:
                self._own_time.unheard(_close, name, environment)


def _close(name: str, environment: Environment) -> None:
    try:
        environment.close()
    except Exception as error:  # noqa: BLE001  # foreign code; its episodes are over already
        _log.warning("environment_not_closed", environment=name, error=type(error).__name__)
