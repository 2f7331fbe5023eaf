"""What was learned is taken unless it solves fewer probes than what the round started from.

The probes are tasks of the silo's own part that were never explored, so the gate reads the silo. A
round that is not taken contributes zeros: nothing shows outside whether it was.
"""

from __future__ import annotations

from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import Adapter, PartWork, Probes
from federation.plan.methods import Couples, Reads

__all__ = ["NotWorse"]


class NotWorse(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO

    def admit(self, before: Adapter, after: Adapter, probes: Probes, work: PartWork) -> bool:  # noqa: ARG002  # the seam
        """Compare; without probes nothing speaks against it."""
        return not probes.success(after) < probes.success(before)
