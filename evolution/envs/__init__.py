"""Environments: what agents act in, and the names that packages with environments import.

Start at ``environment.py``; which environments there are says ``catalogue.py``.
"""

from __future__ import annotations

from evolution.envs.catalogue import ENVIRONMENTS, make
from evolution.envs.environment import (
    Environment,
    Info,
    SaysAdmissible,
    SaysViolations,
    ScriptedEnvironment,
    SolvesTasks,
    TakesVariants,
)
from evolution.envs.tasks import Shard, Split
from evolution.errors import (
    EnvironmentFailureError,
    EpisodeStateError,
    OutcomeError,
    ShardError,
    TaskIdError,
    UnknownEnvironmentError,
    VariantError,
)

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentFailureError",
    "EpisodeStateError",
    "Info",
    "OutcomeError",
    "SaysAdmissible",
    "SaysViolations",
    "ScriptedEnvironment",
    "Shard",
    "ShardError",
    "SolvesTasks",
    "Split",
    "TakesVariants",
    "TaskIdError",
    "UnknownEnvironmentError",
    "VariantError",
    "make",
]
