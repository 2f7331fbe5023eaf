"""The benchmark of a training step runs from end to end, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kit.paths import ROOT


@pytest.mark.long
def test_every_arm_trains_the_same_adapter_and_the_last_line_is_the_figures():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    finished = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sft_step.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout.splitlines()[-1])
    assert figures["sft_step_ratio"] > 0
    assert figures["checkpointing_ratio"] > 0
    for arm in ("bare", "trainer", "micro", "checkpointing"):
        assert f"  {arm} " in finished.stdout
