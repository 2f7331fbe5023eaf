"""What this machine can do: AES-256-CTR alone, keystream and addition, noise.

Covered: rates of one thread in this process. Not covered: what another core does meanwhile; each
figure is the best of several repeats for that reason.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp.noise import dgauss
from dp.noise.source import NoiseSource
from secagg.prg import BLOCK_BYTES, TILE_WORDS, WORD_BYTES, Mask, MaskStreams

# A vector that no cache holds.
_WORDS: Final = 40 * TILE_WORDS
_AES_BLOCK_BYTES: Final = 16


def best_s(action: Callable[[], object], repeats: int) -> float:
    """Least seconds of several repeats, after one that is not counted."""
    action()
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return min(spent)


def keystream_rates(masks: int, repeats: int, words: int = _WORDS) -> Mapping[str, float]:
    """Bytes per second of AES-256-CTR, and of masking with some and with one keystream.

    The three are measured in turn, repeat by repeat, so that a slow moment hits all of them.
    """
    vector = np.zeros(words, dtype="<u4")
    keys = [hashlib.sha256(bytes([number])).digest() for number in range(masks)]
    zeros = bytes(BLOCK_BYTES)
    room = bytearray(BLOCK_BYTES + _AES_BLOCK_BYTES - 1)
    count_bytes = words * WORD_BYTES

    def cipher() -> None:
        encryptor = Cipher(algorithms.AES(keys[0]), modes.CTR(bytes(16))).encryptor()
        for _ in range(count_bytes // BLOCK_BYTES):
            encryptor.update_into(zeros, room)

    def several() -> None:
        with MaskStreams([Mask(key=key, sign=1) for key in keys]) as streams:
            streams.apply(vector)

    def one() -> None:
        with MaskStreams([Mask(key=keys[0], sign=-1)]) as streams:
            streams.apply(vector)

    least = {"aes_ctr": np.inf, "masked": np.inf, "masked_once": np.inf}
    for _ in range(repeats):
        for name, action in (("aes_ctr", cipher), ("masked", several), ("masked_once", one)):
            least[name] = min(least[name], best_s(action, 1))
    return {
        "aes_ctr": count_bytes / least["aes_ctr"],
        "masked": masks * count_bytes / least["masked"],
        "masked_once": count_bytes / least["masked_once"],
    }


def noise_ns(sigma: float, count: int, repeats: int) -> float:
    """Nanoseconds per coordinate of exact discrete Gaussian noise."""
    samples = np.empty(count, dtype=np.int64)

    def draw() -> None:
        dgauss.sample_into(samples, sigma, NoiseSource.fresh("benchmark"))

    return best_s(draw, repeats) / count * 1e9


def environment(threads: int) -> str:
    """The machine and what runs on it, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{names[0].partition(':')[2].strip()} x {len(names)}" if names else cpu
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "cryptography"))
    return f"{cpu}; Python {platform.python_version()}, {packages}; {threads} threads"
