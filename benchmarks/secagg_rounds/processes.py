"""One round with a process for each silo and one for the coordinator: what memory each needs.

Messages travel as protobuf bytes over pipes, masked vectors as files. A silo holds its float vector
and the ring vector that it becomes; the coordinator takes uploads in chunks into the accumulator of
`server.attempt.accumulator` and unmasks it tile by tile. Silos upload one after another.

Covered: no drops. Not covered: gRPC, TLS, the silo's ledger.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import secagg_pb2 as pb
from secagg import client, server, wire
from secagg.decode import split_sum
from secagg.prg import DEFAULT_THREADS, MaskStreams
from secagg_rounds.chorale import CLIP, GRID_STEPS, Federation, encode, federate
from server.attempt.accumulator import MAX_CHUNK_BYTES, Accumulator

# The first coordinates are made again by the coordinator to check the sum.
_CHECKED: Final = 1000
_KIB: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What one round needed."""

    client_peak_bytes: int
    """The largest of the silos' resident sets, interpreter and libraries included."""
    server_peak_bytes: int
    """The coordinator's resident set, mapped file pages included."""
    seconds: float


def peak_bytes() -> int:
    """Largest resident set of this process so far; ``ru_maxrss`` would count its parent's too."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * _KIB


def drawn(number: int, count: int, dimension: int) -> np.ndarray:
    """The first coordinates of a silo's vector, whose norm is about 0.9."""
    x = np.random.default_rng(number).standard_normal(count, dtype=np.float32)
    x *= np.float32(0.9 / np.sqrt(dimension))
    return x


def measure(n: int, dimension: int, suite_name: str) -> Footprint:
    """Run one round and report."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_coordinate, args=(theirs, n, dimension, suite_name))
    process.start()
    theirs.close()
    try:
        figures = np.frombuffer(ours.recv_bytes(), dtype=np.float64)
    except EOFError as error:
        raise RuntimeError("the coordinator's process failed") from error
    finally:
        process.join()
    return Footprint(
        client_peak_bytes=int(figures[0]),
        server_peak_bytes=int(figures[1]),
        seconds=float(figures[2]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Forms:
    """What R1 and its delivery are on the wire of a suite."""

    shares: str
    shares_proto: Any
    delivery: str
    delivery_proto: Any


FORMS: Final = {
    "v1": Forms(
        shares="share_boxes",
        shares_proto=pb.ShareBoxes,
        delivery="box_delivery",
        delivery_proto=pb.BoxDelivery,
    ),
    "v2": Forms(
        shares="share_leaves",
        shares_proto=pb.ShareLeaves,
        delivery="leaf_delivery",
        delivery_proto=pb.LeafDelivery,
    ),
}


def sent(name: str, message: Any) -> bytes:
    """A message as it goes over the wire."""
    return bytes(getattr(wire, f"{name}_to_proto")(message).SerializeToString())


def received(name: str, proto: Any, content: bytes) -> Any:
    """A message as it comes off the wire, within its bounds."""
    return getattr(wire, f"{name}_from_proto")(proto.FromString(content))


def packed(federation: Federation) -> tuple[bytes, ...]:
    """Roster, descriptor and the silos' keys as a new process takes them."""
    keys = [federation.signing_keys[name].private_bytes_raw() for name in federation.names]
    documents = [sent("roster", federation.roster), sent("descriptor", federation.descriptor)]
    return (*documents, *keys)


def unpacked(documents: tuple[bytes, ...]) -> Federation:
    roster, descriptor, *keys = documents
    signed = received("descriptor", pb.Descriptor, descriptor)
    return Federation(
        roster=received("roster", pb.Roster, roster),
        descriptor=signed,
        signing_keys={
            name: Ed25519PrivateKey.from_private_bytes(key)
            for name, key in zip(signed.descriptor.cohort, keys, strict=True)
        },
    )


