"""SIGKILL in the middle of a round: one silo first, the coordinator in a later round.

The silo goes after it reported ready, so the cohort counts on it, and is started again when the
next round begins. The coordinator goes inside an open attempt, after training, and is started again
at once: what it had accepted is durable, and the attempt goes on.

Covered: one kill each. Not covered: every phase and writer (``make test-chaos``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.loopback import LoopbackFederation

__all__ = ["COORDINATOR", "Kills"]

COORDINATOR = "coordinator"
_FROM_ROUND = 2
_NO_ATTEMPT = ("", "training", "finished")
"""Phases in which no attempt is open."""


@dataclass(kw_only=True, slots=True)
class Kills:
    """Who dies when; fed with the statuses of ``chorale run watch``."""

    loopback: LoopbackFederation
    victim: str
    """The silo that dies."""
    rounds: int
    """R of the run. A run of one round kills the coordinator only."""
    say: Callable[[str], None]
    _killed_in: dict[str, int] = field(default_factory=dict)
    """Round of each death."""
    _silo_back: bool = False

    @property
    def killed(self) -> tuple[str, ...]:
        """Who died so far, in order."""
        return tuple(self._killed_in)

    @property
    def silo_round(self) -> int:
        """From which round on the silo may die; 0 if there is no round to come back to."""
        return min(_FROM_ROUND, self.rounds - 1)

    @property
    def coordinator_round(self) -> int:
        """From which round on the coordinator may die."""
        return min(self.silo_round + 1, self.rounds)

    def see(self, status: Mapping[str, Any]) -> None:
        """Kill or start again whoever is due."""
        current = status.get("current") or {}
        number, phase = int(current.get("round", 0)), str(current.get("phase", ""))
        waiting = {item["silo_id"] for item in current.get("waiting_for", ())}
        if self._silo_is_due(number, phase, waiting):
            self.loopback.kill(self.victim)
            self._killed_in[self.victim] = number
            self.say(
                f"[red]killed {self.victim} (SIGKILL) in round {number}, after it reported ready: "
                "the cohort counts on it[/red]"
            )
        elif self.victim in self._killed_in and number > self._killed_in[self.victim]:
            self._start_silo()
        if self._coordinator_is_due(number, phase):
            self.loopback.kill(COORDINATOR)
            self._killed_in[COORDINATOR] = number
            self.say(f"[red]killed the coordinator (SIGKILL) in round {number}, in {phase}[/red]")
            self.loopback.start_coordinator()
            self.say("coordinator started again: the attempt goes on where it was")

    def finish(self) -> None:
        """A silo that died in the last round still follows the chain and judges."""
        if self.victim in self._killed_in:
            self._start_silo()

    def _silo_is_due(self, number: int, phase: str, waiting: set[str]) -> bool:
        ready = phase != "training" or (bool(waiting) and self.victim not in waiting)
        return 0 < self.silo_round <= number and self.victim not in self._killed_in and ready

    def _coordinator_is_due(self, number: int, phase: str) -> bool:
        return (
            number >= self.coordinator_round
            and COORDINATOR not in self._killed_in
            and phase not in _NO_ATTEMPT
        )

    def _start_silo(self) -> None:
        if not self._silo_back:
            self._silo_back = True
            self.loopback.start_silo(self.victim)
            self.say(f"{self.victim} started again: it takes part when it is ready")
