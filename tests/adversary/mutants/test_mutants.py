"""The lists of mutants fit the source of today.

A failure: a mutant whose text or test is gone, so that ``make mutants-dp`` or
``make mutants-secagg`` would prove nothing about it. Whether tests catch the mutants is for those
commands.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache

import pytest

from tests.adversary.mutants import dp_mutants, secagg_mutants
from tests.adversary.mutants.runner import function_of
from tests.kit.paths import ROOT

AUDITS = "tests/adversary/audit/"
LISTS = {"dp": (dp_mutants.MUTANTS, 25), "secagg": (secagg_mutants.MUTANTS, 30)}
"""Each with how many it has at least."""

lists = pytest.mark.parametrize(("mutants", "least"), LISTS.values(), ids=LISTS)


def why_stale(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    if (times := text.count(mutant.old)) != 1:
        return f"its text occurs {times} times"
    changed = text.replace(mutant.old, mutant.new)
    if changed == text:
        return "it changes nothing"
    try:
        compile(changed, mutant.file, "exec")
    except SyntaxError as problem:
        return str(problem)
    return None


@cache
def functions(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@lists
def test_the_text_occurs_once_and_its_replacement_still_compiles(mutants, least):
    stale = {mutant.name: why for mutant in mutants if (why := why_stale(mutant))}
    assert stale == {}


@lists
def test_every_mutant_names_tests_that_exist(mutants, least):
    assert all(mutant.tests for mutant in mutants)
    missing = set()
    for test in {test for mutant in mutants for test in mutant.tests}:
        file, name = function_of(test).split("::")
        if name not in functions(file):
            missing.add(test)
    assert missing == set()


def test_every_case_that_a_mutant_names_exists():
    named = [mutant.tests for mutants, _ in LISTS.values() for mutant in mutants]
    cases = sorted({test for tests in named for test in tests if "[" in test})
    assert cases
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *cases],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@lists
def test_names_are_unique_and_there_are_enough(mutants, least):
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= least


@pytest.mark.parametrize(
    "name",
    [
        "half-sigma",
        "per-row-clip",
        "no-sampling",
        "layer-without-noise",
        "noise-reused",
        "n-dependent-divisor",
    ],
)
def test_the_audits_themselves_catch_what_they_are_for(name):
    (mutant,) = [mutant for mutant in dp_mutants.MUTANTS if mutant.name == name]
    assert all(test.startswith(AUDITS) for test in mutant.tests)
