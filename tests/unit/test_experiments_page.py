"""docs/experiments says what its rows say: the generated tables and the one line of figures."""

import json
from pathlib import Path

import pytest

from lab.report.markdown import render
from lab.report.report import Choices, build_report
from lab.report.results import load_results
from lab.report.summary import summary

PAGES = Path(__file__).parents[2] / "docs" / "experiments"


def kept(prefix):
    return sorted(path for path in (PAGES / "data").iterdir() if path.name.startswith(prefix))


@pytest.fixture(scope="module")
def fedse():
    results = load_results(kept("fedse"))
    choices = Choices()
    report = build_report(results, choices)
    return report, summary(report, results, choices)


def test_the_page_has_one_line_of_figures_and_it_is_that_of_the_rows(fedse):
    page = (PAGES / "fedse.md").read_text()
    found = [line for line in page.splitlines() if line.startswith('{"methods":')]
    assert len(found) == 1
    assert json.loads(found[0]) == fedse[1]
    assert None not in [*fedse[1]["methods"].values(), *fedse[1]["federation2"].values()]


def test_the_generated_tables_are_those_of_the_rows(fedse):
    report, figures = fedse
    fresh = without_pictures(render(report, figures, plots="plots"))
    assert without_pictures((PAGES / "fedse-results.md").read_text()) == fresh


def without_pictures(text):
    """Which pictures there are is known only once they are drawn."""
    return [line for line in text.splitlines() if not line.startswith("![") and line]
