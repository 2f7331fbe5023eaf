"""The runner of mutants believes no false evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversary.mutants.mutant import Mutant, StaleMutantError
from tests.adversary.mutants.runner import Evidence, Verdict, judge

EXAMPLE = Mutant(
    name="example", disables="nothing", file="a.py", old="1", new="2", tests=("t.py::test_a",)
)
FAILED = {"test": "t.py::test_a[x]", "when": "call", "kind": "AssertionError", "text": "E  1 != 2"}


def evidence(status=1, failures=(FAILED,), outside=()):
    return Evidence(status=status, failures=tuple(failures), outside=outside, output="")


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (evidence(), Verdict.CAUGHT),
        (evidence(status=0, failures=()), Verdict.SURVIVED),
        (evidence(status=None, failures=()), Verdict.BROKEN),
        (evidence(status=2), Verdict.BROKEN),
        (evidence(status=4, failures=()), Verdict.BROKEN),
        (evidence(status=1, failures=()), Verdict.BROKEN),
        (evidence(failures=[FAILED | {"when": "setup"}]), Verdict.BROKEN),
        (evidence(failures=[FAILED | {"when": "collect"}]), Verdict.BROKEN),
        (evidence(failures=[FAILED | {"kind": "NameError"}]), Verdict.BROKEN),
        (evidence(failures=[FAILED | {"test": "t.py::test_b"}]), Verdict.BROKEN),
        (evidence(outside=("secagg",)), Verdict.BROKEN),
    ],
)
def test_only_a_failed_named_test_of_the_copy_is_a_catch(seen, verdict):
    assert judge(EXAMPLE, seen).verdict is verdict


def test_a_phrase_must_be_in_the_failure():
    def with_phrase(phrase):
        return Mutant(
            name="example", disables="", file="a.py", old="1", new="2", tests=EXAMPLE.tests,
            phrase=phrase,
        )  # fmt: skip

    assert judge(with_phrase("1 != 2"), evidence()).verdict is Verdict.CAUGHT
    assert judge(with_phrase("3 != 4"), evidence()).verdict is Verdict.SURVIVED


@pytest.mark.parametrize(("text", "old"), [("2", "1"), ("1 1", "1")])
def test_a_text_that_is_not_there_exactly_once_is_no_mutant(tmp_path: Path, text, old):
    (tmp_path / "a.py").write_text(text)
    mutant = Mutant(name="x", disables="", file="a.py", old=old, new="3", tests=EXAMPLE.tests)
    with pytest.raises(StaleMutantError):
        mutant.apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == text


def test_applying_changes_the_one_place_and_gives_back_what_was(tmp_path: Path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert EXAMPLE.apply(tmp_path) == "x = 1\n"
    assert (tmp_path / "a.py").read_text() == "x = 2\n"
