"""The real coordinator, whose answers to one silo's polls are hostile for a while, then honest.

CHORALE_TEST_FUZZ=<silo>:<count>:<seed>   how many hostile answers that silo gets
CHORALE_TEST_TOLD=<file>                  one line for each: what it was
"""

# ruff: noqa: N802 - a method of the service has the RPC's name

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import federation.wire as federation_wire
from chorale.v1 import round_pb2 as pb
from server.rpc.rounds import RoundService
from tests.kit.hostile_inputs import Fuzz

DEEP_PLAN = f"{'.'.join('a' * 1200)} = 1".encode()
"""2,400 bytes that Python cannot recurse into."""
DEEP_SHA256 = hashlib.sha256(DEEP_PLAN).digest()

KINDS = ("undecodable", "random", "changed", "flipped", "deep")
"""Each comes once in five answers, in any order; where there is no task to deepen, one is flipped
in its place."""


class Teller:
    def __init__(self) -> None:
        silo, count, seed = os.environ["CHORALE_TEST_FUZZ"].split(":")
        self.silo, self.left, self.fuzz = silo, int(count), Fuzz(int(seed))
        self._turn: list[str] = []
        self._told = Path(os.environ["CHORALE_TEST_TOLD"])

    def answer(self, honest: bytes, signing_key: Any) -> bytes:
        """Something wrong in place of what is right."""
        self.left -= 1
        base = pb.PollResponse.FromString(honest)
        self._turn = self._turn or self.fuzz.rng.sample(KINDS, len(KINDS))
        kind = self._turn.pop()
        if kind == "deep" and base.WhichOneof("instruction") != "round_task":
            kind = "flipped"
        if kind == "deep":
            content = self._new(self._deep(base, signing_key))
        elif kind == "undecodable":
            content = self.fuzz.undecodable(pb.PollResponse)
        elif kind == "random":
            content = self._new(self.fuzz.fill(pb.PollResponse()))
        elif kind == "changed":
            content = self._new(self._changed(base))
        else:
            content = self.fuzz.flipped(honest)
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

    def _deep(self, base: Any, signing_key: Any) -> Any:
        """A task as the coordinator signs it, for a plan that no silo can judge."""
        task = federation_wire.round_task_from_proto(base.round_task)
        signed = replace(task, plan_sha256=DEEP_SHA256).sign(signing_key)
        base.round_task.CopyFrom(federation_wire.round_task_to_proto(signed))
        return base

    def _new(self, message: Any) -> bytes:
        # A silo looks at an instruction only if its id is new.
        message.instruction_id = f"hostile-{self.left}"
        content: bytes = message.SerializeToString()
        return content


def install(teller: Teller) -> None:
    poll, get_plan = RoundService.Poll, RoundService.GetPlan

    async def GetPlan(self: Any, request: Any, context: Any) -> Any:
        if request.plan_sha256 == DEEP_SHA256:
            return pb.GetPlanResponse(plan=DEEP_PLAN)
        return await get_plan(self, request, context)

    async def Poll(self: Any, request: Any, context: Any) -> Any:
        if self._silo() != teller.silo or teller.left <= 0:
            return await poll(self, request, context)
        honest = await poll(self, pb.PollRequest(wait_s=0), context)
        return teller.answer(honest, self._context.signing_key)

    RoundService.GetPlan = GetPlan  # type: ignore[method-assign]
    RoundService.Poll = Poll  # type: ignore[method-assign]


if __name__ == "__main__":
    from server.cli.coordinator import main

    install(Teller())
    main()
