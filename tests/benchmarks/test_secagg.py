"""The benchmarks run from end to end, at sizes that say nothing about speed."""

import json
import os
import subprocess
import sys

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
    assert list(figures)[:4] == ["client_median", "server_median", "worst", "ctr_share"]
    # Nothing was compared with, and nothing is claimed.
    assert figures["client_median"] is None
    assert figures["worst"] is None
    assert figures["ctr_share"] > 0


def test_scaling():
    figures = _run("secagg_scaling.py")
    assert figures["corrupt_answers"] == 3
    assert figures["client_peak_mib"] > 0
    assert figures["server_peak_mib"] > 0
