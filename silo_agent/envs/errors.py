"""Errors at the border between the silo and an environment.

::

    EnvironmentFailureError
    ├── UnknownEnvironmentError   no environment is registered under that name
    ├── TaskIdError               the task id lies outside the environment's ranges
    ├── ShardError                the tasks cannot be dealt out that way
    └── EpisodeStateError         step before reset, or after the episode ended

A failed environment is data, not a crash: whoever runs rollouts catches the base, drops the
episode and counts it.
"""

from __future__ import annotations

__all__ = [
    "EnvironmentFailureError",
    "EpisodeStateError",
    "ShardError",
    "TaskIdError",
    "UnknownEnvironmentError",
]


class EnvironmentFailureError(Exception):
    """Base of everything an environment can fail with."""


class UnknownEnvironmentError(EnvironmentFailureError):
    """No environment is registered under the requested name."""


class TaskIdError(EnvironmentFailureError):
    """The task id does not belong to any split of the environment."""


class ShardError(EnvironmentFailureError):
    """The environment's tasks cannot be dealt out over that many shards."""


class EpisodeStateError(EnvironmentFailureError):
    """The call does not fit the state of the episode."""
