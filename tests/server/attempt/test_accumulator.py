"""Spools and the sum on disk: only whole, signed bytes are ever added, and added once."""

import errno
import hashlib
import tracemalloc

import numpy as np
import pytest

from server.attempt.accumulator import MAX_CHUNK_BYTES, TILE_BYTES, Accumulator, clear_scratch
from server.errors import LostAttemptError, StorageFullError, StoreError, UploadError

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


def fold(accumulator, upload):
    accumulator.fold(upload, lambda _: None)


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
        fold(accumulator, upload)
    expected = sum(part.astype(np.uint64) for part in vectors) % 2**32
    np.testing.assert_array_equal(accumulator.committed(), expected.astype(np.uint32))


def test_interleaved_chunks_of_several_silos_do_not_mix(accumulator):
    a, b = vector(1).tobytes(), vector(2).tobytes()
    first, second = opened(accumulator, "a", a), opened(accumulator, "b", b)
    for offset in range(0, len(a), 500_000):
        first.append(offset, a[offset : offset + 500_000])
        second.append(offset, b[offset : offset + 500_000])
    fold(accumulator, first)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))
    fold(accumulator, second)
    np.testing.assert_array_equal(accumulator.committed(), vector(1) + vector(2))


def test_a_truncated_upload_is_not_folded_and_can_go_on(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    upload.append(0, content[:1000])
    assert not upload.complete
    with pytest.raises(UploadError, match=f"{len(content) - 1000} bytes are missing"):
        fold(accumulator, upload)
    assert not accumulator.committed().any()
    send(upload, content, 1000)
    fold(accumulator, upload)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))


def test_a_chunk_past_the_end_is_refused_before_it_is_written(accumulator, tmp_path):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    send(upload, content[:-10])
    with pytest.raises(UploadError, match="longer than its signed"):
        upload.append(len(content) - 10, content[-10:] + b"x")
    with pytest.raises(UploadError, match="starts at byte"):
        upload.append(len(content), b"x")
    spool = tmp_path / "sum" / "a.masked"
    assert spool.stat().st_size == len(content) - 10
    upload.append(len(content) - 10, content[-10:])
    with pytest.raises(UploadError, match="longer"):
        upload.append(len(content), b"x")
    fold(accumulator, upload)


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
        fold(accumulator, upload)
    assert not accumulator.committed().any()
    assert upload.received_bytes == 0
    send(upload, content)
    fold(accumulator, upload)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))


@pytest.mark.parametrize("off_by", [-4, -1, 1, 4])
def test_another_length_than_four_bytes_a_coordinate_is_refused(accumulator, off_by):
    with pytest.raises(UploadError, match="takes"):
        accumulator.open_upload("a", length_bytes=4 * LENGTH + off_by, sha256=bytes(32))


def test_a_stream_of_an_earlier_attempt_cannot_write_into_a_later_one(tmp_path):
    content, old = vector(1).tobytes(), vector(2).tobytes()
    before = Accumulator(tmp_path / "1.0.0.1", length=LENGTH)
    stale = opened(before, "a", old)
    stale.append(0, old[:1000])
    before.close()
    after = Accumulator(tmp_path / "1.0.0.2", length=LENGTH)
    upload = opened(after, "a", content)
    upload.append(0, content[:1000])
    with pytest.raises(UploadError, match="over"):
        stale.append(1000, old[1000:2000])
    with pytest.raises(UploadError, match="over"):
        before.open_upload("b", length_bytes=4 * LENGTH, sha256=bytes(32))
    send(upload, content, 1000)
    fold(after, upload)
    np.testing.assert_array_equal(after.committed(), vector(1))
    after.close()


def test_a_new_attempt_finds_nothing_of_what_lay_there(tmp_path):
    directory = tmp_path / "scratch" / "run" / "1.0.0.1"
    first = Accumulator(directory, length=4)
    fold_of(first, "a", np.full(4, 7, dtype="<u4"))
    send(opened(first, "b", bytes(16)), bytes(16))
    second = Accumulator(directory, length=4)
    assert not second.committed().any()
    assert sorted(path.name for path in directory.iterdir()) == ["sum.0.u32", "sum.1.u32"]
    assert directory.stat().st_mode & 0o077 == 0
    second.close()
    assert not directory.exists()


# Restarts ----------------------------------------------------------------------------------------


def fold_of(accumulator, name, part, commit=lambda _: None):
    upload = opened(accumulator, name, part.tobytes())
    send(upload, part.tobytes(), upload.received_bytes)
    accumulator.fold(upload, commit)


@pytest.mark.parametrize("folds", [0, 1, 2, 5])
def test_the_committed_sum_goes_on_after_a_restart(tmp_path, folds):
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    for seed in range(folds):
        fold_of(before, f"silo-{seed}", vector(seed))
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=folds)
    fold_of(after, "last", vector(99))
    expected = sum((vector(seed) for seed in [*range(folds), 99]), np.zeros(LENGTH, np.uint32))
    np.testing.assert_array_equal(after.committed(), expected)
    np.testing.assert_array_equal(after.release(lambda _: None), expected)


def test_a_fold_whose_commit_fails_leaves_sum_and_spool_as_they_were(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=LENGTH)
    fold_of(accumulator, "a", vector(1))

    def fail(_):
        raise StoreError("disk full")

    with pytest.raises(StoreError):
        fold_of(accumulator, "b", vector(2), fail)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))
    # The same process, or the next one.
    for again in (
        accumulator,
        Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=1),
    ):
        np.testing.assert_array_equal(again.committed(), vector(1))
        upload = opened(again, "b", vector(2).tobytes())
        assert upload.complete
    generations = []
    again.fold(upload, generations.append)
    assert generations == [2]
    np.testing.assert_array_equal(again.committed(), vector(1) + vector(2))
    assert not upload.path.exists()


