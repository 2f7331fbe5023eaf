"""Uploads enter the sum exactly once, with the digest of the bytes that were added."""

import hashlib
import threading

import numpy as np
import pytest

from secagg.errors import ParameterError
from secagg.prg import TILE_WORDS
from secagg.server.folding import Fold


def fold_upload(total, upload, *, threads=2):
    with Fold(hashlib.sha256(), threads=threads) as fold:
        for start in range(0, total.size, TILE_WORDS):
            tile = slice(start, start + TILE_WORDS)
            fold.add(total[tile], upload[tile])
        return fold.digest()


@pytest.mark.parametrize("words", [1, TILE_WORDS, 2 * TILE_WORDS + 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_sum_and_digests(words, threads):
    generator = np.random.default_rng(words)
    uploads = [generator.integers(0, 2**32, words, dtype=np.uint32) for _ in range(3)]
    total = np.full(words, 2**32 - 1, dtype="<u4")
    before = threading.active_count()
    digests = [fold_upload(total, upload, threads=threads) for upload in uploads]
    assert threading.active_count() == before
    assert digests == [hashlib.sha256(upload.tobytes()).digest() for upload in uploads]
    expected = sum((upload.astype(np.int64) for upload in uploads), np.int64(-1)) % 2**32
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_two_buffers_in_turn_are_enough(threads):
    """A tile's memory is free again when the call after the next one begins."""
    generator = np.random.default_rng(1)
    upload = generator.integers(0, 2**32, 64 * 4096, dtype=np.uint32)
    buffers = [np.empty(4096, dtype="<u4"), np.empty(4096, dtype="<u4")]
    total = np.zeros(upload.size, dtype="<u4")
    with Fold(hashlib.sha256(), threads=threads) as fold:
        for number, start in enumerate(range(0, upload.size, 4096)):
            tile = buffers[number % 2]
            tile[:] = upload[start : start + 4096]
            fold.add(total[start : start + 4096], tile)
        digest = fold.digest()
    assert digest == hashlib.sha256(upload.tobytes()).digest()
    assert np.array_equal(total, upload)


def test_what_was_checked_before_is_added_without_a_thread_or_a_digest():
    total = np.full(8, 2**32 - 1, dtype="<u4")
    before = threading.active_count()
    with Fold(None, threads=2) as fold:
        fold.add(total, np.arange(8, dtype="<u4"))
        assert threading.active_count() == before
        assert fold.digest() is None
    assert np.array_equal(total, np.arange(8, dtype="<u4") - np.uint32(1))


@pytest.mark.parametrize(
    "upload",
    [np.zeros(7, dtype="<u4"), np.zeros(8, dtype=np.int32), np.zeros(16, dtype="<u4")[::2]],
)
def test_other_uploads_are_refused_and_nothing_changed(upload):
    total = np.zeros(8, dtype="<u4")
    with Fold(None) as fold, pytest.raises(ParameterError):
        fold.add(total, upload)
    assert not total.any()


def test_a_read_only_upload_can_be_folded(tmp_path):
    path = tmp_path / "upload"
    np.arange(8, dtype="<u4").tofile(path)
    total = np.zeros(8, dtype="<u4")
    fold_upload(total, np.memmap(path, dtype="<u4", mode="r"))
    assert np.array_equal(total, np.arange(8))
