"""What the service answers to silos that lost an answer: to a restart, or to a cut connection."""

import asyncio

import pytest

import secagg.wire as secagg_wire
from chorale.v1 import round_pb2 as pb
from secagg.descriptor import AggregationId
from secagg.messages import UnmaskingShares
from server.errors import WrongRoundError
from server.figures import Phase
from server.members.peer import Peer, Role
from server.rpc import access
from server.rpc.rounds import RoundService
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.played import Played

NAMES = silo_names(5)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=3) as made:
        yield made


def speak_as(name):
    access._PEER.set(Peer(role=Role.SILO, name=name, certificate_sha256=b"x"))


def unmask_request(identity, name):
    shares = UnmaskingShares(
        silo_id=name, self_seed_shares=(), mask_key_shares=(), signature=bytes(64)
    )
    return pb.UnmaskRequest(
        identity=secagg_wire.identity_to_proto(identity),
        shares=secagg_wire.unmasking_shares_to_proto(shares),
    )


def test_shares_for_a_sum_that_is_out_are_acknowledged_and_not_kept(world):
    run_id = asyncio.run(world.run(sw.plan_toml()))
    service = RoundService(world.conductor)
    name = NAMES[0]
    released = AggregationId(run_id=run_id, round=1, step=0, part=0, attempt=1)
    other = AggregationId(run_id=run_id, round=1, step=0, part=0, attempt=2)

    async def call(identity):
        speak_as(name)
        return await service.Unmask(unmask_request(identity, name), None)

    assert asyncio.run(call(released)) == pb.UnmaskResponse()
    assert "unmask" not in {m.phase for m in world.store.messages.with_secrets(released)}
    with pytest.raises(WrongRoundError):
        asyncio.run(call(other))


def test_an_offset_is_told_when_the_fold_before_it_is_over(world, tmp_path):
    played = Played(tmp_path / "attempt").until(Phase.MASKED_INPUT)
    attempt, name = played.attempt, NAMES[0]
    state, _ = played.states[name].handle(played.message(name))
    vector = (played.cohort.plain(name) % 2**32).astype("<u4")
    _, header = state.mask(vector)
    world.conductor.attempt = lambda: attempt
    service = RoundService(world.conductor)
    request = pb.GetUploadOffsetRequest(identity=secagg_wire.identity_to_proto(attempt.identity))

    async def parts():
        yield pb.UploadMaskedInputRequest(
            opening=pb.UploadOpening(
                identity=secagg_wire.identity_to_proto(attempt.identity),
                header=secagg_wire.masked_input_header_to_proto(header),
            )
        )
        yield pb.UploadMaskedInputRequest(chunk=pb.UploadChunk(content=vector.tobytes()))

    async def scenario():
        speak_as(name)
        async with attempt.lock:
            cut = asyncio.create_task(service.UploadMaskedInput(parts(), None))
            for _ in range(20):
                await asyncio.sleep(0)
            cut.cancel()
            asked = asyncio.create_task(service.GetUploadOffset(request, None))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asked.done()
            assert name in attempt.waiting_for
        answer = await asked
        assert name not in attempt.waiting_for
        return answer.offset_bytes

    assert asyncio.run(scenario()) == len(vector.tobytes())
    attempt.close()