def test_a_spool_goes_on_where_its_bytes_end(tmp_path):
    content = vector(3).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    opened(before, "a", content).append(0, content[:300_000])
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=0)
    upload = opened(after, "a", content)
    assert upload.received_bytes == 300_000
    send(upload, content, 300_000)
    fold(after, upload)
    np.testing.assert_array_equal(after.committed(), vector(3))


def test_a_spool_that_a_power_cut_damaged_starts_again_at_zero(tmp_path):
    content = vector(3).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    spool = opened(before, "a", content).path
    spool.write_bytes(bytes(300_000))
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=0)
    upload = opened(after, "a", content)
    send(upload, content, 300_000)
    with pytest.raises(UploadError, match="signed digest"):
        fold(after, upload)
    assert upload.received_bytes == 0
    assert not after.committed().any()
    send(upload, content)
    fold(after, upload)
    np.testing.assert_array_equal(after.committed(), vector(3))


def test_a_spool_that_is_too_long_is_not_trusted(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=4)
    opened(accumulator, "a", bytes(16)).path.write_bytes(bytes(17))
    assert opened(accumulator, "a", bytes(16)).received_bytes == 0


def test_a_whole_spool_forgets_its_last_chunk_when_it_is_asked_for_its_offset(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=LENGTH)
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    send(upload, content)
    upload.rewind()
    assert upload.received_bytes == MAX_CHUNK_BYTES == upload.path.stat().st_size
    send(upload, content, MAX_CHUNK_BYTES)
    fold(accumulator, upload)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))


@pytest.mark.parametrize("damage", ["all", "current", "shorter"])
def test_a_sum_that_is_gone_cannot_be_continued(tmp_path, damage):
    directory = tmp_path / "sum"
    fold_of(Accumulator(directory, length=LENGTH), "a", vector(1))
    if damage == "all":
        for path in directory.iterdir():
            path.unlink()
    elif damage == "current":
        (directory / "sum.1.u32").unlink()
    else:
        (directory / "sum.1.u32").write_bytes(bytes(8))
    with pytest.raises(LostAttemptError, match="sum of 1 uploads"):
        Accumulator.reopen(directory, length=LENGTH, generation=1)


def test_before_the_first_fold_a_lost_directory_costs_nothing(tmp_path):
    again = Accumulator.reopen(tmp_path / "sum", length=4, generation=0)
    fold_of(again, "a", np.arange(4, dtype="<u4"))
    np.testing.assert_array_equal(again.committed(), np.arange(4))


def test_a_release_can_be_made_again_and_outlives_the_files(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=LENGTH)
    fold_of(accumulator, "a", vector(1))

    def unmask(total):
        total -= 7

    def torn(total):
        total[:100] -= 7
        if total.size < TILE_BYTES // 4:
            # The second and last tile.
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        accumulator.release(torn)
    again = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=1)
    result = again.release(unmask)
    with pytest.raises(ValueError, match="read-only"):
        result[0] = 1
    np.testing.assert_array_equal(again.committed(), vector(1))
    again.close()
    np.testing.assert_array_equal(result, vector(1) - np.uint32(7))


def test_only_the_spools_that_are_still_wanted_survive(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=4)
    for name in ("a", "b"):
        opened(accumulator, name, bytes(16)).append(0, bytes(8))
    accumulator.keep_spools(frozenset({"b"}))
    assert [path.name for path in (tmp_path / "sum").glob("*.masked")] == ["b.masked"]


def test_scratch_of_other_attempts_is_cleared(tmp_path):
    kept = tmp_path / "run" / "2.0.0.1"
    for path in (kept, tmp_path / "run" / "1.0.0.1", tmp_path / "older" / "9.0.0.2"):
        Accumulator(path, length=4)
    (tmp_path / "run" / "sum.u32").touch()
    clear_scratch(tmp_path, keep=kept)
    assert list(tmp_path.glob("*/*")) == [kept]
    assert sorted(path.name for path in kept.iterdir()) == ["sum.0.u32", "sum.1.u32"]
    clear_scratch(tmp_path, keep=None)
    assert list(tmp_path.iterdir()) == []


# Cost --------------------------------------------------------------------------------------------


def test_disk_is_two_vectors_and_memory_is_tiles(tmp_path):
    length = 4 << 20
    accumulator = Accumulator(tmp_path / "sum", length=length)
    content = np.ones(length, dtype="<u4").tobytes()
    tracemalloc.start()
    try:
        for name in ("a", "b", "c"):
            upload = opened(accumulator, name, content)
            send(upload, content)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            fold(accumulator, upload)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 5 * TILE_BYTES
        total = accumulator.release(lambda _: None)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < 5 * TILE_BYTES
    finally:
        tracemalloc.stop()
    assert (int(total[0]), int(total[-1])) == (3, 3)
    sizes = [path.stat().st_size for path in (tmp_path / "sum").iterdir()]
    assert sizes == [4 * length] * 2


def test_a_full_disk_is_a_typed_error(tmp_path, monkeypatch):
    accumulator = Accumulator(tmp_path / "sum", length=LENGTH)
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    upload.append(0, content[:1000])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("server.attempt.accumulator._write_all", full)
        with pytest.raises(StorageFullError, match="No space"):
            upload.append(1000, content[1000:2000])
        assert upload.received_bytes == 1000
        patch.setattr("server.attempt.accumulator.os.posix_fallocate", full)
        with pytest.raises(StorageFullError, match="cannot reserve"):
            Accumulator(tmp_path / "other", length=LENGTH)
    send(upload, content, 1000)
    fold(accumulator, upload)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))
