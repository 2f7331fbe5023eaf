"""Environments of installed packages: entry points of the group ``chorale.environments``.

Invariants:

1. A package is only looked at because the operator's silo.toml lists the name of its environment
   under ``plugins``; nothing is imported before the environment is needed.
2. A name that two packages give, or that Chorale has itself, is refused: nobody takes a name over.

Covered: finding, importing and checking the class. Not covered: limiting what its code does; it
runs with the daemon's rights. What it shows the agent is bounded by
``evolution/rollout/conversation.py``, what it raises ends the episode.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

from evolution.envs import registry
from evolution.envs.environment import Environment
from evolution.errors import EnvironmentPluginError

__all__ = ["GROUP", "load_plugin", "require_plugin"]

GROUP = "chorale.environments"
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")


def require_plugin(name: str) -> EntryPoint:
    """Find an environment without importing it.

    Args:
        name: As its package registered it.

    Returns:
        Its entry point.

    Raises:
        EnvironmentPluginError: No package has it, two have it, or the name is taken.
    """
    if _SLUG.fullmatch(name) is None:
        raise EnvironmentPluginError(f"{name!r} cannot be the name of an environment")
    if name in registry.ENVIRONMENTS:
        raise EnvironmentPluginError(f"{name!r} is an environment of Chorale's own")
    # An editable install can list the same entry point twice.
    found = list(dict.fromkeys(entry_points(group=GROUP, name=name)))
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise EnvironmentPluginError(
            f"no installed package has {name!r} in {GROUP}; there: {known}"
        )
    if len({point.value for point in found}) > 1:
        raise EnvironmentPluginError(f"two installed packages have {name!r} in {GROUP}")
    return found[0]


def load_plugin(name: str) -> type[Environment]:
    """Import an environment.

    Args:
        name: As its package registered it.

    Returns:
        Its class.

    Raises:
        EnvironmentPluginError: It cannot be imported, or is no usable environment.
    """
    point = require_plugin(name)
    try:
        loaded = point.load()
    except Exception as error:
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
