"""What an experiment ends with when it cannot be run.

The tree::

    ExperimentError
    ├── ExperimentFileError    the experiment file is wrong; every problem with its key
    ├── DirectoryInUseError    another process writes the same results
    ├── ChangedExperimentError the directory holds results of other settings
    ├── JudgeError             an adapter could not be judged on every held-out task
    ├── StateError             what was kept of an unfinished run is damaged
    ├── EngineError            members cannot work where they were asked to
    ├── DemonstrationError     the expert does not solve as many tasks as a silo should have
    └── SumError               the silos' vectors cannot be summed as asked
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ChangedExperimentError",
    "DemonstrationError",
    "DirectoryInUseError",
    "EngineError",
    "ExperimentError",
    "ExperimentFileError",
    "JudgeError",
    "StateError",
    "SumError",
]


class ExperimentError(Exception):
    """The experiment cannot be run."""


class ExperimentFileError(ExperimentError):
    """The experiment file is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        """One line each: key path, problem, what to do."""


class DirectoryInUseError(ExperimentError):
    """Another process writes the same results."""


class ChangedExperimentError(ExperimentError):
    """The directory holds results of other settings."""


class JudgeError(ExperimentError):
    """An adapter could not be judged on every held-out task."""


class StateError(ExperimentError):
    """What was kept of an unfinished run is damaged."""


class EngineError(ExperimentError):
    """Members cannot work where they were asked to."""


class DemonstrationError(ExperimentError):
    """The expert does not solve as many tasks as a silo should have demonstrations."""


class SumError(ExperimentError):
    """The silos' vectors cannot be summed as asked."""
