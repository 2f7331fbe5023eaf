"""The benchmark of private steps runs from end to end, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kit.paths import ROOT


@pytest.mark.long
def test_every_arm_runs_and_the_last_line_is_the_figures():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    finished = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "dp_overhead.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout.splitlines()[-1])
    assert figures["vs_opacus"]["64"] > 0
    assert set(figures["vs_nondp"]) == {"fixed", "loop", "loop, uncut", "hooks", "functorch"}
    assert figures["fastest_opacus"]["64"].startswith("opacus/")
    assert figures["rounds_of_loop"]["32x4 40-200"] > 0
    assert figures["noise_s"] > 0
    for arm in ("plain", "opacus/hooks", "opacus/ghost"):
        assert arm in finished.stdout
