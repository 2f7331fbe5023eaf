"""What secure aggregation costs against n and against d, and what memory it needs.

Five parts:

1. AES-256-CTR alone and keystream + add, one thread, in turn: the share of the ceiling.
2. Cost against n, no drops, every silo real. The last n runs again with t good answers and n - t
   corrupt ones: the time to recover the secrets, and every liar named.
3. The largest n with a fifth of the silos dropped after they shared keys.
4. Cost against d at n = 5.
5. The longest vector at n = 5 with a process for each silo and one for the coordinator: the peak
   of their resident sets.

The coordinator's vector work is what it does with each coordinate of each upload: hash, fold,
unmask, decode. Nanoseconds per masked element are its vector work over n·d; it should not depend on
n. The rest, signatures and shares, grows with n² and not with d.

Prints tables and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import os

# Before numpy: a thread pool inside the linear algebra would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from secagg_rounds import processes
from secagg_rounds.chorale import (
    GRID_STEPS,
    chorale_round,
    colluding,
    federate,
    fold_upload,
    until_unmasked,
    until_uploaded,
)
from secagg_rounds.cost import RoundCost
from secagg_rounds.primitives import environment, keystream_rates

from secagg.parameters import threshold
from secagg.prg import DEFAULT_THREADS

DROP = 0.2
VECTOR_WORK = ("fold", "masks", "decode")
MEASURED_DIMENSION = 1_000_000
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to run."""

    silos: tuple[int, ...]
    dimension: int
    dimensions: tuple[int, ...]
    longest: int
    repeats: int


