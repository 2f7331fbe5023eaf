"""What one silo, a cut connection or a full disk does to the coordinator."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from chorale.v1 import round_pb2 as pb
from secagg import client, messages, wire
from secagg.bounds import MAX_COHORT
from server.attempt.accumulator import Accumulator
from server.attempt.attempt import Attempt
from server.errors import WrongPhaseError
from server.figures import Phase
from server.rpc import ports
from server.rpc.rounds import RoundService
from silo_agent.line import transport
from tests.kit.server.memory_journal import MemoryJournal
from tests.kit.simulation.secagg_cohort import Cohort

MAX_SILO_ID = 63


def attempt_of(cohort: Cohort, tmp_path) -> Attempt:
    return Attempt(
        descriptor=cohort.descriptor,
        roster=cohort.roster,
        families={},
        accumulator=Accumulator(tmp_path / "scratch", length=cohort.descriptor.descriptor.words),
        journal=MemoryJournal(),
    )


def bundles_in(attempt: Attempt, cohort: Cohort):
    sent = {}
    for name in cohort.names:
        cohort.states[name], sent[name] = client.begin(cohort.setup(name))
        attempt.receive_bundle(attempt.identity, sent[name])
    return sent


def test_a_repeat_whose_answer_was_lost_is_accepted_after_the_phase_closed(tmp_path):
    """service: the silo repeats a call that got no answer; the phase may have closed meanwhile."""
    cohort = Cohort(4)
    attempt = attempt_of(cohort, tmp_path)
    sent = bundles_in(attempt, cohort)
    attempt.close_phase()
    assert attempt.phase is Phase.SHARE_KEYS
    try:
        attempt.receive_bundle(attempt.identity, sent[cohort.names[0]])
    except WrongPhaseError as error:
        pytest.fail(f"the silo takes this for a refusal and leaves the attempt: {error}")


def test_an_upload_cut_after_its_last_byte_is_in_the_sum(tmp_path, monkeypatch):
    """The stream is whole, then the connection breaks before the answer."""
    cohort = Cohort(4)
    attempt = attempt_of(cohort, tmp_path)
    bundles_in(attempt, cohort)
    attempt.close_phase()
    message = attempt.instruction(cohort.names[0]).message
    for name in cohort.names:
        cohort.states[name], boxes = cohort.states[name].handle(message)
        attempt.receive_boxes(attempt.identity, boxes)
    attempt.close_phase()
    name = cohort.names[0]
    cohort.states[name], _ = cohort.states[name].handle(attempt.instruction(name).message)
    vector = (cohort.plain(name) % 2**32).astype("<u4")
    cohort.states[name], header = cohort.states[name].mask(vector)
    body = vector.tobytes()
    assert header.masked_sha256 == hashlib.sha256(body).digest()

    monkeypatch.setattr("server.rpc.rounds.current_peer", lambda: SimpleNamespace(name=name))
    context = SimpleNamespace(
        liveness=SimpleNamespace(touch=lambda _s: None, runs=lambda *_: None),
        changed=SimpleNamespace(notify=lambda: None),
    )
    service = RoundService(SimpleNamespace(context=context, attempt=lambda: attempt))

    async def parts():
        identity = wire.identity_to_proto(attempt.identity)
        opening = pb.UploadOpening(
            identity=identity, header=wire.masked_input_header_to_proto(header)
        )
        yield pb.UploadMaskedInputRequest(opening=opening)
        yield pb.UploadMaskedInputRequest(chunk=pb.UploadChunk(content=body))

    async def scenario() -> int:
        async with attempt.lock:  # another silo's fold is running
            call = asyncio.create_task(service.UploadMaskedInput(parts(), None))
            for _ in range(20):
                await asyncio.sleep(0)
            call.cancel()  # what grpc.aio does when the connection breaks
            await asyncio.gather(call, return_exceptions=True)
        # The silo reconnects and asks where to resume.
        offset = attempt.upload_offset(attempt.identity, name)
        # The fold is in a thread; it has ten seconds.
        for _ in range(1000):
            if name not in attempt.waiting_for:
                break
            await asyncio.sleep(0.01)
        return offset

    offset = asyncio.run(scenario())
    folded = name not in attempt.waiting_for
    # If the silo is told that all bytes are there, they must be (or come to be) in the sum.
    assert folded or offset < len(body), "the silo believes it is done and is waited for in vain"


def test_a_full_disk_is_an_error_and_not_a_bus_error(tmp_path):
    """The accumulator is a sparse memory map: writing it on a full disk kills the process."""
    path = tmp_path / "sum"
    code = (
        "import os,sys; from pathlib import Path\n"
        "from server.attempt.accumulator import Accumulator\n"
        f"a=Accumulator(Path({str(path)!r}), length=1<<20)\n"
        f"s=os.stat(Path({str(path)!r})/'sum.0.u32'); print(s.st_blocks*512, s.st_size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    allocated, size = map(int, done.stdout.split())
    assert allocated >= size


def test_the_boxes_of_the_largest_cohort_fit_one_message():
    """R1 of n = 200 silos with the longest ids, on the way to each silo."""
    ids = [f"silo-{k:03d}-".ljust(MAX_SILO_ID, "x") for k in range(MAX_COHORT)]
    digest = bytes(32)
    headers = tuple(
        messages.ShareBoxHeader(
            sender=sender,
            boxes=tuple(
                messages.ShareBoxDigest(
                    recipient=recipient,
                    ciphertext_sha256=digest,
                    self_seed_share_sha256=digest,
                    mask_key_share_sha256=digest,
                )
                for recipient in ids
                if recipient != sender
            ),
            self_seed_commitment=digest,
            own_self_seed_share_sha256=digest,
            signature=bytes(64),
        )
        for sender in ids
    )
    size = wire.box_delivery_to_proto(
        messages.BoxDelivery(headers=headers, ciphertexts={})
    ).ByteSize()
    assert 4 << 20 < size < 0.9 * transport.MAX_MESSAGE_BYTES, f"{size} bytes"
    assert transport.MAX_MESSAGE_BYTES == ports.MAX_MESSAGE_BYTES


def test_a_phase_cannot_close_while_a_cut_upload_is_still_folding(tmp_path, monkeypatch):
    """The fold runs in a thread: cancelling the call must not release the attempt's lock."""
    entered, release = threading.Event(), threading.Event()
    attempt = SimpleNamespace(lock=asyncio.Lock(), open_upload=None)

    def fold(_identity, _silo):
        entered.set()
        release.wait(120)

    upload = SimpleNamespace(digest_id=0, complete=True, length_bytes=4, received_bytes=0)
    attempt.open_upload = lambda *_: upload
    attempt.fold_upload = fold
    monkeypatch.setattr(
        "server.rpc.rounds.current_peer", lambda: SimpleNamespace(name="silo-a", version=None)
    )
    monkeypatch.setattr(
        "server.rpc.rounds.secagg_wire.masked_input_header_from_proto",
        lambda _p: SimpleNamespace(silo_id="silo-a"),
    )
    monkeypatch.setattr("server.rpc.rounds.secagg_wire.identity_from_proto", lambda _p: None)
    context = SimpleNamespace(
        liveness=SimpleNamespace(touch=lambda _s: None, runs=lambda *_: None),
        changed=SimpleNamespace(notify=lambda: None),
    )
    service = RoundService(SimpleNamespace(context=context, attempt=lambda: attempt))

    async def parts():
        yield pb.UploadMaskedInputRequest(opening=pb.UploadOpening())

    async def scenario() -> bool:
        attempt.lock = asyncio.Lock()
        call = asyncio.create_task(service.UploadMaskedInput(parts(), None))
        assert await asyncio.to_thread(entered.wait, 60)
        call.cancel()
        await asyncio.sleep(0.05)
        held = attempt.lock.locked()
        release.set()
        await asyncio.gather(call, return_exceptions=True)
        return held

    assert asyncio.run(scenario()), "the lock is free while a thread still adds to the sum"
