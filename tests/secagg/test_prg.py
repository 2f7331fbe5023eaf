"""Keystream tiles: equal to plain AES-CTR, streamable, reversible, and uniform."""

import hashlib
import os
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg import prg
from secagg.errors import ParameterError
from secagg.prg import BLOCK_WORDS, TILE_WORDS, Mask, MaskStreams, add_keystream

_KEY = hashlib.sha256(b"key").digest()


def _keystream(key: bytes, words: int) -> np.ndarray:
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * words)), dtype="<u4")


@pytest.mark.parametrize("words", [1, 3, TILE_WORDS - 1, TILE_WORDS, TILE_WORDS + 1, 200_003])
def test_the_whole_keystream_is_added_modulo_2_32(words):
    start = np.full(words, 2**32 - 1, dtype="<u4")
    vector = start.copy()
    add_keystream(_KEY, vector, 1)
    assert np.array_equal(vector, start + _keystream(_KEY, words))
    add_keystream(_KEY, vector, -1)
    assert np.array_equal(vector, start)


def test_pieces_of_any_size_give_the_same_as_the_whole():
    masks = [Mask(key=_KEY, sign=1), Mask(key=hashlib.sha256(b"2").digest(), sign=-1)]
    whole = np.arange(150_000, dtype="<u4")
    pieces = whole.copy()
    MaskStreams(masks).apply(whole)
    streams = MaskStreams(masks)
    for start, stop in [(0, 5), (5, 70_000), (70_000, 70_001), (70_001, 150_000)]:
        streams.apply(pieces[start:stop])
    assert np.array_equal(whole, pieces)


def test_a_masked_constant_is_uniform():
    # χ² over 256 byte values with 255 degrees of freedom: 400 is beyond seven deviations.
    for fixed in (0, 1, 2**31, 2**32 - 1):
        vector = np.full(2**16, fixed, dtype="<u4")
        add_keystream(os.urandom(32), vector, 1)
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        expected = vector.nbytes / 256
        assert ((counts - expected) ** 2 / expected).sum() < 420


def test_a_memory_map_can_be_masked(tmp_path):
    mapped = np.memmap(tmp_path / "vector", dtype="<u4", mode="w+", shape=(1000,))
    add_keystream(_KEY, mapped, 1)
    assert np.array_equal(mapped, _keystream(_KEY, 1000))


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(8, dtype=np.int32),
        np.zeros(8, dtype=np.uint64),
        np.zeros(8, dtype=">u4"),
        np.zeros((2, 4), dtype="<u4"),
        np.zeros(8, dtype="<u4")[::2],
        [0] * 8,
    ],
)
def test_other_vectors_are_refused(vector):
    with pytest.raises(ParameterError):
        add_keystream(_KEY, vector, 1)


def test_a_read_only_vector_is_refused():
    vector = np.zeros(8, dtype="<u4")
    vector.flags.writeable = False
    with pytest.raises(ParameterError):
        add_keystream(_KEY, vector, 1)


def test_masks_are_keys_and_signs():
    with pytest.raises(ParameterError):
        Mask(key=bytes(16), sign=1)
    with pytest.raises(ParameterError):
        Mask(key=bytes(32), sign=0)
    assert _KEY.hex() not in repr(Mask(key=_KEY, sign=1))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("words", [1, BLOCK_WORDS, BLOCK_WORDS + 1, 3 * BLOCK_WORDS + 7, 700_001])
def test_any_number_of_threads_gives_the_same(words, threads):
    keys = [hashlib.sha256(bytes([k])).digest() for k in range(4)]
    signs = (-1, 1, -1, -1)
    start = np.arange(words, dtype="<u4") * np.uint32(2654435761)
    expected = start.copy()
    for key, sign in zip(keys, signs, strict=True):
        expected += _keystream(key, words) if sign > 0 else -_keystream(key, words)
    masks = [Mask(key=key, sign=sign) for key, sign in zip(keys, signs, strict=True)]
    for step in (words, BLOCK_WORDS, 99_991):
        vector = start.copy()
        with MaskStreams(masks, words=words, threads=threads) as streams:
            for place in range(0, words, step):
                streams.apply(vector[place : place + step])
        assert np.array_equal(vector, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_piece_past_the_end_is_refused_and_nothing_changed(threads):
    words = BLOCK_WORDS + 5
    with MaskStreams([Mask(key=_KEY, sign=1)], words=words, threads=threads) as streams:
        streams.apply(np.zeros(words - 1, dtype="<u4"))
        piece = np.zeros(2, dtype="<u4")
        with pytest.raises(ParameterError):
            streams.apply(piece)
        assert not piece.any()


def test_threads_end_on_close_in_the_middle_of_a_vector():
    before = threading.active_count()
    streams = MaskStreams([Mask(key=_KEY, sign=1)], words=40 * BLOCK_WORDS, threads=3)
    assert threading.active_count() == before + 2
    streams.apply(np.zeros(100, dtype="<u4"))
    streams.close()
    assert threading.active_count() == before
    with pytest.raises(ParameterError):
        streams.apply(np.zeros(100, dtype="<u4"))


def test_a_failure_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(prg._Keystreams, "seek", lambda self, word: 1 / 0)
    vector = np.zeros(4 * BLOCK_WORDS, dtype="<u4")
    with (
        MaskStreams([Mask(key=_KEY, sign=1)], words=vector.size, threads=2) as streams,
        pytest.raises(ZeroDivisionError),
    ):
        streams.apply(vector)
    assert not vector.any()


def test_what_was_put_out_is_overwritten_on_close():
    streams = MaskStreams([Mask(key=_KEY, sign=1)])
    streams.apply(np.zeros(100, dtype="<u4"))
    kept = streams._streams._words
    assert kept.any()
    streams.close()
    assert not kept.any()


@pytest.mark.parametrize("read_words", [BLOCK_WORDS // 2, 8 * BLOCK_WORDS + 100])
def test_tiles_made_ahead_are_overwritten_on_close(read_words):
    # The last tile is shorter than its buffer, which held a whole one before.
    streams = MaskStreams([Mask(key=_KEY, sign=1)], words=8 * BLOCK_WORDS + 100, threads=2)
    streams.apply(np.zeros(read_words, dtype="<u4"))
    ahead = streams._ahead
    kept = [*ahead._buffers, *(maker._words for maker in ahead._makers)]
    assert any(buffer.any() for buffer in kept)
    streams.close()
    assert not any(buffer.any() for buffer in kept)
