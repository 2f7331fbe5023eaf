"""Spools and the sum on disk: only whole, signed bytes are ever added, and added once."""

import hashlib

import numpy as np
import pytest

from server.accumulator import MAX_CHUNK_BYTES, TILE_BYTES, Accumulator
from server.errors import UploadError

LENGTH = TILE_BYTES // 4 + 37
"""More than one tile."""


def vector(seed):
    return np.random.default_rng(seed).integers(0, 2**32, LENGTH, dtype=np.uint32).astype("<u4")


def opened(accumulator, name, content, *, sha256=None):
    return accumulator.open_upload(
        name,
        length_bytes=len(content),
        sha256=hashlib.sha256(content).digest() if sha256 is None else sha256,
    )


def send(upload, content, start=0):
    for offset in range(start, len(content), MAX_CHUNK_BYTES):
        upload.append(offset, content[offset : offset + MAX_CHUNK_BYTES])


@pytest.fixture
def accumulator(tmp_path):
    made = Accumulator(tmp_path / "sum", length=LENGTH)
    yield made
    made.close()


def test_the_sum_is_modular_and_in_any_order(accumulator):
    vectors = [vector(seed) for seed in range(3)]
    uploads = []
    for number, part in enumerate(vectors):
        upload = opened(accumulator, f"silo-{number}", part.tobytes())
        send(upload, part.tobytes())
        uploads.append(upload)
    for upload in reversed(uploads):
        accumulator.fold(upload)
    expected = sum(part.astype(np.uint64) for part in vectors) % 2**32
    np.testing.assert_array_equal(accumulator.vector, expected.astype(np.uint32))


def test_interleaved_chunks_of_several_silos_do_not_mix(accumulator):
    a, b = vector(1).tobytes(), vector(2).tobytes()
    first, second = opened(accumulator, "a", a), opened(accumulator, "b", b)
    for offset in range(0, len(a), 500_000):
        first.append(offset, a[offset : offset + 500_000])
        second.append(offset, b[offset : offset + 500_000])
    accumulator.fold(first)
    np.testing.assert_array_equal(accumulator.vector, vector(1))
    accumulator.fold(second)
    np.testing.assert_array_equal(accumulator.vector, vector(1) + vector(2))


def test_a_truncated_upload_is_not_folded_and_can_go_on(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    upload.append(0, content[:1000])
    assert not upload.complete
    with pytest.raises(UploadError, match=f"{len(content) - 1000} bytes are missing"):
        accumulator.fold(upload)
    assert not accumulator.vector.any()
    send(upload, content, 1000)
    accumulator.fold(upload)
    np.testing.assert_array_equal(accumulator.vector, vector(1))


def test_a_chunk_past_the_end_is_refused_before_it_is_written(accumulator, tmp_path):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    send(upload, content[:-10])
    with pytest.raises(UploadError, match="longer than its signed"):
        upload.append(len(content) - 10, content[-10:] + b"x")
    with pytest.raises(UploadError, match="starts at byte"):
        upload.append(len(content), b"x")
    (spool,) = (tmp_path / "sum").glob("a.*.masked")
    assert spool.stat().st_size == len(content) - 10
    upload.append(len(content) - 10, content[-10:])
    with pytest.raises(UploadError, match="longer"):
        upload.append(len(content), b"x")
    accumulator.fold(upload)


@pytest.mark.parametrize("offset", [999, 1001, 0])
def test_gaps_and_overlaps_are_refused_with_the_offset_to_resume_at(accumulator, offset):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    upload.append(0, content[:1000])
    with pytest.raises(UploadError, match="starts at byte 1000"):
        upload.append(offset, content[offset : offset + 10])
    assert upload.received_bytes == 1000


@pytest.mark.parametrize("size", [0, MAX_CHUNK_BYTES + 1])
def test_empty_and_oversize_chunks_are_refused(accumulator, size):
    with pytest.raises(UploadError, match="a chunk has"):
        opened(accumulator, "a", vector(1).tobytes()).append(0, bytes(size))


def test_corrupt_bytes_never_enter_the_sum_and_the_silo_may_start_again(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    damaged = bytearray(content)
    damaged[LENGTH] ^= 4
    send(upload, bytes(damaged))
    with pytest.raises(UploadError, match="signed digest"):
        accumulator.fold(upload)
    assert not accumulator.vector.any()
    assert upload.received_bytes == 0
    send(upload, content)
    accumulator.fold(upload)
    np.testing.assert_array_equal(accumulator.vector, vector(1))


@pytest.mark.parametrize("off_by", [-4, -1, 1, 4])
def test_another_length_than_four_bytes_a_coordinate_is_refused(accumulator, off_by):
    with pytest.raises(UploadError, match="takes"):
        accumulator.open_upload("a", length_bytes=4 * LENGTH + off_by, sha256=bytes(32))


def test_a_stream_of_an_earlier_attempt_cannot_write_into_a_later_one(tmp_path):
    content, old = vector(1).tobytes(), vector(2).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    stale = opened(before, "a", old)
    stale.append(0, old[:1000])
    before.close()
    after = Accumulator(tmp_path / "sum", length=LENGTH)
    upload = opened(after, "a", content)
    upload.append(0, content[:1000])
    with pytest.raises(UploadError, match="over"):
        stale.append(1000, old[1000:2000])
    send(upload, content, 1000)
    after.fold(upload)
    np.testing.assert_array_equal(after.vector, vector(1))
    after.close()


def test_nothing_is_left_behind_and_leftovers_of_a_crash_are_cleared(tmp_path):
    directory = tmp_path / "scratch" / "run"
    first = Accumulator(directory, length=4)
    first.vector[:] = 7
    send(opened(first, "a", bytes(16)), bytes(16))
    # No close: a crash.
    second = Accumulator(directory, length=4)
    assert not second.vector.any()
    assert [path.name for path in directory.iterdir()] == ["sum.u32"]
    assert directory.stat().st_mode & 0o077 == 0
    second.close()
    assert not directory.exists()
