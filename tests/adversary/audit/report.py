"""``python -m tests.adversary.audit.report``: every audit at length, then every privacy mutant.

One line per question of an audit; then the mutants as ``tests.adversary.mutants.dp_mutants``
prints them, whose last line is the count as JSON. Ends with status 1 if an audit is violated or a
mutant is not caught.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.adversary.audit import catalogue
from tests.adversary.audit.language_model import language_model
from tests.adversary.mutants import dp_mutants

WORKERS = 2
LONG = (
    language_model,
    *(partial(audit, size=catalogue.LONG) for audit in catalogue.AUDITS),
)


def perform(number):
    """Run one audit in a directory of its own, in this process."""
    with tempfile.TemporaryDirectory(prefix="chorale-audit-") as directory:
        return LONG[number](Path(directory))


def main(chosen):
    started = time.monotonic()
    violated = 0
    # A process of its own: torch must not be forked.
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for results in pool.map(perform, range(len(LONG))):
            for result in results:
                print(result, flush=True)
                violated += not result.holds
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    if "--no-mutants" in chosen:
        return 1 if violated else 0
    return dp_mutants.run([]) or (1 if violated else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
