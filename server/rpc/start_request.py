"""A request to start a run, read from its stream.

Invariant: an adapter is as long as its opening says, and the opening is bounded before a byte of it
is taken.

Covered: streams that are empty, out of order, short, long or stuffed with empty chunks. Not
covered: the plan and the adapter themselves (``server/conductor/queue.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from chorale.v1 import admin_pb2 as pb
from secagg.errors import MalformedMessageError

__all__ = ["StartRequest", "read_start"]

MAX_ADAPTER_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    """What an admin asks for."""

    plan: bytes
    """The TOML document, byte for byte."""
    adapter: bytes
    """The adapter that the run starts from, safetensors."""
    submit_token: str
    """As it came; may be empty."""
    federation: str
    """As it came; empty stands for this coordinator's."""


async def read_start(stream: AsyncIterator[pb.StartRunRequest]) -> StartRequest:
    """Read a start to its end.

    Args:
        stream: The opening, then chunks of the adapter.

    Raises:
        MalformedMessageError: It is not what its opening says, or says too much.
    """
    parts = aiter(stream)
    first = await anext(parts, None)
    if first is None or first.WhichOneof("part") != "opening":
        raise MalformedMessageError("a start begins with its opening")
    opening = first.opening
    if opening.adapter_bytes > MAX_ADAPTER_BYTES:
        raise MalformedMessageError(f"an adapter has at most {MAX_ADAPTER_BYTES} bytes")
    adapter = bytearray()
    async for part in parts:
        adapter += part.adapter_chunk
        if len(adapter) > opening.adapter_bytes or not part.adapter_chunk:
            raise MalformedMessageError("the adapter is not as long as its opening says")
    if len(adapter) != opening.adapter_bytes:
        raise MalformedMessageError("the adapter is not as long as its opening says")
    return StartRequest(
        plan=opening.plan,
        adapter=bytes(adapter),
        submit_token=opening.submit_token,
        federation=opening.federation,
    )
