"""The environments a silo has: those Chorale brings along and those its operator plugged in.

A plan names environments and brings no code. A name is a plain one (built in, or of an installed
package) or ``kind:alias`` for a foreign environment that the operator described in silo.toml. The
site policy must list a name as well before a plan may use it.

Invariants:

1. Built in is what the literal table names. Modules are imported when an environment is made, so
   that asking for names costs nothing and only BabyAI needs ``minigrid``.
2. An installed package gives an environment as entry point of the group ``chorale.environments``.
   It is only looked at because silo.toml lists the environment's name under ``plugins``, and
   imported only when the environment is needed.
3. A name that two packages give, or that Chorale has itself, is refused: nobody takes a name over.

4. A silo may have a variant of an environment (``evolution/envs/variants``). Name and family are
   the environment's own, so nobody outside sees which; and everybody is judged in it as it is.

Covered: names, families, finding, importing and checking a package's class, making. Not covered:
reading silo.toml (``silo_agent/config.py``); limiting what a package's code does, which runs with
the daemon's rights. What it shows the agent is bounded by ``evolution/rollout/conversation.py``,
what it raises ends the episode.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final, Self

from evolution.envs.environment import Environment
from evolution.envs.foreign.foreign import Breaker, make_foreign
from evolution.envs.foreign.spec import ForeignSpec
from evolution.envs.variants.spec import VariantSpec
from evolution.envs.variants.variant import require_variable, varied
from evolution.errors import (
    EnvironmentPluginError,
    EnvironmentSetupError,
    UnknownEnvironmentError,
)

__all__ = ["BUILT_IN", "ENVIRONMENTS", "Catalogue", "make"]

ENVIRONMENTS: MappingProxyType[str, str] = MappingProxyType(
    {
        "babyai": "evolution.envs.builtin.babyai:BabyAI",
        "bandit": "evolution.envs.builtin.bandit:Bandit",
        "bandit-swapped": "evolution.envs.builtin.bandit:SwappedBandit",
        "craft": "evolution.envs.builtin.craft:Craft",
        "desk": "evolution.envs.builtin.desk.desk:Desk",
        "desk-long": "evolution.envs.builtin.desk.desk:LongDesk",
        "keeper": "evolution.envs.builtin.keeper:Keeper",
        "market": "evolution.envs.builtin.shop.market:Market",
        "maze": "evolution.envs.builtin.maze:Maze",
        "shop": "evolution.envs.builtin.shop.shop:Shop",
        "temptation": "evolution.envs.builtin.shop.temptation:Temptation",
        "words": "evolution.envs.builtin.words.words:Words",
        "wordle": "evolution.envs.builtin.wordle:Wordle",
    }
)
_GROUP: Final = "chorale.environments"
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
_OLD_PATH: Final = "silo_agent.envs"
"""What packages written for version 0.1 import from."""


class Catalogue:
    """Environments by name.

    They are built in, plugins of installed packages, or foreign, as the operator describes them.
    Where ``patient``, a server that fails is asked again and again; see ``apart``.

    Raises:
        EnvironmentPluginError: No package has one of the plugins.
    """

    def __init__(
        self,
        *,
        plugins: Collection[str] = (),
        foreign: Mapping[str, ForeignSpec] | None = None,
        variants: Mapping[str, VariantSpec] | None = None,
        patient: bool = False,
    ) -> None:
        for name in plugins:
            _require_plugin(name)
        self._plugins = frozenset(plugins)
        self._foreign = dict(foreign or {})
        self._variants = dict(variants or {})
        self._perturbed = True
        # Shared by all objects of an environment: a server that hangs hangs for all of them.
        self._breakers = {
            name: Breaker(failures=sys.maxsize) if patient else Breaker() for name in self._foreign
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that ``make`` knows."""
        return tuple(sorted({*ENVIRONMENTS, *self._plugins, *self._foreign}))

    def __contains__(self, name: object) -> bool:
        return name in ENVIRONMENTS or name in self._plugins or name in self._foreign

    def make(self, name: str) -> Environment:
        """Make a fresh environment, before its first reset.

        Raises:
            UnknownEnvironmentError: The silo has no environment of that name.
            EnvironmentPluginError: The installed package's environment cannot be used.
            EnvironmentSetupError: It cannot be the variant that the silo has of it.
        """
        environment = self._make(name)
        spec = self._variants.get(name)
        if spec is None:
            return environment
        return varied(environment, spec, perturbed=self._perturbed)

    def _make(self, name: str) -> Environment:
        if name in self._foreign:
            return make_foreign(self._foreign[name], self._breakers[name])
        if name in self._plugins:
            return _load_plugin(name)()
        if name in ENVIRONMENTS:
            return make(name)
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(self.names)}")

    def family(self, name: str) -> str:
        """The public family of an environment; a built-in one is a family of its own name.

        Raises:
            UnknownEnvironmentError: The silo has no environment of that name.
            EnvironmentPluginError: The installed package's environment cannot be used.
        """
        if name in self._foreign:
            return self._foreign[name].family
        if name in self._plugins:
            return _load_plugin(name).family
        if name in ENVIRONMENTS:
            return name
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(self.names)}")

    def apart(self) -> Catalogue:
        """The same environments, of which none is ever left alone.

        Where units are protected, episodes that one task let fail may not cost another task its
        own. A server that hangs then costs every episode its time limit.
        """
        other = Catalogue(
            plugins=self._plugins, foreign=self._foreign, variants=self._variants, patient=True
        )
        other._perturbed = self._perturbed
        return other

    def with_variants(self, variants: Mapping[str, VariantSpec]) -> Self:
        """The same environments, of which some are variants instead of what they are here."""
        other = copy.copy(self)
        other._variants = dict(variants)  # noqa: SLF001  # a copy of this very object
        return other

    def unperturbed(self) -> Self:
        """The same environments as everybody has them: what adapters are judged in."""
        other = copy.copy(self)
        other._perturbed = False  # noqa: SLF001  # a copy of this very object
        return other

    def require_variant(self, name: str, spec: VariantSpec) -> None:
        """Refuse a variant that an environment cannot be; nothing is started or made.

        Raises:
            EnvironmentSetupError: It has no stages, or no line that says which it is.
            EnvironmentPluginError: The installed package's environment cannot be used.
        """
        if name in self._foreign:
            raise EnvironmentSetupError(
                f"{name} is described in a table and has no stages here: leave its variant out"
            )
        kind = _load_plugin(name) if name in self._plugins else _built_in(name)
        require_variable(kind, spec)

    def require_shards(self, name: str, count: int) -> None:
        """Refuse a number of shards that a foreign environment's labels do not allow.

        Raises:
            ShardError: Its labels cannot be dealt out evenly.
        """
        if name in self._foreign:
            self._foreign[name].require_shard(count)