FULL = Plan(
    silos=(5, 10, 20, 50, 100, 200),
    dimension=MEASURED_DIMENSION,
    dimensions=(10_000, 100_000, 1_000_000, 10_000_000),
    longest=100_000_000,
    repeats=3,
)
QUICK = Plan(silos=(5, 10), dimension=20_000, dimensions=(10_000,), longest=100_000, repeats=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """One row: seconds of one client and of the server, and the latter's parts."""

    client_s: float
    vector_s: float
    protocol_s: float


class Vectors:
    """Vectors of norm 0.9 that differ from silo to silo."""

    def __init__(self, dimension: int) -> None:
        self._base = processes.drawn(0, dimension, dimension)

    def __call__(self, number: int) -> np.ndarray:
        """Return the vector of a silo."""
        return np.roll(self._base, number)

    def check(self, mean: np.ndarray, stayed: list[int]) -> None:
        """Refuse a wrong mean: rounding alone may part it from the float one."""
        expected = np.zeros(self._base.size)
        for number in stayed:
            expected += self(number)
        if np.abs(mean - expected / len(stayed)).max() > 1.0 / GRID_STEPS:
            raise ArithmeticError("the sum is not that of the silos' vectors")


def run(n: int, dimension: int, dropped: tuple[int, ...], repeats: int) -> Costs:
    """Rounds of one setting; the least of each figure."""
    vectors = Vectors(dimension)
    rounds: list[RoundCost] = []
    for _ in range(repeats):
        rounds.append(
            chorale_round(
                n=n,
                dimension=dimension,
                vector=vectors,
                dropped=dropped,
                threads=DEFAULT_THREADS,
            )
        )
        vectors.check(rounds[-1].mean, [i for i in range(n) if i not in dropped])
    vector_s = [sum(cost.parts[name] for name in VECTOR_WORK) for cost in rounds]
    return Costs(
        client_s=min(cost.client_s for cost in rounds),
        vector_s=min(vector_s),
        protocol_s=min(cost.server_s - work for cost, work in zip(rounds, vector_s, strict=True)),
    )


def corrupt_answers(n: int, dimension: int) -> tuple[float, int]:
    """N - t silos answer R4 with wrong shares: seconds to recover the secrets, and liars named."""
    federation = federate(n, dimension)
    accumulator = np.zeros(dimension, dtype="<u4")
    liars = federation.names[threshold(n, colluding(n)) :]
    vectors = Vectors(dimension)
    uploaded = until_uploaded(
        federation,
        dropped=(),
        vector=vectors,
        add=lambda upload: fold_upload(accumulator, upload),
    )
    unmasking = until_unmasked(uploaded, {name: federation.signing_keys[name] for name in liars})
    if unmasking.rejected_senders != liars:
        raise ArithmeticError(f"the liars are {liars}, named were {unmasking.rejected_senders}")
    unmasking.apply(accumulator)
    vectors.check(
        accumulator.view("<i4") / (GRID_STEPS * n),
        list(range(n)),
    )
    return uploaded.seconds.seconds["server/unmask"], len(liars)


def against_n(plan: Plan) -> dict[str, float]:
    """Parts 2 and 3."""
    print(f"\nagainst n, d = {plan.dimension}, no drops")
    print(f"{'n':>4} {'client':>10} {'server vector':>14} {'ns/element':>11} {'protocol':>10}")
    per_element = {}
    for n in plan.silos:
        costs = run(n, plan.dimension, (), plan.repeats if n <= 20 else 1)
        per_element[n] = 1e9 * costs.vector_s / (n * plan.dimension)
        print(
            f"{n:>4} {1e3 * costs.client_s:>7.1f} ms {1e3 * costs.vector_s:>11.1f} ms "
            f"{per_element[n]:>11.2f} {1e3 * costs.protocol_s:>7.1f} ms",
            flush=True,
        )
    largest = plan.silos[-1]
    seconds, liars = corrupt_answers(largest, min(plan.dimension, 10_000))
    print(f"n = {largest} with {liars} corrupt answers in R4: secrets recovered in {seconds:.2f} s")
    dropped = tuple(range(1, 1 + round(DROP * largest)))
    start = time.perf_counter()
    costs = run(largest, plan.dimension, dropped, 1)
    server_s = costs.vector_s + costs.protocol_s
    print(
        f"n = {largest} with {len(dropped)} dropped, d = {plan.dimension}: the sum is exact; "
        f"client {1e3 * costs.client_s:.0f} ms, server {server_s:.2f} s, of it vectors "
        f"{costs.vector_s:.2f} s; all {largest} silos in one process "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )
    return {
        "ns_per_element_least_n": round(per_element[plan.silos[0]], 3),
        "ns_per_element_most_n": round(per_element[largest], 3),
        "flatness": round(max(per_element.values()) / min(per_element.values()), 3),
        "corrupt_answers": liars,
        "corrupt_unmask_s": round(seconds, 3),
        "dropped_server_s": round(server_s, 3),
    }


def against_d(plan: Plan) -> None:
    """Part 4."""
    n = 5
    print(f"\nagainst d, n = {n}, no drops")
    print(f"{'d':>10} {'client':>10} {'ns/coord.':>10} {'server':>10} {'vectors':>10}")
    for dimension in plan.dimensions:
        costs = run(n, dimension, (), plan.repeats)
        print(
            f"{dimension:>10} {1e3 * costs.client_s:>7.1f} ms "
            f"{1e9 * costs.client_s / dimension:>10.1f} "
            f"{1e3 * (costs.vector_s + costs.protocol_s):>7.1f} ms {1e3 * costs.vector_s:>7.1f} ms",
            flush=True,
        )


def footprint(plan: Plan) -> dict[str, float]:
    """Part 5."""
    found = processes.measure(5, plan.longest)
    vector = 4 * plan.longest
    print(
        f"\nd = {plan.longest}, n = 5, a process each, {found.seconds:.1f} s: silo "
        f"{found.client_peak_bytes / MIB:.0f} MiB, coordinator {found.server_peak_bytes / MIB:.0f} "
        f"MiB at peak, where a vector has {vector / MIB:.0f} MiB"
    )
    return {
        "longest": plan.longest,
        "client_peak_mib": round(found.client_peak_bytes / MIB, 1),
        "server_peak_mib": round(found.server_peak_bytes / MIB, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small n and d, in seconds")
    plan = QUICK if parser.parse_args().quick else FULL
    print(environment(DEFAULT_THREADS))
    rates = keystream_rates(5, 1 if plan is QUICK else 9)
    share, single = (rates[name] / rates["aes_ctr"] for name in ("masked", "masked_once"))
    print(
        f"one thread: AES-256-CTR {rates['aes_ctr'] / 1e9:.2f} GB/s; keystream + add of 5 masks "
        f"{rates['masked'] / 1e9:.2f} ({share:.0%}), of one mask {rates['masked_once'] / 1e9:.2f} "
        f"({single:.0%})"
    )
    figures = {"ctr_share": round(share, 3), "ctr_share_one_mask": round(single, 3)}
    figures |= against_n(plan)
    against_d(plan)
    figures |= footprint(plan)
    if not all(math.isfinite(value) for value in figures.values()):
        raise ArithmeticError("a figure is not finite")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
