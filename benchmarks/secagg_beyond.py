"""R0 and R1 of more silos than a cohort may have, and what a sparse graph would have of them.

The protocol's graph is complete: every silo shares its secrets with every other, which costs n² in
R1. A cohort has 200 silos at most; here that bound is lifted, and with it that of a path in the
tree of a silo's shares, and nothing else changed.

1. **The square**: R0 and R1 of suite v2, the coordinator in a process of its own, as part 2 of
   ``secagg_scaling.py``: bytes, memory and time against n. Suite v1 is left out: at 500 silos what
   one silo is told has 11 MiB, more than a message may have.
2. **Neighbours**: in SecAgg+ (Bell and others, CCS 2020) a silo shares with k neighbours that
   nobody chose. The least k for which, with c silos colluding and a tenth lost, there is a
   threshold t such that (a) but with probability 2^-40 no silo has neighbours who collude
   enough to be told both of its secrets, 2t > k + colluders, and (b) but with probability
   2^-20 every silo keeps t neighbours. Both are hypergeometric tails, added up over the silos.

A complete graph has (a) for certain, and against any c silos, whoever chose them and when.

Prints tables and, as its last line, the figures as JSON. With 1,000 silos it takes twenty
minutes and about 6 GB.
"""

from __future__ import annotations

import os

# Before numpy: a thread pool inside the linear algebra would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
from typing import Any

import numpy as np
from scipy.stats import hypergeom
from secagg_rounds.chorale import colluding
from secagg_rounds.r1 import measure_shares

import secagg.bounds
import secagg.merkle
import secagg.parameters

MIB = 1 << 20
MOST = 1000
SECURE_BITS, CORRECT_BITS = 40, 20
LOST = 0.1

# Here and not in main: the coordinator's process reads this file, too.
secagg.bounds.MAX_COHORT = MOST  # type: ignore[misc]  # what this benchmark is about
secagg.parameters.MAX_SILOS = MOST  # type: ignore[misc]
secagg.merkle.MAX_PATH = (MOST - 1).bit_length()  # type: ignore[misc]


def square(silos: list[int]) -> dict[str, Any]:
    """Part 1."""
    print("R0 and R1 in suite v2, every silo told at once")
    print(
        f"{'n':>5} {'silo up':>11} {'silo down':>11} {'all silos':>12} {'peak':>10} {'a silo':>9} "
        f"{'coordinator':>11}"
    )
    figures: dict[str, Any] = {}
    for n in silos:
        cost = measure_shares(n, "v2")
        print(
            f"{n:>5} {cost.up_bytes / MIB:>7.2f} MiB {cost.down_bytes / MIB:>7.2f} MiB "
            f"{cost.total_bytes / MIB:>8.0f} MiB {cost.peak_bytes / MIB:>6.0f} MiB "
            f"{cost.silo_s:>7.2f} s {cost.server_s:>9.1f} s",
            flush=True,
        )
        figures[str(n)] = {
            "silo_mib": round((cost.up_bytes + cost.down_bytes) / MIB, 2),
            "all_mib": round(cost.total_bytes / MIB),
            "peak_mib": round(cost.peak_bytes / MIB),
            "silo_s": round(cost.silo_s, 3),
            "coordinator_s": round(cost.server_s, 1),
        }
    return figures


def neighbours(n: int, colluders: int, lost: int) -> tuple[int, int] | None:
    """The least k and its threshold; none where only the complete graph will do."""
    for k in range(2, n - 1):
        at_least = np.arange(k + 2)
        told = n * hypergeom.sf(at_least - 1, n - 1, colluders, k)
        short = n * hypergeom.sf(at_least - 1, n - 1, lost, k)
        for t in range(k // 2 + 1, k + 1):
            # 2t - k colluders are told both secrets; with more than k - t lost t are not left.
            if told[2 * t - k] <= 2.0**-SECURE_BITS and short[k - t + 1] <= 2.0**-CORRECT_BITS:
                return k, t
    return None


def sparse(silos: list[int]) -> dict[str, Any]:
    """Part 2."""
    print(f"\nneighbours in a sparse graph, {LOST:.0%} lost; of the complete graph's messages")
    print(f"{'n':>6} {'c':>5} {'k':>5} {'t':>5} {'share':>7}")
    figures: dict[str, Any] = {}
    for n in silos:
        for c in (colluding(n), n // 10):
            found = neighbours(n, c, math.ceil(LOST * n))
            k, t = found or (n - 1, secagg.parameters.threshold(n, c))
            print(f"{n:>6} {c:>5} {k:>5} {t:>5} {k / (n - 1):>7.0%}", flush=True)
            figures[f"{n},{c}"] = {"k": k, "t": t}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--silos", type=int, nargs="+", default=[50, 100, 200, 500, MOST])
    parser.add_argument("--quick", action="store_true", help="few silos, in seconds")
    options = parser.parse_args()
    if options.quick:
        options.silos = [5, 40]
    if max(options.silos) > MOST:
        parser.error(f"at most {MOST} silos")
    figures = {"square": square(options.silos), "neighbours": sparse(options.silos)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
