"""Randomness for noise: an AES-256-CTR keystream under a fresh key.

Invariants:
    1. A production source is keyed by the operating system and by nothing else: ``fresh`` takes
       no seed, and the key is kept only inside the cipher object.
    2. One key serves one (release, purpose): ``bind`` ties the source to the first release it is
       used for and refuses a second one.
    3. A keystream is never produced twice: sources cannot be copied or pickled, and a forked
       child may not continue its parent's.

Covered: key reuse by programming error, by fork, by copy; leaks through ``repr``.
Not covered: reading this process's memory; timing of the sampler that consumes the words.
"""

from __future__ import annotations

import hmac
import os
from typing import Final, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from dp.errors import NoiseSourceError

_KEY_BYTES: Final = 32
_TILE_BYTES: Final = 1 << 18
_ZEROS: Final = bytes(_TILE_BYTES)


class WordSource(Protocol):
    """What the sampler needs: uniformly random words, each given out once."""

    def fill_uint64(self, out: npt.NDArray[np.uint64]) -> None:
        """Overwrite ``out`` with fresh uniform 64-bit words."""

    def fill_uint32(self, out: npt.NDArray[np.uint32]) -> None:
        """Overwrite ``out`` with fresh uniform 32-bit words."""


class NoiseSource:
    """The production source: one key, one purpose, one release."""

    __slots__ = ("_encryptor", "_pid", "_purpose", "_release")
    _encryptor: CipherContext
    _pid: int
    _purpose: str
    _release: bytes

    def __init__(self) -> None:
        raise NoiseSourceError("construct a noise source with NoiseSource.fresh(purpose)")

    @classmethod
    def fresh(cls, purpose: str) -> NoiseSource:
        """Key a new source from the operating system.

        ``purpose`` is shown in ``repr``; it is no input to the key.
        """
        if not purpose:
            raise NoiseSourceError("a noise source needs a purpose")
        source = object.__new__(cls)
        cipher = Cipher(algorithms.AES(os.urandom(_KEY_BYTES)), modes.CTR(bytes(16)))
        source._encryptor = cipher.encryptor()
        source._purpose = purpose
        source._release = b""
        source._pid = os.getpid()
        return source

    def bind(self, release: bytes) -> None:
        """Tie this source to one release, by its descriptor's digest.

        Raises:
            NoiseSourceError: If it is tied to a different release.
        """
        if not release:
            raise NoiseSourceError("a release digest is empty")
        if self._release and not hmac.compare_digest(self._release, release):
            raise NoiseSourceError("this noise source already served another release")
        self._release = release

    def fill_uint64(self, out: npt.NDArray[np.uint64]) -> None:
        """Overwrite ``out`` with keystream."""
        self._fill(out)

    def fill_uint32(self, out: npt.NDArray[np.uint32]) -> None:
        """Overwrite ``out`` with keystream."""
        self._fill(out)

    def _fill(self, out: npt.NDArray[np.uint64] | npt.NDArray[np.uint32]) -> None:
        if os.getpid() != self._pid:
            raise NoiseSourceError("a forked process may not continue its parent's keystream")
        if not out.flags.c_contiguous or out.ndim != 1:
            raise NoiseSourceError("keystream goes into one contiguous dimension")
        view = out.view(np.uint8).data
        for start in range(0, len(view), _TILE_BYTES):
            size = min(_TILE_BYTES, len(view) - start)
            tile = _ZEROS if size == _TILE_BYTES else _ZEROS[:size]
            self._encryptor.update_into(tile, view[start : start + size])

    def __repr__(self) -> str:
        return f"<NoiseSource purpose={self._purpose!r} key=redacted>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise NoiseSourceError("a noise source cannot be copied or stored")
