"""What a digest tree brings: rates of the hashes, and uploads on their way into the sum.

The second is what the coordinator does with bytes that have arrived, in `server.attempt`: several
silos upload at once, chunk by chunk into spools, and each upload is folded when it is whole. In
suite v1 a fold hashes, one after the other; in suite v2 chunks are checked in threads as they
come, and a fold only adds.

Covered: files in memory where the machine has them (/dev/shm). Not covered: gRPC, TLS, the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from secagg import digest_tree
from secagg.digest_tree import BLAKE3, CHUNK_BYTES, DIGESTS, SHA256, TreeHasher
from secagg_rounds.primitives import best_s
from server.attempt.accumulator import Accumulator, Upload

SILOS: Final = 4
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - memory, not a name that anybody could guess
WHOLE: Final = "SHA-256, one stream"


def hash_rates(count_bytes: int, repeats: int) -> Mapping[str, float]:
    """Bytes per second of one hash over everything, and of the trees on one and two threads."""
    content = np.random.default_rng(1).bytes(count_bytes)

    def tree(digest_id: int, threads: int) -> None:
        with TreeHasher(count_bytes, digest_id, threads=threads) as hasher:
            view = memoryview(content)
            for start in range(0, count_bytes, CHUNK_BYTES):
                hasher.update(view[start : start + CHUNK_BYTES])
            hasher.root()

    rates = {WHOLE: count_bytes / best_s(lambda: hashlib.sha256(content).digest(), repeats)}
    for digest_id in (SHA256, BLAKE3):
        if digest_tree.is_available(digest_id):
            for threads in (1, 2):
                seconds = best_s(partial(tree, digest_id, threads), repeats)
                rates[f"{DIGESTS[digest_id]} tree, {threads} threads"] = count_bytes / seconds
    return rates


def sum_seconds(dimension: int, repeats: int) -> Mapping[str, float]:
    """Seconds an upload from arrived bytes to the committed sum, by suite and digest."""
    vectors = [
        np.random.default_rng(number).integers(0, 2**32, dimension, dtype=np.uint32)
        for number in range(SILOS)
    ]
    found = {}
    for digest_id in (0, SHA256, BLAKE3):
        if not digest_id or digest_tree.is_available(digest_id):
            name = f"v2, {DIGESTS[digest_id]}" if digest_id else "v1"
            found[name] = min(_summed_s(vectors, digest_id) for _ in range(repeats)) / SILOS
    return found


def _summed_s(vectors: list[np.ndarray], digest_id: int) -> float:
    dimension = vectors[0].size
    directory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        accumulator = Accumulator(Path(scratch) / "sum", length=dimension)
        contents = [vector.astype("<u4").tobytes() for vector in vectors]
        uploads = [
            _announced(accumulator, f"silo-{number}", content, digest_id)
            for number, content in enumerate(contents)
        ]
        start = time.perf_counter()
        asyncio.run(_all(accumulator, uploads, contents))
        seconds = time.perf_counter() - start
        expected = np.sum(vectors, axis=0, dtype=np.uint32)
        if not np.array_equal(accumulator.committed(), expected):
            raise ArithmeticError("the sum is not that of the uploads")
        accumulator.close()
    return seconds


def _announced(accumulator: Accumulator, name: str, content: bytes, digest_id: int) -> Upload:
    root, leaves = hashlib.sha256(content).digest(), b""
    if digest_id:
        with TreeHasher(len(content), digest_id) as tree:
            tree.update(content)
            root, leaves = tree.root(), tree.leaves()
    upload = accumulator.open_upload(
        name, length_bytes=len(content), sha256=root, digest_id=digest_id
    )
    upload.take_leaves(leaves)
    return upload


async def _all(accumulator: Accumulator, uploads: list[Upload], contents: list[bytes]) -> None:
    lock = asyncio.Lock()

    async def arrive(upload: Upload, content: bytes) -> None:
        # As `server/rpc/rounds.py` does.
        for start in range(0, len(content), CHUNK_BYTES):
            piece = content[start : start + CHUNK_BYTES]
            if upload.digest_id:
                chunk = await asyncio.to_thread(upload.check, start, piece)
            else:
                chunk = upload.check(start, piece)
                await asyncio.sleep(0)
            upload.put(chunk)
        async with lock:
            await asyncio.to_thread(accumulator.fold, upload, lambda _generation: None)

    await asyncio.gather(*map(arrive, uploads, contents))
