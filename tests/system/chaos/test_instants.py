"""The daemons that kill themselves still find every place where they do.

They hook into private names, which a change elsewhere may move; `make test-chaos` is too long for
every change, and this is its first second.
"""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("daemon", ["dying_silo", "dying_coordinator"])
def test_a_daemon_that_dies_as_planned_starts(daemon, tmp_path):
    started = subprocess.run(
        [sys.executable, "-m", f"tests.system.chaos.{daemon}", "--help"],
        env={
            **os.environ,
            "CHORALE_TEST_DEATHS": "1:training:0",
            "CHORALE_TEST_DEATHS_DONE": str(tmp_path / "deaths"),
            "CHORALE_TEST_WITNESS": str(tmp_path / "witness"),
            "CHORALE_TEST_RENEW": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    assert "Usage" in started.stdout
