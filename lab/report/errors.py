"""What a report ends with when it cannot be made.

The tree::

    ReportError
    ├── ResultsError     a line of a results file breaks the contract
    └── UnpairedError    two settings were not judged on the same tasks
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ReportError", "ResultsError", "UnpairedError"]


class ReportError(Exception):
    """The report cannot be made."""


class ResultsError(ReportError):
    """A line of a results file breaks the contract."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        """The file."""
        self.line = line
        """From 1; 0 for the file as a whole."""
        self.reason = reason
        """What is wrong."""


class UnpairedError(ReportError):
    """Two settings were not judged on the same tasks."""
