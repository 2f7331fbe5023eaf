"""The real coordinator, lying in chosen rounds; honest in every other one.

CHORALE_TEST_LIES=<JSON>   round to the name of a lie, told in the first attempt of that round alone
CHORALE_TEST_HEARD=<file>  one JSON line for each call a silo makes in an aggregation
"""

# ruff: noqa: N802 - method names of the service are the RPCs' names

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import federation.wire as federation_wire
from chorale.v1 import round_pb2 as pb
from secagg.descriptor import AggregationId
from server.rpc.rounds import RoundService
from tests.system.integration.hostile.coordinator_lies import FIRST_ATTEMPT, LIES, Lie, Scene

POLL_PAUSE_S = 0.03


class Liar:
    """Stands between the silos and the honest service."""

    def __init__(self) -> None:
        chosen = json.loads(os.environ["CHORALE_TEST_LIES"])
        self._lies = {int(number): LIES[name] for number, name in chosen.items()}
        self._heard = Path(os.environ["CHORALE_TEST_HEARD"])
        self._scenes: dict[Any, Scene] = {}

    def scene(self, service: Any) -> tuple[Lie, Scene] | None:
        """The lie that is told in the attempt which is trained for or open now."""
        driver = service._conductor.driver
        if driver is None:
            return None
        figures = driver.current
        identity = AggregationId(
            run_id=driver.row.run_id, round=figures.round, step=0, part=0, attempt=figures.attempt
        )
        lie = self._lies.get(identity.round)
        if lie is None or identity.attempt != FIRST_ATTEMPT:
            return None
        if identity not in self._scenes:
            self._scenes[identity] = Scene(service, identity)
        return lie, self._scenes[identity]

    def hear(self, service: Any, call: str, silo: str, request: Any, said: dict[str, Any]) -> bool:
        """Note a call; whether it is swallowed."""
        with self._heard.open("a") as file:
            file.write(json.dumps({"call": call, "silo": silo, **said}) + "\n")
        found = self.scene(service)
        if found is None:
            return False
        lie, scene = found
        scene.heard[call][silo] = request
        return lie.swallows(call, silo)


def place(identity: Any) -> dict[str, Any]:
    """Where a call belongs, as the heard file has it."""
    return {"run": identity.run_id, "round": identity.round, "attempt": identity.attempt}


def lying(liar: Liar) -> None:
    """Put the liar before the RPCs that matter in an aggregation."""
    poll, upload = RoundService.Poll, RoundService.UploadMaskedInput
    list_records, get_roster = RoundService.ListRecords, RoundService.GetRoster

    async def Poll(self: Any, request: Any, context: Any) -> Any:
        silo = self._silo()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + request.wait_s
        short = pb.PollRequest(last_instruction_id=request.last_instruction_id, wait_s=0)
        while True:
            found = liar.scene(self)
            forged = None if found is None else found[0].instead(found[1], silo)
            if forged is not None:
                return forged
            response = pb.PollResponse.FromString(await poll(self, short, context))
            if loop.time() > give_up_at:
                return response
            if response.instruction_id != request.last_instruction_id:
                told = response
                about = max(response.identity.round, response.round_task.round)
                if found is not None and about == found[1].identity.round:
                    told = found[0].tell(found[1], silo, response)
                if told is not None:
                    return told
            await asyncio.sleep(POLL_PAUSE_S)

    async def UploadMaskedInput(self: Any, parts: Any, context: Any) -> Any:
        silo = self._silo()
        kept = [part async for part in parts]
        opening = kept[0].opening
        content = b"".join(part.chunk.content for part in kept[1:])
        sha256 = hashlib.sha256(opening.header.SerializeToString() + content).hexdigest()
        said = {**place(opening.identity), "sha256": sha256}
        if liar.hear(self, "UploadMaskedInput", silo, kept, said):
            return pb.UploadMaskedInputResponse(received_bytes=len(content))

        async def again() -> Any:
            for part in kept:
                yield part

        return await upload(self, again(), context)

    async def ListRecords(self: Any, request: Any, context: Any) -> Any:
        response = await list_records(self, request, context)
        found = liar.scene(self)
        if found is None:
            return response
        records = [federation_wire.record_from_proto(record) for record in response.records]
        shown = found[0].records(found[1], self._silo(), records)
        return pb.ListRecordsResponse(
            records=[federation_wire.record_to_proto(record) for record in shown]
        )

    async def GetRoster(self: Any, request: Any, context: Any) -> Any:
        response = await get_roster(self, request, context)
        found = liar.scene(self)
        if found is None:
            return response
        return pb.GetRosterResponse(roster=found[0].roster(found[1], self._silo(), response.roster))

    RoundService.ListRecords = ListRecords
    RoundService.GetRoster = GetRoster
    RoundService.Poll = Poll
    RoundService.UploadMaskedInput = UploadMaskedInput
    for call in ("AdvertiseKeys", "ShareKeys", "CheckConsistency", "Unmask"):
        setattr(RoundService, call, heard(liar, call, getattr(RoundService, call)))


def heard(liar: Liar, call: str, real: Any) -> Any:
    """One RPC that is noted before the honest service sees it, or instead."""

    async def method(self: Any, request: Any, context: Any) -> Any:
        content = request.SerializeToString(deterministic=True)
        said = {**place(request.identity), "sha256": hashlib.sha256(content).hexdigest()}
        if call == "Unmask":
            shares = request.shares
            said["self_seed"] = [share.owner for share in shares.self_seed_shares]
            said["mask_key"] = [share.owner for share in shares.mask_key_shares]
        if liar.hear(self, call, self._silo(), request, said):
            return getattr(pb, f"{call}Response")()
        return await real(self, request, context)

    return method


if __name__ == "__main__":
    from server.cli.coordinator import main

    lying(Liar())
    main()
