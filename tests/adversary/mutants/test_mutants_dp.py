"""The list of privacy mutants fits the source of today.

A failure: a mutant whose text or test is gone, so that ``make mutants-dp`` would prove nothing
about it. Whether tests catch the mutants is for that command.
"""

from __future__ import annotations

import ast

import pytest

from tests.adversary.mutants.dp_mutants import MUTANTS
from tests.adversary.mutants.runner import function_of
from tests.kit.paths import ROOT

AUDITS = "tests/adversary/audit/"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_occurs_once_and_its_replacement_still_compiles(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    changed = text.replace(mutant.old, mutant.new)
    assert changed != text
    compile(changed, mutant.file, "exec")


def test_every_named_test_exists():
    functions: dict[str, set[str]] = {}
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        file, name = function_of(test).split("::")
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions[file] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert name in functions[file], test


def test_names_are_unique_and_every_mutant_names_its_test():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
    assert all(mutant.tests for mutant in MUTANTS)


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
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    assert all(test.startswith(AUDITS) for test in mutant.tests)
