"""The environments a silo has: those Chorale brings along and those its operator plugged in.

A plan names environments and brings no code. A name is a plain one (built in, or of an installed
package) or ``kind:alias`` for a foreign environment that the operator described in silo.toml. The
site policy must list a name as well before a plan may use it.

Covered: names, families, making. Not covered: reading silo.toml (``silo_agent/config.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from evolution.envs import registry
from evolution.envs.environment import Environment
from evolution.envs.foreign.foreign import Breaker, make_foreign
from evolution.envs.foreign.spec import ForeignSpec
from evolution.envs.plugins import load_plugin, require_plugin
from evolution.errors import UnknownEnvironmentError

__all__ = ["BUILT_IN", "Catalogue"]


class Catalogue:
    """Environments by name.

    Args:
        plugins: Names of environments of installed packages.
        foreign: What the operator says about foreign environments, by name.
        patient: Whether a server that fails is asked again and again, see ``apart``.

    Raises:
        EnvironmentPluginError: No package has one of the plugins.
    """

    def __init__(
        self,
        *,
        plugins: Collection[str] = (),
        foreign: Mapping[str, ForeignSpec] | None = None,
        patient: bool = False,
    ) -> None:
        for name in plugins:
            require_plugin(name)
        self._plugins = frozenset(plugins)
        self._foreign = dict(foreign or {})
        # Shared by all objects of an environment: a server that hangs hangs for all of them.
        self._breakers = {
            name: Breaker(failures=sys.maxsize) if patient else Breaker() for name in self._foreign
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that ``make`` knows."""
        return tuple(sorted({*registry.ENVIRONMENTS, *self._plugins, *self._foreign}))

    def __contains__(self, name: object) -> bool:
        return name in registry.ENVIRONMENTS or name in self._plugins or name in self._foreign

    def make(self, name: str) -> Environment:
        """Make an environment.

        Args:
            name: One of ``names``.

        Returns:
            A fresh environment, before its first reset.

        Raises:
            UnknownEnvironmentError: The silo has no environment of that name.
            EnvironmentPluginError: The installed package's environment cannot be used.
        """
        if name in self._foreign:
            return make_foreign(self._foreign[name], self._breakers[name])
        if name in self._plugins:
            return load_plugin(name)()
        if name in registry.ENVIRONMENTS:
            return registry.make(name)
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(self.names)}")

    def family(self, name: str) -> str:
        """The public family of an environment.

        Args:
            name: One of ``names``.

        Returns:
            Its family; a built-in environment is one of its own name.

        Raises:
            UnknownEnvironmentError: The silo has no environment of that name.
            EnvironmentPluginError: The installed package's environment cannot be used.
        """
        if name in self._foreign:
            return self._foreign[name].family
        if name in self._plugins:
            return load_plugin(name).family
        if name in registry.ENVIRONMENTS:
            return name
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(self.names)}")

    def apart(self) -> Catalogue:
        """The same environments, of which none is ever left alone.

        Where units are protected, episodes that one task let fail may not cost another task its
        own. A server that hangs then costs every episode its time limit.
        """
        return Catalogue(plugins=self._plugins, foreign=self._foreign, patient=True)

    def require_shards(self, name: str, count: int) -> None:
        """Refuse a number of shards that a foreign environment's labels do not allow.

        Args:
            name: One of ``names``.
            count: Of shards.

        Raises:
            ShardError: Its labels cannot be dealt out evenly.
        """
        if name in self._foreign:
            self._foreign[name].require_shard(count)


BUILT_IN = Catalogue()
"""What every silo has."""
