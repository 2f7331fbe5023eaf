"""The real coordinator, whose answers to one silo's polls are hostile for a while, then honest.

CHORALE_TEST_FUZZ=<silo>:<count>:<seed>   how many hostile answers that silo gets
CHORALE_TEST_TOLD=<file>                  one line for each: what it was
"""

# ruff: noqa: N802 - a method of the service has the RPC's name

import os
from pathlib import Path
from typing import Any

from chorale.v1 import round_pb2 as pb
from server.service import RoundService
from tests.integration.hostile_inputs import Fuzz


class Teller:
    def __init__(self) -> None:
        silo, count, seed = os.environ["CHORALE_TEST_FUZZ"].split(":")
        self.silo, self.left, self.fuzz = silo, int(count), Fuzz(int(seed))
        self._told = Path(os.environ["CHORALE_TEST_TOLD"])

    def answer(self, honest: bytes) -> bytes:
        """Something wrong in place of what is right."""
        self.left -= 1
        base = pb.PollResponse.FromString(honest)
        how = self.fuzz.rng.random()
        if how < 0.2:
            kind, content = "undecodable", self.fuzz.undecodable(pb.PollResponse)
        elif how < 0.5:
            kind, content = "random", self._new(self.fuzz.fill(pb.PollResponse()))
        elif how < 0.8:
            kind, content = "changed", self._new(self._changed(base))
        else:
            kind, content = "flipped", self.fuzz.flipped(honest)
        with self._told.open("a") as file:
            file.write(f"{kind}\n")
        return content

    def _changed(self, base: Any) -> Any:
        """One field of the instruction itself, or of what stands around it."""
        which = base.WhichOneof("instruction")
        if which is None or self.fuzz.rng.random() < 0.3:
            return self.fuzz.changed(base)
        instruction = getattr(base, which)
        instruction.CopyFrom(self.fuzz.changed(instruction))
        return base

    def _new(self, message: Any) -> bytes:
        # A silo looks at an instruction only if its id is new.
        message.instruction_id = f"hostile-{self.left}"
        content: bytes = message.SerializeToString()
        return content


def install(teller: Teller) -> None:
    poll = RoundService.Poll

    async def Poll(self: Any, request: Any, context: Any) -> Any:
        if self._silo() != teller.silo or teller.left <= 0:
            return await poll(self, request, context)
        honest = await poll(self, pb.PollRequest(wait_s=0), context)
        return teller.answer(honest)

    RoundService.Poll = Poll  # type: ignore[method-assign]


if __name__ == "__main__":
    from server.cli.coordinator import main

    install(Teller())
    main()