def make(name: str) -> Environment:
    """Make a built-in environment, before its first reset.

    Raises:
        UnknownEnvironmentError: The name is not in the table, or does not name an environment.
    """
    return _built_in(name)()


def _built_in(name: str) -> type[Environment]:
    target = ENVIRONMENTS.get(name)
    if target is None:
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(ENVIRONMENTS)}")
    module, _, attribute = target.partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    if not isinstance(kind, type) or not issubclass(kind, Environment):
        raise UnknownEnvironmentError(f"{target} is not an environment")
    return kind


def _require_plugin(name: str) -> EntryPoint:
    """The one entry point of that name; nothing is imported.

    Raises:
        EnvironmentPluginError: No package has it, two have it, or the name is taken.
    """
    if _SLUG.fullmatch(name) is None:
        raise EnvironmentPluginError(f"{name!r} cannot be the name of an environment")
    if name in ENVIRONMENTS:
        raise EnvironmentPluginError(f"{name!r} is an environment of Chorale's own")
    # An editable install can list the same entry point twice.
    found = list(dict.fromkeys(entry_points(group=_GROUP, name=name)))
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=_GROUP)})) or "none"
        raise EnvironmentPluginError(
            f"no installed package has {name!r} in {_GROUP}; there: {known}"
        )
    if len({point.value for point in found}) > 1:
        raise EnvironmentPluginError(f"two installed packages have {name!r} in {_GROUP}")
    return found[0]


def _load_plugin(name: str) -> type[Environment]:
    """Import the class of an installed package.

    Raises:
        EnvironmentPluginError: It cannot be imported, or is no usable environment.
    """
    point = _require_plugin(name)
    try:
        loaded = point.load()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == _OLD_PATH:
            raise EnvironmentPluginError(
                f"{name!r} ({point.value}) imports {_OLD_PATH}, which is not in this version of "
                "Chorale: the package must import the same names from evolution.envs"
            ) from error
        raise EnvironmentPluginError(
            f"{name!r} ({point.value}) cannot be imported: {error}"
        ) from error
    if not isinstance(loaded, type) or not issubclass(loaded, Environment):
        raise EnvironmentPluginError(f"{name!r} ({point.value}) is no subclass of Environment")
    problem = _problem(loaded, name)
    if problem:
        raise EnvironmentPluginError(f"{name!r} ({point.value}): {problem}")
    return loaded


def _problem(loaded: type[Environment], name: str) -> str:
    if getattr(loaded, "name", None) != name:
        return "its name is not that of its entry point"
    family = getattr(loaded, "family", None)
    if not isinstance(family, str) or _FAMILY.fullmatch(family) is None or family == "other":
        return "its family is not a public name of at most 64 plain characters"
    steps = getattr(loaded, "max_steps", None)
    if type(steps) is not int or steps < 1:
        return "its max_steps is not a positive integer"
    labels = getattr(loaded, "labels", None)
    if not isinstance(labels, tuple) or not labels or not all(isinstance(x, str) for x in labels):
        return "its labels are not a tuple of texts"
    return ""


BUILT_IN = Catalogue()
"""What every silo has."""
