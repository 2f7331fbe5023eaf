"""What evidence cannot be given for.

The tree::

    EvidenceError
    ├── FigureError          the results do not hold the figure that is asked for
    ├── PowerError           no number of seeds follows from these results
    └── RegistrationError    a registration is wrong, or something departs from it
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["EvidenceError", "FigureError", "PowerError", "RegistrationError"]


class EvidenceError(Exception):
    """Evidence cannot be given."""


class FigureError(EvidenceError):
    """The results do not hold the figure that is asked for."""


class PowerError(EvidenceError):
    """No number of seeds follows from these results."""


class RegistrationError(EvidenceError):
    """A registration is wrong, or something departs from it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        """One line each."""
