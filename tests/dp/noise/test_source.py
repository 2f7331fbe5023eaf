"""The noise source: keys never repeat, never show, never travel."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp.errors import NoiseSourceError
from dp.noise import source as source_module
from dp.noise.source import NoiseSource


def test_no_key_repeats_and_every_key_is_full_width(monkeypatch):
    keys = []

    def spy(key):
        keys.append(bytes(key))
        return real(key)

    real = algorithms.AES
    monkeypatch.setattr(source_module.algorithms, "AES", spy)
    for _ in range(1000):
        NoiseSource.fresh("delta noise")
    assert len(set(keys)) == 1000
    assert {len(key) for key in keys} == {32}


def test_keystream_is_aes_ctr_of_the_os_key(monkeypatch):
    monkeypatch.setattr(source_module.os, "urandom", lambda n: bytes(range(n)))
    source = NoiseSource.fresh("delta noise")
    words = np.empty(100_003, dtype=np.uint64)
    source.fill_uint64(words[:7])
    source.fill_uint64(words[7:])
    cipher = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16)))
    assert words.tobytes() == cipher.encryptor().update(bytes(words.nbytes))


def test_keystream_never_repeats_within_or_between_sources():
    words = np.empty(2**18, dtype=np.uint64)
    NoiseSource.fresh("a").fill_uint64(words[: 2**17])
    NoiseSource.fresh("a").fill_uint64(words[2**17 :])
    assert np.unique(words).size == words.size
    halves = np.empty(5, dtype=np.uint32)
    NoiseSource.fresh("a").fill_uint32(halves)
    assert np.unique(halves).size == halves.size


def test_takes_no_seed_and_cannot_be_built_otherwise():
    with pytest.raises(NoiseSourceError, match="fresh"):
        NoiseSource()
    with pytest.raises(TypeError):
        NoiseSource.fresh("delta", 7)
    with pytest.raises(NoiseSourceError, match="purpose"):
        NoiseSource.fresh("")


def test_cannot_be_copied_stored_or_printed(monkeypatch):
    key = bytes(range(100, 132))
    monkeypatch.setattr(source_module.os, "urandom", lambda _: key)
    source = NoiseSource.fresh("delta noise")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NoiseSourceError, match="copied"):
            attempt(source)
    assert repr(source) == "<NoiseSource purpose='delta noise' key=redacted>"
    kept = [getattr(source, name) for name in NoiseSource.__slots__]
    assert key not in kept


def test_serves_one_release():
    source = NoiseSource.fresh("delta noise")
    source.bind(b"first")
    source.bind(b"first")
    with pytest.raises(NoiseSourceError, match="another release"):
        source.bind(b"second")
    with pytest.raises(NoiseSourceError, match="empty"):
        source.bind(b"")


def test_forked_child_is_refused(monkeypatch):
    source = NoiseSource.fresh("delta noise")
    monkeypatch.setattr(source_module.os, "getpid", lambda: -1)
    with pytest.raises(NoiseSourceError, match="forked"):
        source.fill_uint64(np.empty(1, dtype=np.uint64))


def test_refuses_strided_buffers():
    with pytest.raises(NoiseSourceError, match="contiguous"):
        NoiseSource.fresh("x").fill_uint64(np.empty(8, dtype=np.uint64)[::2])
