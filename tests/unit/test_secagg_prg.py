"""Keystream tiles: equal to plain AES-CTR, streamable, reversible, and uniform."""

import hashlib
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg import prg
from secagg.errors import ParameterError
from secagg.prg import TILE_WORDS, Mask, MaskStreams, add_keystream

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


def test_the_scratch_is_overwritten_on_close():
    streams = MaskStreams([Mask(key=_KEY, sign=1)])
    streams.apply(np.zeros(100, dtype="<u4"))
    assert any(streams._scratch)
    streams.close()
    assert not any(streams._scratch[: prg.TILE_BYTES])
