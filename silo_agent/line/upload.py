"""R2 on the wire: a spool streamed to the coordinator, resumed wherever it stopped.

Invariants:

1. Every leg begins with the coordinator's own offset and sends the spool from there on; so all
   legs together are the spool, byte for byte, whichever process sends them. From suite v2 on each
   opening carries the leaf list, and legs begin at the borders of the tree's chunks.
2. A cut is survived for ``patience_s`` after the last progress: bytes that arrived renew it.
3. A refusal ends the upload, unless the coordinator's offset moved meanwhile: then the refusal was
   of a leg that an older one, still draining, had overtaken, or the coordinator has lost what it
   had before this leg.

Covered: cut connections, a restarted coordinator, a restarted silo. Not covered: a coordinator that
pretends to hold bytes it does not; it only hurts its own sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

import secagg.wire as secagg_wire
from chorale.v1 import round_pb2 as pb
from secagg.descriptor import AggregationId
from secagg.digest_tree import CHUNK_BYTES
from secagg.messages import MaskedInputHeader
from silo_agent.line.channel import CALL_TIMEOUT_S, stream_timeout_s

__all__ = ["Chunks", "UploadStream"]


class Chunks(Protocol):
    """What is uploaded."""

    leaves: bytes
    """Of the digest tree; empty in suite v1."""

    def chunks(self, offset_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
        """The bytes from an offset on."""


class UploadStream:
    """One upload, in as many legs as it takes."""

    def __init__(
        self,
        stub: Any,
        *,
        identity: AggregationId,
        header: MaskedInputHeader,
        spool: Chunks,
        sent: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """``sent`` is told the size of each chunk, in bytes, as it goes out."""
        self._stub = stub
        self._sent = sent
        self._identity = secagg_wire.identity_to_proto(identity)
        self._header = secagg_wire.masked_input_header_to_proto(header)
        self._spool = spool
        self._length_bytes = header.length_bytes
        self._offset_bytes = -1
        self.progress_at = time.monotonic()
        """When the coordinator was last seen to hold more than before."""
        self.overtaken = False
        """Whether the coordinator's offset moved while the last leg was refused."""

    def send(self) -> int:
        """Send what the coordinator lacks, in one leg; returns how many bytes it holds.

        Raises:
            grpc.RpcError: the leg was cut or refused.
        """
        self.overtaken = False
        offset_bytes = self._ask_offset()
        if offset_bytes >= self._length_bytes:
            return self._length_bytes
        try:
            response = self._stub.UploadMaskedInput(
                self._leg(offset_bytes),
                timeout=stream_timeout_s(self._length_bytes),
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self.overtaken = self._ask_offset() != offset_bytes
            raise
        return int(response.received_bytes)

    def _ask_offset(self) -> int:
        request = pb.GetUploadOffsetRequest(identity=self._identity)
        offset_bytes = int(self._stub.GetUploadOffset(request, timeout=CALL_TIMEOUT_S).offset_bytes)
        if offset_bytes > self._offset_bytes:
            self._offset_bytes = offset_bytes
            self.progress_at = time.monotonic()
        return offset_bytes

    def _leg(self, offset_bytes: int) -> Iterator[pb.UploadMaskedInputRequest]:
        yield pb.UploadMaskedInputRequest(
            opening=pb.UploadOpening(
                identity=self._identity,
                header=self._header,
                offset_bytes=offset_bytes,
                leaves=self._spool.leaves,
            )
        )
        for chunk in self._spool.chunks(offset_bytes, CHUNK_BYTES):
            yield pb.UploadMaskedInputRequest(chunk=pb.UploadChunk(content=chunk))
            self._sent(len(chunk))
