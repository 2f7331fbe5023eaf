"""Secure aggregation against Flower's SecAgg+: the same vectors, the same run, taking turns.

Flower's side is its own client mod and server workflow (`secagg_rounds.flower`), ours the protocol
states of silo and coordinator (`secagg_rounds.chorale`). All n parties of both sides really run.
Like for like: complete graph, the same threshold, the same silos dropped between sharing keys and
uploading, float32 vectors in, the mean as float64 out, no noise, no transport.

Ours runs in suite v1 (X25519, one SHA-256 an upload) and in suite v2 (with ML-KEM-768, Merkle
roots, a digest tree an upload) in the same run; `--suites v2` leaves v1 out.

What ours does and Flower's mod and workflow do not: every message is signed and checked, survivors
are agreed upon, shares are hashed, and each upload is hashed by its sender and again by the
coordinator. Flower hashes uploads too, outside mod and workflow, in the object store of its
transport; the columns "their SHA-256" add one pass of that to each of its roles. The first medians
leave it out.

Threads: Flower's mod and workflow are single-threaded in vector work and use a thread per core in
Shamir; ours use two wherever there is vector work. `--threads 1` runs our coordinator on one.

Per-client time is all work of one client that stays, averaged over these; per-server time all work
of the server. A cell's figures are the least seconds over its turns; a ratio is theirs over ours.
The last two columns are the ratios in CPU seconds, all threads of a side added up.

What the digest tree brought stands before the table: rates of the hashes, and what an upload costs
the coordinator from arrived bytes to the committed sum while four silos upload at once.

Prints tables and, as its last line, the figures as JSON.
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
from secagg_rounds.chorale import VERSIONS, chorale_round, colluding
from secagg_rounds.cost import RoundCost
from secagg_rounds.digests import hash_rates, sum_seconds
from secagg_rounds.primitives import environment, keystream_rates, noise_ns

from secagg.parameters import threshold
from secagg.prg import DEFAULT_THREADS

# Rounds are repeated as long as a turn of all sides takes less than this.
QUICK_TURN_S = 20.0
THEIRS = "theirs"
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
class Compared:
    """Least seconds of each role over the turns of a cell: one suite of ours, and theirs."""

    cell: Cell
    suite_name: str
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


def measure(cell: Cell, options: argparse.Namespace) -> list[Compared]:
    """Run the turns of a cell, its sides taking turns in going first."""
    vectors = Vectors(cell.dimension)
    stayed = [number for number in range(cell.n) if number not in cell.dropped]
    expected = vectors.mean(stayed)
    sides = [*options.suites, *([] if options.ours_only else [THEIRS])]
    costs: dict[str, list[RoundCost]] = {side: [] for side in sides}
    for turn in range(options.pairs):
        start = time.perf_counter()
        for side in sides if turn % 2 == 0 else reversed(sides):
            cost = run(side, cell, vectors, options.threads)
            check_mean(cost, expected, side)
            costs[side].append(cost)
        if time.perf_counter() - start > QUICK_TURN_S:
            break
    theirs = None if options.ours_only else least(costs[THEIRS])
    return [
        Compared(cell=cell, suite_name=name, ours=least(costs[name]), theirs=theirs)
        for name in options.suites
    ]


def run(side: str, cell: Cell, vectors: Vectors, threads: int) -> RoundCost:
    """One round of one side: a suite of ours, or theirs."""
    if side != THEIRS:
        return chorale_round(
            n=cell.n,
            dimension=cell.dimension,
            vector=vectors,
            dropped=cell.dropped,
            threads=threads,
            suite_name=side,
        )
    from secagg_rounds.flower import flower_round

    return flower_round(
        n=cell.n,
        t=cell.t,
        vector=vectors,
        clip=CLIP_SIGMAS * NORM / math.sqrt(cell.dimension),
        dropped=cell.dropped,
    )


def header(suites: list[str]) -> str:
    """The head of the table."""

    def role(name: str) -> str:
        ours = " ".join(f"{f'{name} {suite}':>12}" for suite in suites)
        ratios = " ".join(f"{f'/{suite}':>6}" for suite in suites)
        return f"{ours} {'theirs':>10} {ratios} | "

    hashed, cpu = (" ".join(f"{suite:>11}" for suite in suites) for _ in range(2))
    return (
        f"{'n':>3} {'d':>9} {'t':>3} {'drop':>4} | {role('client')}{role('server')}"
        f"their SHA-256: {hashed} | CPU seconds: {cpu}"
    )


def line(row: list[Compared]) -> str:
    """One row of the table: a cell in each suite."""
    cell, theirs = row[0].cell, row[0].theirs

    def role(number: int, ours: list[float], their_s: float) -> str:
        spent = " ".join(f"{1e3 * seconds:>9.1f} ms" for seconds in ours)
        ratios = " ".join(f"{one.ratios(0)[number]:>6.1f}" for one in row)
        return f"{spent} {1e3 * their_s:>7.0f} ms {ratios} | "

    client = role(0, [one.ours.client_s for one in row], theirs.client_s if theirs else math.nan)
    server = role(1, [one.ours.server_s for one in row], theirs.server_s if theirs else math.nan)
    hashed, cpu = (
        " ".join(f"{first:>5.1f} {second:>5.1f}" for first, second in ratios)
        for ratios in ([one.ratios(1) for one in row], [one.cpu_ratios() for one in row])
    )
    return (
        f"{cell.n:>3} {cell.dimension:>9} {cell.t:>3} {len(cell.dropped):>4} | {client}{server}"
        f"{' ' * 15}{hashed} | {' ' * 13}{cpu}"
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
    parser.add_argument("--pairs", type=int, default=3, help="turns a cell, if they are short")
    parser.add_argument("--threads", type=int, default=DEFAULT_THREADS, help="of our coordinator")
    parser.add_argument("--suites", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--silos", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    if options.quick:
        options.silos, options.dimensions, options.pairs = [5, 10], [100_000], 1
    return options


def number(value: float) -> float | None:
    """A figure for JSON: three digits, or null where it was not measured."""
    return None if math.isnan(value) else round(value, 3)


def medians(compared: list[Compared]) -> dict[str, float | None]:
    """What one suite came to, over all cells."""
    bare, hashed = ([one.ratios(digest) for one in compared] for digest in (0, 1))
    cpu = [one.cpu_ratios() for one in compared]
    return {
        "client_median": number(statistics.median(client for client, _ in bare)),
        "server_median": number(statistics.median(server for _, server in bare)),
        "worst": number(min(min(both) for both in bare)),
        "client_median_hashed": number(statistics.median(client for client, _ in hashed)),
        "server_median_hashed": number(statistics.median(server for _, server in hashed)),
        "worst_hashed": number(min(min(both) for both in hashed)),
        "client_median_cpu": number(statistics.median(client for client, _ in cpu)),
        "server_median_cpu": number(statistics.median(server for _, server in cpu)),
    }


def digests(options: argparse.Namespace) -> dict[str, float | None]:
    """Print what the digest tree brought; the figures."""
    size, dimension, repeats = (
        (4 << 20, 100_000, 1) if options.quick else (128 << 20, 10_000_000, 5)
    )
    rates, seconds = hash_rates(size, repeats), sum_seconds(dimension, repeats)
    print("; ".join(f"{name} {rate / 1e9:.2f} GB/s" for name, rate in rates.items()))
    spent = "; ".join(f"{name} {1e3 * one:.1f} ms" for name, one in seconds.items())
    print(f"from arrived bytes to the sum, d = {dimension}, four silos at once, an upload: {spent}")
    return {f"gb_s, {name}": number(rate / 1e9) for name, rate in rates.items()} | {
        f"upload_ms, {name}": number(1e3 * one) for name, one in seconds.items()
    }


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
    print(f"exact noise: {narrow_ns:.1f} ns/coordinate at σ = 64, {wide_ns:.1f} at σ = 4096")
    hashing = digests(options)
    print(f"\n{header(options.suites)}")
    compared: list[Compared] = []
    for cell in cells(options):
        row = measure(cell, options)
        compared += row
        print(line(row), flush=True)
    by_suite = {
        name: medians([one for one in compared if one.suite_name == name])
        for name in options.suites
    }
    print()
    for name, found in by_suite.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
    print(
        json.dumps(
            {
                "suites": by_suite,
                "digests": hashing,
                "ctr_share": number(rates["masked"] / rates["aes_ctr"]),
                "ctr_share_one_mask": number(rates["masked_once"] / rates["aes_ctr"]),
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
