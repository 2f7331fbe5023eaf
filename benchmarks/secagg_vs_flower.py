"""Secure aggregation against Flower's SecAgg+: the same vectors, the same run, taking turns.

Flower's side is its own client mod and server workflow (`secagg_rounds.flower`), ours the protocol
states of silo and coordinator (`secagg_rounds.chorale`). All n parties of both sides really run.
Like for like: complete graph, the same threshold, the same silos dropped between sharing keys and
uploading, float32 vectors in, the mean as float64 out, no noise, no transport.

What ours does and Flower's mod and workflow do not: every message is signed and checked, survivors
are agreed upon, shares are hashed, and each upload is hashed by its sender and again by the
coordinator. Flower hashes uploads too, outside mod and workflow, in the object store of its
transport; the columns "their SHA-256" add one pass of that to each of its roles. The first medians
leave it out.

Threads: Flower's mod and workflow are single-threaded in vector work and use a thread per core in
Shamir; ours use two wherever there is vector work. `--threads 1` runs our coordinator on one.

Per-client time is all work of one client that stays, averaged over these; per-server time all work
of the server. A cell's figures are the least seconds over its pairs; a ratio is theirs over ours.
The last two columns are the ratios in CPU seconds, all threads of a side added up.

Prints a table and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import os

# Before numpy: a thread pool inside the linear algebra would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import logging
import math
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from secagg_rounds.chorale import chorale_round, colluding
from secagg_rounds.cost import RoundCost
from secagg_rounds.primitives import environment, keystream_rates, noise_ns

from secagg.parameters import threshold
from secagg.prg import DEFAULT_THREADS

# Rounds are repeated as long as a pair takes less than this.
QUICK_PAIR_S = 20.0
DROP = 0.2
# Vectors whose L2 norm is below the clip of 1, so that neither side clips.
NORM = 0.9
SHIFT = 997
# Flower clips each coordinate: at this many deviations.
CLIP_SIGMAS = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One setting of the table."""

    n: int
    dimension: int
    dropped: tuple[int, ...]

    @property
    def t(self) -> int:
        """Threshold, the same on both sides."""
        return threshold(self.n, colluding(self.n))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Least seconds of each role over the pairs of a cell."""

    cell: Cell
    ours: RoundCost
    theirs: RoundCost | None

    def ratios(self, digest: int) -> tuple[float, float]:
        """Theirs over ours, client and server, with this many passes of their SHA-256."""
        if self.theirs is None:
            return math.nan, math.nan
        added = digest * self.theirs.digest_s
        stayed = self.cell.n - len(self.cell.dropped)
        return (
            (self.theirs.client_s + added) / self.ours.client_s,
            (self.theirs.server_s + stayed * added) / self.ours.server_s,
        )

    def cpu_ratios(self) -> tuple[float, float]:
        """Theirs over ours in CPU seconds, client and server."""
        if self.theirs is None:
            return math.nan, math.nan
        return (
            self.theirs.client_cpu_s / self.ours.client_cpu_s,
            self.theirs.server_cpu_s / self.ours.server_cpu_s,
        )


class Vectors:
    """The clients' vectors, each made from one when it is needed."""

    def __init__(self, dimension: int) -> None:
        drawn = np.random.default_rng(dimension).standard_normal(dimension, dtype=np.float32)
        self._base = (drawn * np.float32(NORM / float(np.linalg.norm(drawn)))).astype(np.float32)

    def __call__(self, number: int) -> npt.NDArray[np.float32]:
        """Return the vector of a client."""
        return np.roll(self._base, SHIFT * number)

    def mean(self, numbers: list[int]) -> npt.NDArray[np.float64]:
        """The mean over some clients, in float64."""
        total = np.zeros(self._base.size)
        for number in numbers:
            total += self(number)
        return total / len(numbers)


def check_mean(cost: RoundCost, expected: npt.NDArray[np.float64], who: str) -> None:
    """Refuse to time a round that did not give the mean; a coordinate is about 1/√d."""
    error = float(np.abs(cost.mean - expected).max())
    if error > 1e-3 / math.sqrt(expected.size) + 1e-6:
        raise ArithmeticError(f"{who}: the mean is off by {error:.3g}")


def least(costs: list[RoundCost]) -> RoundCost:
    """Least seconds of each role."""
    return RoundCost(
        client_s=min(cost.client_s for cost in costs),
        client_cpu_s=min(cost.client_cpu_s for cost in costs),
        server_s=min(cost.server_s for cost in costs),
        server_cpu_s=min(cost.server_cpu_s for cost in costs),
        digest_s=min(cost.digest_s for cost in costs),
        mean=np.zeros(0),
    )


def measure(cell: Cell, options: argparse.Namespace) -> Pair:
    """Run the pairs of a cell, ours and theirs taking turns in going first."""
    vectors = Vectors(cell.dimension)
    stayed = [number for number in range(cell.n) if number not in cell.dropped]
    expected = vectors.mean(stayed)
    costs: dict[str, list[RoundCost]] = {"ours": [], "theirs": []}
    for pair in range(options.pairs):
        start = time.perf_counter()
        sides = ["ours"] if options.ours_only else ["ours", "theirs"]
        for side in sides if pair % 2 == 0 else reversed(sides):
            cost = run(side, cell, vectors, options.threads)
            check_mean(cost, expected, side)
            costs[side].append(cost)
        if time.perf_counter() - start > QUICK_PAIR_S:
            break
    return Pair(
        cell=cell,
        ours=least(costs["ours"]),
        theirs=least(costs["theirs"]) if costs["theirs"] else None,
    )