def _silo(pipe: Connection, number: int, dimension: int, documents: tuple[bytes, ...]) -> None:
    """A silo's process: answers what comes, in the order of the protocol."""
    federation = unpacked(documents)
    name = federation.names[number]
    forms = FORMS[federation.suite_name]
    advertised, bundle = client.begin(federation.setup(name))
    pipe.send_bytes(sent("key_bundle", bundle))
    shared, boxes = advertised.handle(received("key_bundles", pb.KeyBundles, pipe.recv_bytes()))
    pipe.send_bytes(sent(forms.shares, boxes))
    masking, _ = shared.handle(received(forms.delivery, forms.delivery_proto, pipe.recv_bytes()))
    x = drawn(number, dimension, dimension)
    vector = encode(x)
    agreeing, header = masking.mask(vector, federation.debit)
    path = Path(pipe.recv_bytes().decode())
    with path.open("wb") as spool:
        spool.write(vector.data)
    del x, vector
    pipe.send_bytes(sent("masked_input_header", header))
    pipe.send_bytes(agreeing.leaves)
    unmasking, signature = agreeing.handle(received("survivors", pb.Survivors, pipe.recv_bytes()))
    pipe.send_bytes(sent("consistency_signature", signature))
    _, shares = unmasking.handle(
        received("consistency_signatures", pb.ConsistencySignatures, pipe.recv_bytes())
    )
    pipe.send_bytes(sent("unmasking_shares", shares))
    pipe.send_bytes(str(peak_bytes()).encode())


def _coordinate(report: Connection, n: int, dimension: int, suite_name: str) -> None:
    """The coordinator's process."""
    federation = federate(n, dimension, suite_name)
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    silos = []
    for number, name in enumerate(federation.names):
        pipes[name], far = context.Pipe()
        silo = context.Process(
            target=_silo, args=(far, number, dimension, packed(federation)), daemon=True
        )
        silo.start()
        far.close()
        silos.append(silo)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        _round(federation, pipes, Path(scratch))
    seconds = time.perf_counter() - start
    largest = max(int(pipe.recv_bytes()) for pipe in pipes.values())
    for silo in silos:
        silo.join()
    report.send_bytes(np.array([largest, peak_bytes(), seconds]).tobytes())


def _round(federation: Federation, pipes: Mapping[str, Connection], scratch: Path) -> None:
    descriptor, forms = federation.descriptor.descriptor, FORMS[federation.suite_name]

    def collect(name: str, proto: Any, receive: Callable[[Any], object]) -> None:
        for pipe in pipes.values():
            receive(received(name, proto, pipe.recv_bytes()))

    def broadcast(content: bytes) -> None:
        for pipe in pipes.values():
            pipe.send_bytes(content)

    opened = server.open(federation.descriptor, federation.roster)
    collect("key_bundle", pb.KeyBundle, opened.receive)
    sharing, bundles = opened.close()
    broadcast(sent("key_bundles", bundles))
    collect(forms.shares, forms.shares_proto, sharing.receive)
    collecting, deliveries = sharing.close()
    accumulator = Accumulator(scratch / "sum", length=descriptor.words)
    spool = scratch / "spool"
    for name, pipe in pipes.items():
        pipe.send_bytes(sent(forms.delivery, deliveries[name]))
        pipe.send_bytes(str(spool).encode())
        header = received("masked_input_header", pb.MaskedInputHeader, pipe.recv_bytes())
        collecting.expect(header)
        upload = accumulator.open_upload(
            name,
            length_bytes=header.length_bytes,
            sha256=header.masked_sha256,
            digest_id=descriptor.digest_id,
        )
        upload.take_leaves(pipe.recv_bytes())
        with spool.open("rb") as chunks:
            while chunk := chunks.read(MAX_CHUNK_BYTES):
                upload.append(upload.received_bytes, chunk)
        spool.unlink()
        accumulator.fold(upload, _commit_nothing)
        collecting.completed(name, header.masked_sha256)
    agreeing, survivors = collecting.close()
    broadcast(sent("survivors", survivors))
    collect("consistency_signature", pb.ConsistencySignature, agreeing.receive)
    unmasking, signatures = agreeing.close()
    broadcast(sent("consistency_signatures", signatures))
    collect("unmasking_shares", pb.UnmaskingShares, unmasking.receive)
    masks = unmasking.finish().masks
    with MaskStreams(masks, words=descriptor.words, threads=DEFAULT_THREADS) as streams:
        total = accumulator.release(streams.apply)
    _check(split_sum(total, descriptor).delta[:_CHECKED], len(pipes), descriptor.dimension)
    del total
    accumulator.close()


def _commit_nothing(generation: int) -> None:
    """There is no database here: a crash loses the round."""


def _check(delta: np.ndarray, n: int, dimension: int) -> None:
    count = min(_CHECKED, dimension)
    expected = np.zeros(count)
    for number in range(n):
        expected += drawn(number, count, dimension)
    scale = GRID_STEPS / CLIP
    if np.abs(delta / scale - expected).max() > n / scale:
        raise ArithmeticError("the sum is not that of the silos' vectors")
