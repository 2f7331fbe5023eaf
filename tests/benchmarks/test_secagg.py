"""The benchmarks run from end to end, at sizes that say nothing about speed."""

import json
import os
import subprocess
import sys
from fractions import Fraction
from math import comb

import pytest

from tests.kit.paths import ROOT


def _run(name, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    finished = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), "--quick", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_our_side_of_the_comparison():
    figures = _run("secagg_vs_flower.py", "--ours-only")
    assert list(figures["suites"]) == ["v1", "v2"]
    for medians in figures["suites"].values():
        # Nothing was compared with, and nothing is claimed.
        assert medians["client_median"] is None
        assert medians["worst"] is None
    assert figures["ctr_share"] > 0
    # A hash of each kind, and the way of an upload into the sum with each.
    assert all(rate > 0 for rate in figures["digests"].values())
    assert len(figures["digests"]) == 8


@pytest.mark.long
def test_scaling():
    figures = _run("secagg_scaling.py")
    assert figures["corrupt_answers"] == 3
    for suite in ("v1", "v2"):
        assert figures[f"client_peak_mib_{suite}"] > 0
        assert figures[f"server_peak_mib_{suite}"] > 0
        assert figures[f"r1_total_bytes_{suite}"] > 0


def chance(n, k, marked, least):
    """That so many of k neighbours, drawn from n - 1 silos, are marked ones."""
    ways = sum(comb(marked, x) * comb(n - 1 - marked, k - x) for x in range(max(least, 0), k + 1))
    return Fraction(ways, comb(n - 1, k))


@pytest.mark.long
def test_more_silos_than_a_cohort_may_have_and_the_neighbours_they_would_need():
    figures = _run("secagg_beyond.py")
    assert figures["square"]["40"]["silo_mib"] > 5 * figures["square"]["5"]["silo_mib"]

    def enough(k, t):
        told, short = chance(40, k, 12, 2 * t - k), chance(40, k, 4, k - t + 1)
        return 40 * told <= Fraction(1, 2**40) and 40 * short <= Fraction(1, 2**20)

    found = figures["neighbours"]["40,12"]
    assert enough(found["k"], found["t"])
    assert not any(enough(found["k"] - 1, t) for t in range(found["k"] // 2 + 1, found["k"]))