def run(side: str, cell: Cell, vectors: Vectors, threads: int) -> RoundCost:
    """One round of one side."""
    if side == "ours":
        return chorale_round(
            n=cell.n,
            dimension=cell.dimension,
            vector=vectors,
            dropped=cell.dropped,
            threads=threads,
        )
    from secagg_rounds.flower import flower_round

    return flower_round(
        n=cell.n,
        t=cell.t,
        vector=vectors,
        clip=CLIP_SIGMAS * NORM / math.sqrt(cell.dimension),
        dropped=cell.dropped,
    )


HEADER = (
    f"{'n':>3} {'d':>9} {'t':>3} {'drop':>4} | {'client ours':>12} {'theirs':>10} {'ratio':>6} | "
    f"{'server ours':>12} {'theirs':>10} {'ratio':>6} | "
    "their SHA-256 | CPU seconds"
)


def line(pair: Pair) -> str:
    """One row of the table."""
    cell, theirs = pair.cell, pair.theirs
    client, server = pair.ratios(0)
    client_hashed, server_hashed = pair.ratios(1)
    client_cpu, server_cpu = pair.cpu_ratios()
    return (
        f"{cell.n:>3} {cell.dimension:>9} {cell.t:>3} {len(cell.dropped):>4} | "
        f"{1e3 * pair.ours.client_s:>9.1f} ms "
        f"{1e3 * theirs.client_s if theirs else math.nan:>7.0f} ms {client:>6.1f} | "
        f"{1e3 * pair.ours.server_s:>9.1f} ms "
        f"{1e3 * theirs.server_s if theirs else math.nan:>7.0f} ms {server:>6.1f} | "
        f"{client_hashed:>6.1f} {server_hashed:>6.1f} | {client_cpu:>5.1f} {server_cpu:>5.1f}"
    )


def cells(options: argparse.Namespace) -> list[Cell]:
    """The settings, the lightest first."""
    return [
        Cell(n=n, dimension=d, dropped=tuple(range(1, 1 + round(drop * n))))
        for d in options.dimensions
        for n in options.silos
        for drop in (0.0, DROP)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="n of 5 and 10, d of 1e5, one pair")
    parser.add_argument("--ours-only", action="store_true", help="leave Flower out")
    parser.add_argument("--pairs", type=int, default=3, help="pairs a cell, if they are short")
    parser.add_argument("--threads", type=int, default=DEFAULT_THREADS, help="of our coordinator")
    parser.add_argument("--silos", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    if options.quick:
        options.silos, options.dimensions, options.pairs = [5, 10], [100_000], 1
    return options


def number(value: float) -> float | None:
    """A figure for JSON: three digits, or null where it was not measured."""
    return None if math.isnan(value) else round(value, 3)


def main() -> int:
    options = parse()
    logging.disable(logging.WARNING)
    print(environment(options.threads))
    repeats, count = (1, 20_000) if options.quick else (7, 1_000_000)
    rates = keystream_rates(5, repeats)
    narrow_ns, wide_ns = noise_ns(64.0, count // 5, 3), noise_ns(4096.0, count // 5, 3)
    print(
        f"AES-256-CTR {rates['aes_ctr'] / 1e9:.2f} GB/s on one thread; keystream + add "
        f"{rates['masked'] / 1e9:.2f} (5 masks), {rates['masked_once'] / 1e9:.2f} (one mask)"
    )
    print(f"exact noise: {narrow_ns:.1f} ns/coordinate at σ = 64, {wide_ns:.1f} at σ = 4096\n")
    print(HEADER)
    pairs = []
    for cell in cells(options):
        pairs.append(measure(cell, options))
        print(line(pairs[-1]), flush=True)
    bare, hashed = ([pair.ratios(digest) for pair in pairs] for digest in (0, 1))
    cpu = [pair.cpu_ratios() for pair in pairs]
    print(
        json.dumps(
            {
                "client_median": number(statistics.median(client for client, _ in bare)),
                "server_median": number(statistics.median(server for _, server in bare)),
                "worst": number(min(min(both) for both in bare)),
                "ctr_share": number(rates["masked"] / rates["aes_ctr"]),
                "ctr_share_one_mask": number(rates["masked_once"] / rates["aes_ctr"]),
                "client_median_hashed": number(statistics.median(client for client, _ in hashed)),
                "server_median_hashed": number(statistics.median(server for _, server in hashed)),
                "worst_hashed": number(min(min(both) for both in hashed)),
                "client_median_cpu": number(statistics.median(client for client, _ in cpu)),
                "server_median_cpu": number(statistics.median(server for _, server in cpu)),
                "noise_ns_sigma_64": number(narrow_ns),
                "noise_ns_sigma_4096": number(wide_ns),
                "upload_bytes_per_coordinate": 4,
                "threads_ours": options.threads,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
