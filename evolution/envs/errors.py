"""Errors at the border between the silo and an environment.

::

    EnvironmentFailureError
    ├── UnknownEnvironmentError        no environment is registered under that name
    ├── EnvironmentPluginError         an installed package's environment cannot be used
    ├── EnvironmentSetupError          what the operator wrote does not fit the environment
    ├── TaskIdError                    the task id lies outside the environment's ranges
    ├── ShardError                     the tasks cannot be dealt out that way
    ├── EpisodeStateError              step before reset, or after the episode ended
    └── ForeignEnvironmentError        an environment that is not Chorale's own misbehaved
        ├── ForeignUnreachableError    it cannot be reached, hung up, or was given up for a while
        ├── ForeignTimeoutError        it did not answer in time
        ├── ForeignRefusalError        it answered with an error
        └── ForeignReplyError          its answer is too large, malformed or of the wrong type

A failed environment is data, not a crash: whoever runs rollouts catches the base, drops the
episode and counts it. No text of a foreign environment is part of a message.
"""

from __future__ import annotations

__all__ = [
    "EnvironmentFailureError",
    "EnvironmentPluginError",
    "EnvironmentSetupError",
    "EpisodeStateError",
    "ForeignEnvironmentError",
    "ForeignRefusalError",
    "ForeignReplyError",
    "ForeignTimeoutError",
    "ForeignUnreachableError",
    "ShardError",
    "TaskIdError",
    "UnknownEnvironmentError",
]


class EnvironmentFailureError(Exception):
    """Base of everything an environment can fail with."""


class UnknownEnvironmentError(EnvironmentFailureError):
    """No environment is registered under the requested name."""


class EnvironmentPluginError(EnvironmentFailureError):
    """The environment of an installed package is missing, cannot be loaded, or is none."""


class EnvironmentSetupError(EnvironmentFailureError):
    """What the operator wrote does not fit the environment."""


class TaskIdError(EnvironmentFailureError):
    """The task id does not belong to any split of the environment."""


class ShardError(EnvironmentFailureError):
    """The environment's tasks cannot be dealt out over that many shards."""


class EpisodeStateError(EnvironmentFailureError):
    """The call does not fit the state of the episode."""


class ForeignEnvironmentError(EnvironmentFailureError):
    """Base of what an environment that is not Chorale's own can do wrong."""


class ForeignUnreachableError(ForeignEnvironmentError):
    """The server cannot be reached, hung up, or failed so often that it is left alone a while."""


class ForeignTimeoutError(ForeignEnvironmentError):
    """The server did not answer in time."""


class ForeignRefusalError(ForeignEnvironmentError):
    """The server answered with an error."""


class ForeignReplyError(ForeignEnvironmentError):
    """The answer is too large, malformed, or has a value of the wrong type."""
