"""The environments Chorale brings along, by name.

A literal table: a plan names an environment, never code. Modules are imported when an environment
is made, so that asking for names costs nothing and only BabyAI needs ``minigrid``.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType

from evolution.envs.environment import Environment
from evolution.errors import UnknownEnvironmentError

__all__ = ["ENVIRONMENTS", "make"]

ENVIRONMENTS: MappingProxyType[str, str] = MappingProxyType(
    {
        "babyai": "evolution.envs.builtin.babyai:BabyAI",
        "craft": "evolution.envs.builtin.craft:Craft",
        "maze": "evolution.envs.builtin.maze:Maze",
        "shop": "evolution.envs.builtin.shop.shop:Shop",
        "wordle": "evolution.envs.builtin.wordle:Wordle",
    }
)


def make(name: str) -> Environment:
    """Make an environment.

    Args:
        name: A key of ``ENVIRONMENTS``.

    Returns:
        A fresh environment, before its first reset.

    Raises:
        UnknownEnvironmentError: The name is not registered, or does not name an environment.
    """
    target = ENVIRONMENTS.get(name)
    if target is None:
        raise UnknownEnvironmentError(f"no environment {name!r}; known: {', '.join(ENVIRONMENTS)}")
    module, _, attribute = target.partition(":")
    environment = getattr(importlib.import_module(module), attribute)()
    if not isinstance(environment, Environment):
        raise UnknownEnvironmentError(f"{target} is not an environment")
    return environment
