"""R1 of one round, with a process for the coordinator alone: bytes of its messages, and memory.

All silos live in this process and send what a silo sends; the coordinator has a process of its own
and takes protobuf bytes over a pipe. It then makes and holds what every silo is told, as when all
of them ask at once: in suite v1 what is the same for all is made once, as
`server/conductor/instructions.py` does.

Covered: R0 and R1. Not covered: gRPC's own buffers, the database.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from chorale.v1 import secagg_pb2 as pb
from secagg import client, server
from secagg.messages import BoxDelivery
from secagg_rounds.chorale import federate
from secagg_rounds.processes import FORMS, packed, peak_bytes, received, sent, unpacked

_PAGE_BYTES: Final = 4096
_DIMENSION: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class SharesCost:
    """R1 of n silos."""

    up_bytes: int
    """Of one silo: the mean."""
    down_bytes: int
    total_bytes: int
    """Of all silos, both ways."""
    state_bytes: int
    """What R0 and R1 added to the coordinator's resident set."""
    peak_bytes: int
    """The same at its peak, with every silo's answer in memory."""
    silo_s: float
    """A silo's work in R0 and R1: the mean, its shares' decryption not included."""
    server_s: float
    """The coordinator's work, parsing and answers included."""


def measure_shares(n: int, suite_name: str) -> SharesCost:
    """Run R0 and R1 and report."""
    federation = federate(n, _DIMENSION, suite_name)
    forms = FORMS[suite_name]
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    process = context.Process(target=_coordinate, args=(far, packed(federation)), daemon=True)
    process.start()
    far.close()
    seconds = 0.0
    advertised = {}
    for name in federation.names:
        start = time.perf_counter()
        advertised[name], bundle = client.begin(federation.setup(name))
        seconds += time.perf_counter() - start
        pipe.send_bytes(sent("key_bundle", bundle))
    bundles = received("key_bundles", pb.KeyBundles, pipe.recv_bytes())
    up = 0
    for state in advertised.values():
        start = time.perf_counter()
        _, shares = state.handle(bundles)
        seconds += time.perf_counter() - start
        content = sent(forms.shares, shares)
        up += len(content)
        pipe.send_bytes(content)
    down, state_bytes, peak, server_s = np.frombuffer(pipe.recv_bytes(), dtype=np.float64)
    process.join()
    return SharesCost(
        up_bytes=up // n,
        down_bytes=int(down) // n,
        total_bytes=up + int(down),
        state_bytes=int(state_bytes),
        peak_bytes=int(peak),
        silo_s=seconds / n,
        server_s=float(server_s),
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _coordinate(pipe: Connection, documents: tuple[bytes, ...]) -> None:
    """The coordinator's process."""
    federation = unpacked(documents)
    forms = FORMS[federation.suite_name]
    opened = server.open(federation.descriptor, federation.roster)
    before, seconds = _resident_bytes(), 0.0

    def take(name: str, proto: Any, receive: Any) -> None:
        nonlocal seconds
        for _ in federation.names:
            content = pipe.recv_bytes()
            start = time.perf_counter()
            receive(received(name, proto, content))
            seconds += time.perf_counter() - start

    take("key_bundle", pb.KeyBundle, opened.receive)
    sharing, bundles = opened.close()
    pipe.send_bytes(sent("key_bundles", bundles))
    take(forms.shares, forms.shares_proto, sharing.receive)
    start = time.perf_counter()
    collecting, deliveries = sharing.close()
    state = _resident_bytes()
    told = _answers(deliveries, forms.delivery)
    seconds += time.perf_counter() - start
    down = sum(map(len, told))
    # The state lives until here, as it does while silos upload.
    if len(collecting.members.silo_ids) != len(told):
        raise ArithmeticError("a silo is missing")
    figures = [down, state - before, max(peak_bytes(), _resident_bytes()) - before, seconds]
    pipe.send_bytes(np.array(figures, dtype=np.float64).tobytes())


def _answers(deliveries: Any, form: str) -> list[bytes]:
    """What each silo is told; the headers of suite v1, the same for all, are made once."""
    listed = list(deliveries.values())
    if not isinstance(listed[0], BoxDelivery):
        return [sent(form, delivery) for delivery in listed]
    shared = sent(form, BoxDelivery(headers=listed[0].headers, ciphertexts={}))
    return [
        pb.BoxDelivery(ciphertexts=dict(delivery.ciphertexts)).SerializeToString() + shared
        for delivery in listed
    ]
