"""A vector is never held more often than it must be, at either end.

Each role runs in a process of its own, because peak memory only ever grows. Three vectors are the
previous adapter, the sum and the next adapter; all but one of the coordinator's are file pages that
the kernel may take back.
"""

import json
import subprocess
import sys

from tests.kit.paths import ROOT

COORDINATES = 16_000_000
MOST_VECTORS = 3.5


def measured(role, directory):
    answer = subprocess.run(
        [sys.executable, "-m", "tests.lab.vectors_memory", role, directory, str(COORDINATES)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(answer.splitlines()[-1]) if answer else {}


def test_coordinator_and_silo_hold_three_vectors_and_tiles(tmp_path):
    measured("make", tmp_path)
    for role in ("coordinate", "follow"):
        figures = measured(role, tmp_path)
        # Fewer than two would mean that the measurement misses the work.
        assert 2.0 < figures["vectors"] < MOST_VECTORS, (role, figures)
    # And what the silo keeps is what the coordinator published.
    digests = json.loads((tmp_path / "digests.json").read_text())
    kept = {path.name for path in (tmp_path / "silo" / "adapters").iterdir()}
    assert kept == {digests["adapter"]}
