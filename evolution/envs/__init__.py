"""Environments: what agents act in. Start at ``environment.py``; names live in ``registry.py``."""

from __future__ import annotations

from evolution.envs.environment import Environment, Info, ScriptedEnvironment
from evolution.envs.registry import ENVIRONMENTS, make
from evolution.envs.tasks import Shard, Split
from evolution.errors import (
    EnvironmentFailureError,
    EpisodeStateError,
    ShardError,
    TaskIdError,
    UnknownEnvironmentError,
)

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentFailureError",
    "EpisodeStateError",
    "Info",
    "ScriptedEnvironment",
    "Shard",
    "ShardError",
    "Split",
    "TaskIdError",
    "UnknownEnvironmentError",
    "make",
]
