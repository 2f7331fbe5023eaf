"""Environments: what agents act in. Start at ``environment.py``; names live in ``registry.py``."""

from __future__ import annotations

from silo_agent.envs.environment import Environment, Info, ScriptedEnvironment
from silo_agent.envs.errors import (
    EnvironmentFailureError,
    EpisodeStateError,
    ShardError,
    TaskIdError,
    UnknownEnvironmentError,
)
from silo_agent.envs.registry import ENVIRONMENTS, make
from silo_agent.envs.tasks import Shard, Split

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
