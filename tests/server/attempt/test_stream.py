"""Upload streams: cut at the borders of chunks in suite v2, checked in threads, resumed."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from chorale.v1 import round_pb2 as pb
from secagg.digest_tree import SHA256, TreeHasher
from secagg.errors import Check, VerificationError
from server.attempt.accumulator import MAX_CHUNK_BYTES, Accumulator
from server.attempt.stream import UploadStream
from server.errors import UploadError
from server.rpc.rounds import RoundService

LENGTH = 2 * MAX_CHUNK_BYTES // 4 + 37
CONTENT = np.random.default_rng(5).bytes(4 * LENGTH)
BORDERS = [0, MAX_CHUNK_BYTES, 2 * MAX_CHUNK_BYTES]


def cut(stream, content, size):
    return [
        piece
        for start in range(0, len(content), size)
        for piece in stream.cut(content[start : start + size])
    ]


def announced(received=0, digest_id=SHA256):
    return SimpleNamespace(digest_id=digest_id, length_bytes=len(CONTENT), received_bytes=received)


@pytest.mark.parametrize("size", [MAX_CHUNK_BYTES, MAX_CHUNK_BYTES - 1, 700_000, 4096])
@pytest.mark.parametrize("received", BORDERS)
def test_pieces_of_any_size_are_cut_at_the_borders(received, size):
    stream = UploadStream(announced(received), received)
    pieces = cut(stream, CONTENT[received:], size)
    assert [offset for offset, _ in pieces] == [each for each in BORDERS if each >= received]
    assert b"".join(piece for _, piece in pieces) == CONTENT[received:]


def test_in_suite_v1_pieces_stay_as_they_come():
    pieces = cut(UploadStream(announced(10, digest_id=0), 10), CONTENT[10:5000], 1000)
    assert [offset for offset, _ in pieces] == [10, 1010, 2010, 3010, 4010]
    assert b"".join(piece for _, piece in pieces) == CONTENT[10:5000]


@pytest.mark.parametrize("size", [0, MAX_CHUNK_BYTES + 1])
def test_empty_and_oversize_pieces_are_refused(size):
    with pytest.raises(UploadError, match="a chunk has"):
        list(UploadStream(announced(), 0).cut(bytes(size)))


def test_what_runs_past_the_end_is_refused():
    stream = UploadStream(announced(BORDERS[2]), BORDERS[2])
    assert len(list(stream.cut(CONTENT[BORDERS[2] :]))) == 1
    with pytest.raises(UploadError, match="longer than its signed"):
        list(stream.cut(b"x"))


def test_a_stream_begins_where_the_upload_goes_on():
    with pytest.raises(UploadError, match="goes on at byte 0"):
        UploadStream(announced(), MAX_CHUNK_BYTES)


class Door:
    """The service in front of one upload."""

    def __init__(self, tmp_path, monkeypatch):
        self.accumulator = Accumulator(tmp_path / "sum", length=LENGTH)
        with TreeHasher(len(CONTENT), SHA256) as tree:
            tree.update(CONTENT)
            self.leaves, root = tree.leaves(), tree.root()
        self.upload = self.accumulator.open_upload(
            "silo-a", length_bytes=len(CONTENT), sha256=root, digest_id=SHA256
        )
        self.folded = 0
        monkeypatch.setattr(
            "server.rpc.rounds.current_peer", lambda: SimpleNamespace(name="silo-a", version=None)
        )
        monkeypatch.setattr(
            "server.rpc.rounds.secagg_wire.masked_input_header_from_proto",
            lambda _p: SimpleNamespace(silo_id="silo-a"),
        )
        monkeypatch.setattr("server.rpc.rounds.secagg_wire.identity_from_proto", lambda _p: None)

    def open_upload(self, _identity, _header, leaves):
        self.upload.take_leaves(leaves)
        return self.upload

    def fold_upload(self, _identity, _silo):
        self.accumulator.fold(self.upload, lambda _: None)
        self.folded += 1

    def serve(self, *calls):
        """Calls of the service, each a list of parts, side by side; their answers or errors."""

        async def parts(requests):
            for request in requests:
                await asyncio.sleep(0)
                yield request

        async def all_of_them():
            self.lock = asyncio.Lock()
            context = SimpleNamespace(
                liveness=SimpleNamespace(touch=lambda _s: None, runs=lambda *_: None),
                changed=SimpleNamespace(notify=lambda: None),
                metrics=SimpleNamespace(upload_resumes=SimpleNamespace(inc=lambda: None)),
            )
            service = RoundService(SimpleNamespace(context=context, attempt=lambda: self))
            return await asyncio.gather(
                *(service.UploadMaskedInput(parts(call), None) for call in calls),
                return_exceptions=True,
            )

        return asyncio.run(all_of_them())

    def request(self, start=0, content=CONTENT, *, size=MAX_CHUNK_BYTES, leaves=None):
        opening = pb.UploadOpening(
            offset_bytes=start, leaves=self.leaves if leaves is None else leaves
        )
        yield pb.UploadMaskedInputRequest(opening=opening)
        for at in range(start, len(content), size):
            yield pb.UploadMaskedInputRequest(chunk=pb.UploadChunk(content=content[at : at + size]))


@pytest.fixture
def door(tmp_path, monkeypatch):
    made = Door(tmp_path, monkeypatch)
    yield made
    made.accumulator.close()


@pytest.mark.parametrize("size", [MAX_CHUNK_BYTES, 600_000])
def test_an_upload_of_suite_v2_is_served(door, size):
    (answer,) = door.serve(door.request(size=size))
    assert answer.received_bytes == len(CONTENT)
    assert door.accumulator.committed().tobytes() == CONTENT


def test_a_bad_chunk_ends_the_stream_and_the_next_goes_on_at_its_border(door):
    damaged = CONTENT[: BORDERS[1] + 9] + b"!" + CONTENT[BORDERS[1] + 10 :]
    (error,) = door.serve(door.request(content=damaged))
    assert isinstance(error, VerificationError)
    assert (error.check, error.silo) == (Check.DIGEST_LEAF, "silo-a")
    assert (door.folded, door.upload.received_bytes) == (0, BORDERS[1])
    (answer,) = door.serve(door.request(BORDERS[1]))
    assert answer.received_bytes == len(CONTENT)
    assert door.accumulator.committed().tobytes() == CONTENT


def test_a_bad_leaf_list_is_refused_before_the_first_chunk(door):
    (error,) = door.serve(door.request(leaves=door.leaves[32:] + door.leaves[:32]))
    assert isinstance(error, VerificationError)
    assert error.check is Check.DIGEST_LEAF
    assert door.upload.received_bytes == 0


def test_two_streams_of_one_silo_make_one_upload(door):
    answers = door.serve(door.request(), door.request(size=500_000))
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(error, UploadError) for error in errors)
    assert (len(errors), door.folded) == (1, 1)
    assert door.accumulator.committed().tobytes() == CONTENT


def test_a_stream_that_is_cut_inside_a_chunk_leaves_the_border(door):
    requests = list(door.request(size=700_000))[:3]
    (error,) = door.serve(requests)
    assert isinstance(error, UploadError)
    assert door.upload.received_bytes == BORDERS[1] == door.upload.path.stat().st_size
