"""What a stream of requests keeps in memory of those that were read."""

import asyncio
import gc
import weakref

import grpc
import pytest
from google.protobuf.message import DecodeError

from secagg.errors import MalformedMessageError
from server.rpc.decode import Decoded, guarded

METHOD = "/a.Service/Stream"


class Message:
    """Bytes, of which can be told whether anybody still has them."""

    def __init__(self, content):
        self.content = content


@pytest.fixture
def no_collector():
    """No garbage collection: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def served(handler, deserialise, *messages):
    """What a handler of a stream answers to these messages."""
    server = grpc.aio.server()
    method = grpc.stream_unary_rpc_method_handler(handler, request_deserializer=deserialise)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("a.Service", {"Stream": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await channel.stream_unary(METHOD)(iter(messages))
    finally:
        await server.stop(None)


def test_a_message_that_was_read_is_gone_though_the_stream_is_not_at_its_end(no_collector):
    async def handler(_requests, context):
        requests = Decoded(context)
        first, second = [weakref.ref(await anext(requests)) for _ in range(2)]
        return b"kept" if first() or second() else b"gone"

    assert asyncio.run(served(handler, Message, b"one", b"two", b"three")) == b"gone"


def test_a_stream_is_read_in_order_to_its_end():
    async def handler(_requests, context):
        return b"+".join([message.content async for message in Decoded(context)])

    assert asyncio.run(served(handler, Message, b"one", b"two")) == b"one+two"


def test_of_bytes_that_are_no_message_the_stream_says_so():
    def strict(content):
        if content == b"\xff":
            raise DecodeError
        return Message(content)

    async def handler(_requests, context):
        requests = Decoded(context)
        await anext(requests)
        try:
            await anext(requests)
        except MalformedMessageError:
            return b"refused"
        return b"taken"

    assert asyncio.run(served(handler, guarded(strict), b"one", b"\xff")) == b"refused"
