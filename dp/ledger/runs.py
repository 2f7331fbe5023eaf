"""How many debits of each kind a run holds.

A plan states ε for so many attempts and trainings. A coordinator that asks for more of them would
charge a silo past that figure, although each one alone is a lawful attempt.

Covered: counting, and the ceiling on trainings, which is asked for under the ledger's lock because
tasks may come faster than work. Not covered: how many a plan states (``federation.plan.plan``);
attempts come one at a time and are refused before a key is shown
(``silo_agent/daemon/admission.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from dp.errors import TooManyDebitsError

__all__ = ["RunCount", "RunDebits"]


class RunDebits(NamedTuple):
    """Debits of one run."""

    releases: int = 0
    """Attempts that reached the upload, under every mode."""
    first_steps: int = 0
    """How many of them were of a round's step 0."""
    trainings: int = 0
    """Local trainings."""


class RunCount:
    """Debits of every run."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        """Begin with no debit."""
        self._runs: dict[str, RunDebits] = {}

    def of(self, run: str) -> RunDebits:
        """What a run holds."""
        return self._runs.get(run, RunDebits())

    def require_room(self, run: str, *, most_trainings: int | None) -> None:
        """Refuse another training of a run that holds as many as it may.

        Raises:
            TooManyDebitsError: If it does.
        """
        done = self.of(run).trainings
        if most_trainings is not None and done >= most_trainings:
            raise TooManyDebitsError(
                f"run {run} was charged for {done} trainings, its plan states epsilon for "
                f"{most_trainings}",
                of_run=True,
            )

    def add_release(self, run: str, *, step: int) -> None:
        """Count one attempt."""
        before = self.of(run)
        self._runs[run] = before._replace(
            releases=before.releases + 1, first_steps=before.first_steps + (step == 0)
        )

    def add_training(self, run: str) -> None:
        """Count one training."""
        before = self.of(run)
        self._runs[run] = before._replace(trainings=before.trainings + 1)
