"""Threads that share heaps leave fewer of them behind, each with what it keeps."""

import subprocess
import sys

import pytest

FILL = """
import ctypes, sys, threading
from ops.heap import share_heaps, trim
if sys.argv[1] != "0":
    share_heaps(int(sys.argv[1]))
together = threading.Barrier(6)
def fill():
    together.wait()
    held = [bytes(2_000) for _ in range(2_000)]
    together.wait()
threads = [threading.Thread(target=fill) for _ in range(6)]
for one in threads: one.start()
for one in threads: one.join()
trim()
ctypes.CDLL(None).malloc_stats()
"""


def heaps(most):
    """How many glibc speaks of after six threads filled memory at the same time."""
    ran = subprocess.run(
        [sys.executable, "-c", FILL, str(most)], capture_output=True, check=True, text=True
    )
    return sum(line.startswith("Arena ") for line in ran.stderr.splitlines())


@pytest.mark.parametrize("most", [1, 2])
def test_threads_share_the_heaps_that_there_are(most):
    assert heaps(0) > 2
    assert heaps(most) == most
