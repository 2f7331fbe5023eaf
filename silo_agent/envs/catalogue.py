"""The environments a silo has: those Chorale brings along and those its operator plugged in."""

from __future__ import annotations

from silo_agent.envs.environment import Environment
from silo_agent.envs.registry import ENVIRONMENTS, make

__all__ = ["BUILT_IN", "Catalogue"]


class Catalogue:
    """Environments by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that ``make`` knows."""
        return tuple(sorted(ENVIRONMENTS))

    def make(self, name: str) -> Environment:
        """Make an environment.

        Args:
            name: One of ``names``.

        Returns:
            A fresh environment, before its first reset.

        Raises:
            UnknownEnvironmentError: The silo has no environment of that name.
        """
        return make(name)


BUILT_IN = Catalogue()
"""What every silo has."""
