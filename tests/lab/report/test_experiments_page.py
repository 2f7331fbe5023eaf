"""docs/experiments says what its rows say: the generated tables and the one line of figures."""

import json
import re
import subprocess
import sys

import pytest

from lab.evidence.registration import read_registration
from lab.evidence.verdicts import judged_by, render_judgement
from lab.experiment.config import load_experiment
from lab.report.markdown import render
from lab.report.panel import render_panel
from lab.report.pooled import pooled
from lab.report.report import Choices, build_report
from lab.report.results import load_results
from lab.report.silos import Silos
from lab.report.summary import summary
from tests.kit.paths import ROOT

PAGES = ROOT / "docs" / "experiments"
CHOICES = {
    "fedse": Choices(),
    "fedse-registered": Choices(reference="alone"),
    "aggregation": Choices(reference="rolora-gauge"),
    "groups": Choices(reference="sum"),
    "desk": Choices(reference="alone"),
    "words": Choices(reference="alone"),
    "words-grpo": Choices(reference="alone"),
    "fedagent": Choices(),
    "parts": Choices(reference="fed-se"),
    "poisoning": Choices(reference="groups-guard (personal)"),
}
"""By what the names of a page's experiments begin with; the longest name that fits counts."""
REGISTERED = {"fedse-registered": ROOT / "experiments" / "registered" / "fedse.json"}
"""What some pages' results are held to."""
PANEL = "agentic"
"""A page whose tables are another command's."""


def page_of(path):
    pages = [name for name in (*CHOICES, PANEL) if path.name.startswith(name)]
    return max(pages, key=len, default=None)


def results_of(name):
    return load_results([p for p in sorted((PAGES / "data").iterdir()) if page_of(p) == name])


def reported(name):
    """A page's generated text as its rows give it, and their line of figures."""
    results, choices = results_of(name), CHOICES[name]
    report = build_report(results, choices)
    figures = summary(report, results, choices)
    text = render(report, figures, pooled(report, results), plots="plots")
    if name in REGISTERED:
        judgement = judged_by(read_registration(REGISTERED[name]), results)
        text = "\n\n".join([*render_judgement(judgement), text])
    return text, figures


@pytest.mark.parametrize("name", CHOICES)
def test_a_page_is_that_of_its_rows(name):
    fresh, figures = reported(name)
    assert without_pictures((PAGES / f"{name}-results.md").read_text()) == without_pictures(fresh)
    if name == "fedse":
        assert lines_of(name, '{"methods":') == [figures]
        assert None not in [*figures["methods"].values(), *figures["federation2"].values()]


@pytest.fixture(scope="module")
def recomputed():
    """By a script that imports nothing of Chorale: ``-I`` keeps even the folder away."""
    script = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "headlines.py")]
    return json.loads(subprocess.run(script, capture_output=True, check=True, text=True).stdout)


def test_headlines_are_those_of_a_second_script(recomputed):
    (said,) = lines_of("fedse", '{"methods":')
    assert recomputed["fedse"] == said
    (said,) = lines_of("fedagent", '{"patterns":')
    for name, points in recomputed["fedagent"].items():
        assert 100 * said[name] == pytest.approx(points, abs=0.01)
    for page in ("words", "desk"):
        text = (PAGES / f"{page}.md").read_text().splitlines()
        for setting, rate in recomputed[page].items():
            row = next(
                line for line in text if re.match(rf"\| `{setting}` (\| [\d.]+ ){{5}}", line)
            )
            assert float(row.split("|")[-2].strip(" *")) == pytest.approx(rate, abs=0.051)


def test_the_registered_figures_are_those_of_the_rows_and_of_a_second_script(recomputed):
    (said,) = lines_of("fedse", '{"preregistered":')
    assert recomputed["registered"] == said
    results = results_of("fedse-registered")
    judgement = judged_by(read_registration(REGISTERED["fedse-registered"]), results)
    found = {one.name: one.difference.spread for one in judgement.found}
    silos = Silos(results.experiments[0], 1.0)
    options = {option.name: option for option in silos.options}
    worst = silos.worst(
        options["residual (chosen)"], options["alone (alone)"]
    ).difference.spread.mean
    figures = [found["unseen-fedse"].mean, found["own-chosen"].mean, worst]
    names = ("unseen_gain", "own_mean", "own_worst")
    assert [said["preregistered"][name] for name in names] == pytest.approx(
        [100 * figure for figure in figures], abs=0.006
    )
    assert said["preregistered"]["seeds"] == len(found["unseen-fedse"].rates)


def test_what_an_attack_changes_is_that_of_a_second_script(recomputed):
    text = (PAGES / "poisoning.md").read_text()
    for kept in ("sum", "groups", "guard", "groups-guard"):
        (row,) = re.findall(rf"^\| `{kept}` \| [\d.]+ \|(.*)\|$", text, re.MULTILINE)
        for attack, cell in zip(("flip", "backdoor", "drift"), row.split("|"), strict=True):
            said = [float(n) for n in re.findall(r"[-+][\d.]+", cell.replace("−", "-"))]
            assert said == pytest.approx(recomputed["poisoning"][f"{kept}-{attack}"], abs=0.06)


@pytest.mark.long
def test_the_panel_is_that_of_its_rows_and_every_decision_comes_out_again(recomputed):
    kept = PAGES / "data" / PANEL
    planned = load_experiment(kept / "experiment.toml")
    fresh = render_panel(
        kept,
        PAGES / "data" / f"{PANEL}-tuning",
        planned={row.name: planned.seeds for row in planned.setting},
    )
    assert (PAGES / f"{PANEL}-results.md").read_text() == fresh
    (figures,) = [json.loads(line) for line in fresh.splitlines() if line.startswith("{")]
    assert (figures["replay_equal"], figures["decisions"], figures["not_run"]) == (True, 492, [])
    (said,) = lines_of(PANEL, '{"best_constant":')
    found = figures["differences"]["advised-count"]
    assert said == {
        **{name: figures[name] for name in ("best_constant", "tuned_schedule")},
        "advised_minus_constant": {
            name: [round(end, 2) for end in found[name]] for name in ("success", "hours", "up_mb")
        },
        **{name: figures[name] for name in ("decisions", "replay_equal")},
    }
    for name, value in recomputed[PANEL].items():
        assert found[name][0] == pytest.approx(value, abs=0.006)


def lines_of(name, begins):
    """What a page says in lines of JSON that begin so."""
    lines = (PAGES / f"{name}.md").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith(begins)]


def test_every_kept_row_belongs_to_a_page():
    assert all(page_of(path) for path in (PAGES / "data").iterdir())


def without_pictures(text):
    """Which pictures there are is known only once they are drawn."""
    return [line for line in text.splitlines() if not line.startswith("![") and line]
