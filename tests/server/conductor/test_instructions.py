"""Polls: what does not change costs an id, and what all silos are told is built once."""

import asyncio
from types import SimpleNamespace

import pytest

from chorale.v1 import round_pb2
from federation.version import this_version
from secagg import wire
from secagg.errors import MalformedMessageError
from server.conductor import instructions
from server.conductor.conductor import Conductor
from server.context import Signal
from server.figures import Phase
from server.rpc.rounds import MAX_INSTRUCTION_ID_CHARS, RoundService
from tests.kit.server.played import NAMES, Played


@pytest.fixture
def played(tmp_path):
    made = Played(tmp_path)
    yield made
    made.attempt.close()


@pytest.fixture
def built(monkeypatch):
    """Every building of a shared part."""
    calls, real = [], instructions._shared

    def counted(message):
        calls.append(type(message).__name__)
        return real(message)

    monkeypatch.setattr(instructions, "_shared", counted)
    return calls


def conducting(attempt):
    conductor = Conductor(SimpleNamespace(changed=Signal(), store=None))
    conductor.driver = SimpleNamespace(
        members=frozenset(NAMES),
        row=SimpleNamespace(run_id="run"),
        current=SimpleNamespace(round=1, step=0, attempt=1),
        training=None,
        task_for=lambda _silo: None,
        attempt=attempt,
    )
    return conductor


def test_each_silo_is_told_its_own_boxes_beside_the_headers_that_are_built_once(played, built):
    played.until(Phase.MASKED_INPUT)
    conductor = conducting(played.attempt)

    async def scenario():
        return await asyncio.gather(*(conductor.poll(name, "", 5) for name in NAMES))

    for name, content in zip(NAMES, asyncio.run(scenario()), strict=True):
        response = round_pb2.PollResponse.FromString(content)
        assert wire.box_delivery_from_proto(response.box_delivery) == played.message(name)
        assert wire.identity_from_proto(response.identity) == played.identity
        assert response.instruction_id.endswith(":masked_input")
    assert built == ["BoxDelivery"]


def test_a_change_that_is_not_for_a_silo_builds_nothing_for_it(played, built):
    played.until(Phase.MASKED_INPUT)
    conductor = conducting(played.attempt)

    async def scenario():
        first = await conductor.poll(NAMES[0], "", 5)
        known = round_pb2.PollResponse.FromString(first).instruction_id
        built.clear()
        waiting = asyncio.create_task(conductor.poll(NAMES[0], known, 0.1))
        for _ in range(5):
            await asyncio.sleep(0)
            conductor.context.changed.notify()
        assert not waiting.done()
        last = round_pb2.PollResponse.FromString(await waiting)
        assert last == round_pb2.PollResponse(instruction_id=known)

    asyncio.run(scenario())
    assert built == []


def test_the_next_phase_is_built_anew_and_a_poll_that_hangs_up_costs_nobody_its_answer(
    played, built
):
    conductor = conducting(played.attempt)

    async def scenario():
        seen = []
        for _ in range(3):
            polls = [asyncio.create_task(conductor.poll(name, "", 5)) for name in NAMES]
            await asyncio.sleep(0)
            polls[0].cancel()
            seen += [
                round_pb2.PollResponse.FromString(content).WhichOneof("instruction")
                for content in await asyncio.gather(*polls[1:])
            ]
            played.step()
            played.attempt.close_phase()
        return seen

    seen = asyncio.run(scenario())
    assert seen == ["descriptor"] * 4 + ["key_bundles"] * 4 + ["box_delivery"] * 4
    assert built == ["SignedDescriptor", "KeyBundles", "BoxDelivery"]


def test_the_instruction_id_of_a_poll_is_bounded(monkeypatch):
    peer = SimpleNamespace(name="silo-000", version=this_version())
    monkeypatch.setattr("server.rpc.rounds.current_peer", lambda: peer)
    liveness = SimpleNamespace(touch=lambda *_: None, runs=lambda *_: None)
    asked = []

    async def poll(_silo_id, last, _wait_s, **_):
        asked.append(last)
        return b""

    context = SimpleNamespace(liveness=liveness)
    service = RoundService(SimpleNamespace(context=context, poll=poll, driver=None))
    ask = lambda size: service.Poll(  # noqa: E731
        round_pb2.PollRequest(last_instruction_id="x" * size), None
    )
    asyncio.run(ask(MAX_INSTRUCTION_ID_CHARS))
    with pytest.raises(MalformedMessageError, match="at most 512"):
        asyncio.run(ask(MAX_INSTRUCTION_ID_CHARS + 1))
    assert asked == ["x" * MAX_INSTRUCTION_ID_CHARS]
