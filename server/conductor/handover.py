"""The pause between two runs in which silos take the last record of the one that is over.

Once the next run is shown nobody is told of the one before, and a silo that had not asked in time
would never adopt its last adapter.

Invariant: the pause ends when every silo of the roster that is alive has dealt with what it was
told last, and after ``HAND_OVER_S`` in any case.

Covered: silos that are slow to ask. Not covered: silos that are away; they adopt that adapter when
the coordinator shows the run again, or never.
"""

from __future__ import annotations

import structlog

from server.conductor.instructions import Instructions
from server.context import RunContext
from server.run.driver import RunDriver

__all__ = ["Handover"]

log = structlog.get_logger(__name__)

HAND_OVER_S = 60.0


class Handover:
    """What each silo has dealt with, as its newest poll says."""

    def __init__(self, context: RunContext, instructions: Instructions) -> None:
        self._context = context
        self._instructions = instructions
        self._dealt_with: dict[str, str] = {}

    def note(self, silo_id: str, instruction_id: str) -> None:
        """Take down what a silo has dealt with.

        Args:
            silo_id: Who polls.
            instruction_id: The last instruction that it names.
        """
        self._dealt_with[silo_id] = instruction_id

    async def wait(self, driver: RunDriver) -> None:
        """Wait for the silos of a run that is over or paused.

        Args:
            driver: The run that is shown.
        """
        clock = self._context.clock
        give_up_at = clock() + HAND_OVER_S
        while (late := self._late(driver)) and clock() < give_up_at:
            await self._context.changed.wait(1.0)
        if late:
            log.warning("last_record_not_taken", run=driver.row.run_id, silos=len(late))

    def _late(self, driver: RunDriver) -> list[str]:
        told = self._instructions.current
        return [
            silo_id
            for silo_id in driver.members
            if self._context.liveness.alive(silo_id)
            and self._dealt_with.get(silo_id) != told(driver, silo_id).instruction_id
        ]
