"""What bounds secure aggregation now: where the time of a silo and of the coordinator goes.

Rounds of `secagg_rounds.chorale` under Python's deterministic profiler, a profile for each role.
Time is told by function and added up by what the function does; what is left over is the
interpreter's own. A profiler slows calls of Python and not those of a library, so shares of the
interpreter are upper bounds, and no figure here is a time to quote (`secagg_vs_flower.py` has
those).
A silo's keystream and encoding run ahead on a second thread; the wait for it is a row of its own.

Prints a table for each setting and, as its last line, the shares as JSON.
"""

from __future__ import annotations

import os

# Before numpy: a thread pool inside the linear algebra would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import cProfile
import json
import logging
import pstats
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from secagg_rounds.chorale import VERSIONS, chorale_round
from secagg_rounds.cost import Stopwatch
from secagg_rounds.primitives import environment

ROLES = ("silo", "server")
WORK = {
    "Ed25519, verifying": ("Ed25519PublicKey' objects", "signing.py"),
    "Ed25519, signing": ("Ed25519PrivateKey' objects",),
    "X25519": ("x25519",),
    "ML-KEM-768": ("mlkem",),
    "hashing": ("_hashlib", "blake3", "digest_tree.py"),
    "keystream and its addition": ("CipherContext", "prg.py", "tiles_ahead.py", "folding.py"),
    "waiting for the second thread": ("_thread.lock", "_thread.RLock"),
    "encoding and decoding vectors": ("grid.py", "numpy.ndarray", "numpy/"),
    "canonical encoding": ("canonical.py", "of 'str' objects", "of 'bytes' objects"),
    "Shamir": ("shamir",),
    "HKDF and boxes": ("hkdf", "HKDF", "ChaCha20Poly1305", "hybrid.py"),
}
"""A function belongs to the first row that has a part of its name."""


def profiled(n: int, dimension: int, suite_name: str) -> dict[str, cProfile.Profile]:
    """One round; a profile of all silos together and one of the coordinator."""
    profiles = {role: cProfile.Profile() for role in ROLES}
    timed = Stopwatch.on

    @contextmanager
    def on(self: Stopwatch, name: str) -> Iterator[None]:
        profile = profiles[name.partition("/")[0]]
        with timed(self, name):
            profile.enable()
            try:
                yield
            finally:
                profile.disable()

    base = np.random.default_rng(dimension).standard_normal(dimension, dtype=np.float32)
    base *= np.float32(0.9 / float(np.linalg.norm(base)))
    Stopwatch.on = on  # type: ignore[method-assign]
    try:
        chorale_round(
            n=n,
            dimension=dimension,
            vector=lambda number: np.roll(base, number),
            dropped=(),
            threads=1,
            suite_name=suite_name,
        )
    finally:
        Stopwatch.on = timed  # type: ignore[method-assign]
    return profiles


def shares(profile: cProfile.Profile) -> dict[str, float]:
    """The part of each kind of work, the largest first."""
    spent: Counter[str] = Counter()
    for (file, _, function), (_, _, own_s, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = f"{file} {function}"
        row = next((row for row, parts in WORK.items() if any(p in name for p in parts)), "other")
        spent[row] += own_s
    whole = sum(spent.values())
    return {row: round(part / whole, 3) for row, part in spent.most_common()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--silos", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--suites", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(environment(1))
    found: dict[str, dict[str, float]] = {}
    for n in options.silos:
        for dimension in options.dimensions:
            for suite_name in options.suites:
                for role, profile in profiled(n, dimension, suite_name).items():
                    parts = shares(profile)
                    found[f"{role} n={n} d={dimension} {suite_name}"] = parts
                    told = ", ".join(f"{row} {100 * part:.0f} %" for row, part in parts.items())
                    print(f"{role:6s} n = {n:3d}, d = {dimension:>8d}, {suite_name}: {told}")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
