"""Runs each mutant's tests on a mutated copy of the source.

1. Copies the packages and tests into one temporary directory per worker.
2. Runs all named tests on the unchanged copy: they must pass.
3. Per mutant: changes one file of a copy, runs the named tests alone, puts the file back.

A mutant is caught if pytest ends with status 1, the first failure is in the body of a named test,
and every module of ours came from the copy. Everything else is survived, or broken: an old text
that is not there, an import that fails, a test that cannot be collected, a timeout.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.adversary.mutants.mutant import Mutant, StaleMutantError
from tests.kit.paths import ROOT

COPIED = (
    "secagg", "dp", "federation", "ops", "evolution", "silo_agent", "server", "proto", "deploy",
    "tests", "lab/base_model", "pyproject.toml",
)  # fmt: skip
WORKERS = 2
BASELINE_TIMEOUT_S = 1200
MUTANT_TIMEOUT_S = 120
# A failure of these kinds says that the mutant does not run, not that a check is missed.
NOT_A_CATCH = {
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
}


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    mutant: Mutant
    verdict: Verdict
    # The first failing test, or what went wrong.
    shown: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What one run of pytest left behind."""

    # None after a timeout.
    status: int | None
    failures: tuple[dict[str, str], ...]
    # Modules of ours that were not loaded from the copy.
    outside: tuple[str, ...]
    output: str


def function_of(node_id: str) -> str:
    """The node id without parameters."""
    return node_id.split("[", 1)[0]


def judge(mutant: Mutant, evidence: Evidence) -> Outcome:
    """Decide whether a named test noticed."""
    verdict, shown = Verdict.BROKEN, _flaw(mutant, evidence)
    first = evidence.failures[0] if evidence.failures else None
    if not shown and first is None:
        verdict, shown = Verdict.SURVIVED, "all named tests pass"
    elif not shown and mutant.phrase not in first["text"]:
        verdict, shown = Verdict.SURVIVED, f"{first['test']} fails without {mutant.phrase!r}"
    elif not shown:
        verdict, shown = Verdict.CAUGHT, first["test"]
    return Outcome(mutant=mutant, verdict=verdict, shown=shown)


def _flaw(mutant: Mutant, evidence: Evidence) -> str:
    """Why a run says nothing about the mutant; empty if it does say something."""
    first = evidence.failures[0] if evidence.failures else None
    if evidence.status is None:
        return "the tests did not end in time"
    if evidence.outside:
        return f"{evidence.outside[0]} was not loaded from the copy"
    if evidence.status != (0 if first is None else 1):
        return f"pytest ended with {evidence.status}: {evidence.output[-300:]}"
    if first is not None and (first["when"] != "call" or first["kind"] in NOT_A_CATCH):
        return f"{first['test']}: {first['when']} {first['kind']}"
    if first is not None and function_of(first["test"]) not in map(function_of, mutant.tests):
        return f"{first['test']} is not a named test"
    return ""


def copy_source(target: Path) -> None:
    """Copy what git knows or would know of the packages and tests."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            destination = target / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, destination)


def run_tests(copy: Path, tests: Sequence[str], *, stop: bool, timeout_s: float) -> Evidence:
    """Run the tests in a process of its own whose sys.path begins with the copy."""
    report = copy / "mutant-report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "tests.adversary.mutants.witness", *(["-x"] if stop else []), *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(copy), str(copy / "proto"))),
        # A stale .pyc of the same size and second would hide the change.
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MUTANT_ROOT": str(copy),
        "MUTANT_REPORT": str(report),
    }
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Evidence(status=None, failures=(), outside=(), output="")
    told = json.loads(report.read_text()) if report.exists() else {"failures": [], "outside": []}
    return Evidence(
        status=done.returncode,
        failures=tuple(told["failures"]),
        outside=tuple(told["outside"]),
        output=done.stdout + done.stderr,
    )


def run_mutant(mutant: Mutant, copy: Path) -> Outcome:
    """Change the copy, run the named tests, and put the copy back."""
    try:
        before = mutant.apply(copy)
    except StaleMutantError as error:
        return Outcome(mutant=mutant, verdict=Verdict.BROKEN, shown=str(error))
    try:
        return judge(mutant, run_tests(copy, mutant.tests, stop=True, timeout_s=MUTANT_TIMEOUT_S))
    finally:
        (copy / mutant.file).write_text(before, encoding="utf-8")


@contextmanager
def copies() -> Iterator[tuple[Path, ...]]:
    """One copy of the source per worker, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="chorale-mutants-") as directory:
        roots = tuple(Path(directory) / str(number) for number in range(WORKERS))
        for root in roots:
            root.mkdir()
            copy_source(root)
        yield roots


def run_all(mutants: Sequence[Mutant]) -> Iterator[Outcome]:
    """Check the baseline, then yield the outcomes in the order of the list.

    Raises:
        BaselineError: a named test fails without any mutation.
    """
    with copies() as roots:
        named = sorted({test for mutant in mutants for test in mutant.tests})
        baseline = run_tests(roots[0], named, stop=False, timeout_s=BASELINE_TIMEOUT_S)
        if baseline.status != 0 or baseline.outside:
            ended = f"ends with {baseline.status}, outside {baseline.outside}"
            if baseline.status is None:
                ended = f"does not end its {len(named)} tests within {BASELINE_TIMEOUT_S} s"
            raise BaselineError(f"the unchanged source {ended}:\n{baseline.output[-4000:]}")
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for root in roots:
            free.put(root)

        def one(mutant: Mutant) -> Outcome:
            root = free.get()
            try:
                return run_mutant(mutant, root)
            finally:
                free.put(root)

        with ThreadPoolExecutor(WORKERS) as pool:
            yield from pool.map(one, mutants)


class BaselineError(Exception):
    """The tests fail although nothing was mutated."""
