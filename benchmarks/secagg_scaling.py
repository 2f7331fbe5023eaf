"""What secure aggregation costs against n and against d, and what memory it needs.

Every part but the first runs in each suite, v1 beside v2, in turn:

1. AES-256-CTR alone and keystream + add, one thread, in turn: the share of the ceiling.
2. R1 against n: bytes of a silo and in all, and the coordinator's memory in a process of its own.
3. Cost against n, no drops, every silo real. The last n runs again with t good answers and n - t
   corrupt ones: the time to recover the secrets, and every liar named.
4. The largest n with a fifth of the silos dropped after they shared keys.
5. Cost against d at n = 5.
6. The longest vector at n = 5 with a process for each silo and one for the coordinator: the peak
   of their resident sets.

`--only shares` and the like choose parts, `--suites v2` the suites.

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
from dataclasses import dataclass, replace

import numpy as np
from secagg_rounds import processes
from secagg_rounds.chorale import (
    GRID_STEPS,
    VERSIONS,
    adder,
    chorale_round,
    colluding,
    federate,
    until_unmasked,
    until_uploaded,
)
from secagg_rounds.cost import RoundCost
from secagg_rounds.primitives import environment, keystream_rates
from secagg_rounds.r1 import measure_shares

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
    suites: tuple[str, ...]


FULL = Plan(
    silos=(5, 10, 20, 50, 100, 200),
    dimension=MEASURED_DIMENSION,
    dimensions=(10_000, 100_000, 1_000_000, 10_000_000),
    longest=100_000_000,
    repeats=3,
    suites=tuple(VERSIONS),
)
QUICK = Plan(
    silos=(5, 10),
    dimension=20_000,
    dimensions=(10_000,),
    longest=100_000,
    repeats=1,
    suites=tuple(VERSIONS),
)
PARTS = ("shares", "silos", "dropped", "dimensions", "footprint")


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


def run(
    n: int, dimension: int, suite_name: str, dropped: tuple[int, ...] = (), repeats: int = 1
) -> Costs:
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
                suite_name=suite_name,
            )
        )
        vectors.check(rounds[-1].mean, [i for i in range(n) if i not in dropped])
    vector_s = [sum(cost.parts[name] for name in VECTOR_WORK) for cost in rounds]
    return Costs(
        client_s=min(cost.client_s for cost in rounds),
        vector_s=min(vector_s),
        protocol_s=min(cost.server_s - work for cost, work in zip(rounds, vector_s, strict=True)),
    )


def corrupt_answers(n: int, dimension: int, suite_name: str) -> tuple[float, int]:
    """N - t silos answer R4 with wrong shares: seconds to recover the secrets, and liars named."""
    federation = federate(n, dimension, suite_name)
    accumulator = np.zeros(dimension, dtype="<u4")
    liars = federation.names[threshold(n, colluding(n)) :]
    vectors = Vectors(dimension)
    uploaded = until_uploaded(
        federation,
        dropped=(),
        vector=vectors,
        add=adder(federation, accumulator),
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


def shares(plan: Plan) -> dict[str, float]:
    """Part 2."""
    print("\nR1, the coordinator in a process of its own, every silo told at once")
    print(
        f"{'n':>4} {'suite':>5} {'silo up':>11} {'silo down':>11} {'all silos':>12} "
        f"{'state':>10} {'peak':>10} {'a silo':>10} {'server':>9}"
    )
    figures: dict[str, float] = {}
    for n in plan.silos:
        for name in plan.suites:
            cost = measure_shares(n, name)
            print(
                f"{n:>4} {name:>5} {cost.up_bytes / MIB:>7.3f} MiB "
                f"{cost.down_bytes / MIB:>7.3f} MiB {cost.total_bytes / MIB:>8.1f} MiB "
                f"{cost.state_bytes / MIB:>6.0f} MiB "
                f"{cost.peak_bytes / MIB:>6.0f} MiB {1e3 * cost.silo_s:>7.1f} ms "
                f"{cost.server_s:>7.2f} s",
                flush=True,
            )
            figures |= {
                f"r1_up_bytes_{name}": cost.up_bytes,
                f"r1_down_bytes_{name}": cost.down_bytes,
                f"r1_total_bytes_{name}": cost.total_bytes,
                f"r1_state_mib_{name}": round(cost.state_bytes / MIB, 1),
                f"r1_peak_mib_{name}": round(cost.peak_bytes / MIB, 1),
            }
    return figures


def against_n(plan: Plan) -> dict[str, float]:
    """Part 3."""
    print(f"\nagainst n, d = {plan.dimension}, no drops")
    print(
        f"{'n':>4} {'suite':>5} {'client':>10} {'server vector':>14} {'ns/element':>11} "
        f"{'protocol':>10}"
    )
    per_element: dict[str, list[float]] = {name: [] for name in plan.suites}
    figures: dict[str, float] = {}
    for n in plan.silos:
        for name in plan.suites:
            costs = run(n, plan.dimension, name, repeats=plan.repeats if n <= 20 else 1)
            per_element[name].append(1e9 * costs.vector_s / (n * plan.dimension))
            print(
                f"{n:>4} {name:>5} {1e3 * costs.client_s:>7.1f} ms "
                f"{1e3 * costs.vector_s:>11.1f} ms {per_element[name][-1]:>11.2f} "
                f"{1e3 * costs.protocol_s:>7.1f} ms",
                flush=True,
            )
            figures[f"most_n_client_s_{name}"] = round(costs.client_s, 4)
            figures[f"most_n_protocol_s_{name}"] = round(costs.protocol_s, 4)
    largest = plan.silos[-1]
    for name, spent in per_element.items():
        seconds, liars = corrupt_answers(largest, min(plan.dimension, 10_000), name)
        print(
            f"n = {largest}, {name}, with {liars} corrupt answers in R4: secrets recovered in "
            f"{seconds:.2f} s"
        )
        figures |= {
            f"ns_per_element_least_n_{name}": round(spent[0], 3),
            f"ns_per_element_most_n_{name}": round(spent[-1], 3),
            f"flatness_{name}": round(max(spent) / min(spent), 3),
            "corrupt_answers": liars,
            f"corrupt_unmask_s_{name}": round(seconds, 3),
        }
    return figures


def with_drops(plan: Plan) -> dict[str, float]:
    """Part 4."""
    largest, figures = plan.silos[-1], {}
    dropped = tuple(range(1, 1 + round(DROP * largest)))
    print(f"\nn = {largest} with {len(dropped)} dropped after R1, d = {plan.dimension}")
    for name in plan.suites:
        start = time.perf_counter()
        costs = run(largest, plan.dimension, name, dropped)
        server_s = costs.vector_s + costs.protocol_s
        print(
            f"{name}: the sum is exact; client {1e3 * costs.client_s:.0f} ms, server "
            f"{server_s:.2f} s, of it vectors {costs.vector_s:.2f} s; all {largest} silos in one "
            f"process {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        figures[f"dropped_server_s_{name}"] = round(server_s, 3)
    return figures


def against_d(plan: Plan) -> dict[str, float]:
    """Part 5."""
    n = 5
    print(f"\nagainst d, n = {n}, no drops")
    print(f"{'d':>10} {'suite':>5} {'client':>10} {'ns/coord.':>10} {'server':>10} {'vectors':>10}")
    for dimension in plan.dimensions:
        for name in plan.suites:
            costs = run(n, dimension, name, repeats=plan.repeats)
            print(
                f"{dimension:>10} {name:>5} {1e3 * costs.client_s:>7.1f} ms "
                f"{1e9 * costs.client_s / dimension:>10.1f} "
                f"{1e3 * (costs.vector_s + costs.protocol_s):>7.1f} ms "
                f"{1e3 * costs.vector_s:>7.1f} ms",
                flush=True,
            )
    return {}


def footprint(plan: Plan) -> dict[str, float]:
    """Part 6."""
    figures: dict[str, float] = {"longest": plan.longest}
    vector = 4 * plan.longest
    print(f"\nd = {plan.longest}, n = 5, a process each; a vector has {vector / MIB:.0f} MiB")
    for name in plan.suites:
        found = processes.measure(5, plan.longest, name)
        print(
            f"{name}: {found.seconds:.1f} s; silo {found.client_peak_bytes / MIB:.0f} MiB, "
            f"coordinator {found.server_peak_bytes / MIB:.0f} MiB at peak",
            flush=True,
        )
        figures[f"client_peak_mib_{name}"] = round(found.client_peak_bytes / MIB, 1)
        figures[f"server_peak_mib_{name}"] = round(found.server_peak_bytes / MIB, 1)
    return figures


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small n and d, in seconds")
    parser.add_argument("--suites", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--silos", type=int, nargs="+", help="instead of 5 to 200")
    parser.add_argument("--dimension", type=int, help="against n, instead of 1e6")
    return parser.parse_args()


def main() -> int:
    options = parse()
    plan = QUICK if options.quick else FULL
    plan = replace(
        plan,
        suites=tuple(options.suites),
        silos=tuple(options.silos or plan.silos),
        dimension=options.dimension or plan.dimension,
    )
    print(environment(DEFAULT_THREADS))
    rates = keystream_rates(5, 1 if options.quick else 9)
    share, single = (rates[name] / rates["aes_ctr"] for name in ("masked", "masked_once"))
    print(
        f"one thread: AES-256-CTR {rates['aes_ctr'] / 1e9:.2f} GB/s; keystream + add of 5 masks "
        f"{rates['masked'] / 1e9:.2f} ({share:.0%}), of one mask {rates['masked_once'] / 1e9:.2f} "
        f"({single:.0%})"
    )
    figures: dict[str, float] = {
        "most_n": plan.silos[-1],
        "ctr_share": round(share, 3),
        "ctr_share_one_mask": round(single, 3),
    }
    parts = dict(zip(PARTS, (shares, against_n, with_drops, against_d, footprint), strict=True))
    for name in options.only:
        figures |= parts[name](plan)
    if not all(math.isfinite(value) for value in figures.values()):
        raise ArithmeticError("a figure is not finite")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
