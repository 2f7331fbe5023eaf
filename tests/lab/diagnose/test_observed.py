"""Patterns of finished runs: curves, baselines and what silos differ in, read from results."""

import json

import pytest

from evolution.diagnose.patterns import Judged
from lab.diagnose.document import predictions, summary, write_observed, write_summary
from lab.diagnose.observed import Asked, curves_of, locus_of, observe
from lab.report.errors import ReportError
from tests.kit.lab.lab_results import eval_line, loaded, round_line, run_line

TASKS = 100
ROUNDS = (0, 2, 4, 6, 8, 10, 12, 14)
PLAIN = [{"environments": ["market"], "variant": None}] * 4
SPLIT = [
    {
        "environments": ["market"],
        "variant": {
            "kind": "catalog-split", "index": n, "pool": None, "choice": None, "env_div": 1.0,
            "keep_ratio": None, "descriptor": False,
        },
    }
    for n in range(1, 5)
]  # fmt: skip
SEEDS = (0, 1, 2)


def outcomes(rate):
    solved = round(rate * TASKS)
    return "1" * solved + "0" * (TASKS - solved)


def setting(name, method, level, *, silos=None, shifts=(0.0, 0.01, -0.01), rates=None, **more):
    """A setting's lines: it rises from 0.1 to its level by the middle of its rounds."""
    lines = []
    for seed, shift in zip(SEEDS, shifts, strict=True):
        for place, number in enumerate(ROUNDS):
            rate = 0.1 + (level - 0.1) * min(1, place / 4) if rates is None else rates[place]
            values = {"method": method, "environment": "market", "family": "market", **more}
            lines.append(
                eval_line(
                    name, seed, outcomes(rate + shift), round=number, temperature=0.0, **values
                )
            )
        lines.append(round_line(name, seed, 1, method=method))
        lines.append(run_line(name, seed, method=method, config={"silos": silos or PLAIN}))
    return lines


ALONE = {"silo": 0, "scope": "alone", "own": True, "same_family": True}
CENTRAL = setting("pooled", "central_evolution", 0.6)
FEDERATED = (
    setting("tasks", "fedse", 0.6)
    + setting("split", "fedse", 0.4, silos=SPLIT)
    + setting("same", "fedse", 0.59, silos=SPLIT)
    + setting("swings", "fedse", 0.4, silos=SPLIT, rates=[0.1, 0.3, 0.5, 0.5, 0.6, 0.6, 0.1, 0.6])
)
BY_ITSELF = setting("alone", "local_evolution", 0.3, **ALONE)


def seen(directory, lines, **asked):
    return observe(loaded(directory, lines), Asked(**asked))


def test_patterns_baselines_and_loci_of_a_whole_experiment(tmp_path):
    found = seen(tmp_path, CENTRAL + FEDERATED + BY_ITSELF)
    patterns = {one.setting: (one.locus, one.assigned.pattern) for one in found.seen}
    assert patterns == {
        "tasks": ("tasks", "A"),
        "split": ("environments", "C"),
        "same": ("environments", "B"),
        "swings": ("environments", "D"),
    }
    assert {one.baseline for one in found.seen} == {"pooled"}
    assert found.minus_central == pytest.approx(0.0, abs=1e-9)
    assert found.minus_best_local == pytest.approx(0.3)
    (slack,) = [one.slack for one in found.seen if one.slack is not None]
    assert slack.slack is None
    assert "not known without" in slack.why


def test_a_curve_has_every_judged_round_of_the_asked_temperature(tmp_path):
    lines = setting("tasks", "fedse", 0.5)
    lines += [{**line, "temperature": 1.0, "outcomes": "1"} for line in lines if "round" in line
              and line["kind"] == "eval"]  # fmt: skip
    experiment = loaded(tmp_path, lines)
    curve = curves_of(experiment, "tasks", 0.0)[0]
    assert [point.round for point in curve.points] == list(ROUNDS)
    assert curve.points[-1] == Judged(round=14, successes=50, tasks=TASKS)
    assert curves_of(experiment, "tasks", 1.0)[0].points[0].tasks == 1
    with pytest.raises(ReportError, match=r"at 0, 1"):
        observe(experiment, Asked(temperature=0.5))


def test_without_a_pooled_learner_the_best_silo_alone_is_the_baseline(tmp_path):
    worse = setting("alone", "local_evolution", 0.2, **{**ALONE, "silo": 1})
    lines = [line for line in worse if line["kind"] == "eval"]
    found = seen(tmp_path, FEDERATED + lines + BY_ITSELF)
    assert {one.baseline for one in found.seen} == {"alone, silo 0"}
    assert found.minus_central is None
    none = seen(tmp_path / "none", FEDERATED)
    assert set(none.left_out) == {"tasks", "split", "same", "swings"}
    assert not none.seen


def test_environments_of_other_names_are_compared_with_each_silo_alone_on_its_own(tmp_path):
    """The bandit: alone 100 % and 100 %, together a half."""
    silos = [{"environments": [name], "variant": None} for name in ("bandit", "bandit-swapped")]
    lines = []
    for number, name in enumerate(("bandit", "bandit-swapped")):
        where = {"environment": name, "family": name}
        lines += setting("together", "fedse", 0.5, silos=silos, **where)
        own = {"silo": number, "scope": "alone", "own": True, "same_family": True, **where}
        other = {**own, "silo": 1 - number, "own": False, "same_family": False}
        steady = (0.0, 0.0, 0.0)
        lines += setting("alone", "local_evolution", 1.0, silos=silos, shifts=steady, **own)
        lines += setting("alone", "local_evolution", 0.0, silos=silos, rates=[0.0] * 8,
                         shifts=steady, **other)  # fmt: skip
    once = {(line["kind"], line["setting"], line["seed"]): line for line in lines}
    runs = [line for key, line in once.items() if key[0] == "run"]
    (one,) = seen(tmp_path, [line for line in lines if line["kind"] != "run"] + runs).seen
    assert one.locus == "environments"
    assert one.baseline == "alone, own tasks"
    assert one.assigned.baseline == pytest.approx(1.0)
    assert one.assigned.pattern == "C"
    assert one.assigned.difference == pytest.approx(-0.5)


def test_a_named_baseline_a_dial_and_names_that_are_not_there(tmp_path):
    lines = CENTRAL + FEDERATED + setting("half", "fedse", 0.5, silos=SPLIT)
    dial = {"same": 0.0, "half": 0.5, "split": 1.0}
    found = seen(tmp_path, lines, dial=dial, baselines={"tasks": "split"})
    by_name = {one.setting: one for one in found.seen}
    assert by_name["split"].slack.slack == "delta_eff"
    assert by_name["tasks"].baseline == "split"
    with pytest.raises(ReportError, match="no finished setting 'nowhere'"):
        seen(tmp_path, lines, baselines={"tasks": "nowhere"})


@pytest.mark.parametrize(
    "silos", [{"environments": 3}, [{"environments": ["market"], "variant": {"kind": "new"}}], [7]]
)
def test_values_that_are_not_of_the_form_are_refused(tmp_path, silos):
    lines = [
        {**line, "config": {"silos": silos}} if line["kind"] == "run" else line for line in CENTRAL
    ]
    with pytest.raises(ReportError, match="not of the form"):
        locus_of(loaded(tmp_path, lines), "pooled")


def test_page_line_and_predictions_of_earlier_calls(tmp_path):
    found = seen(tmp_path / "results", CENTRAL + FEDERATED)
    out = tmp_path / "out"
    out.mkdir()
    page = write_observed(out, found).read_text()
    assert "| split | environments | pooled | 40.0 |" in page
    assert "variants = { descriptor = true }" in page, "pattern D comes with the menu"
    assert (out / "curves.png").stat().st_size > 1000
    for name, content in (
        ("split", {"setting": "split", "predicted": {"pattern": "C"}}),
        ("tasks", {"setting": "other", "predicted": {"pattern": "A"}}),
        ("same", {"setting": "same", "predicted": {"pattern": "Z"}}),
    ):
        (out / name).mkdir()
        (out / name / "diagnose.json").write_text(json.dumps(content))
    (out / "half").mkdir()
    (out / "half" / "diagnose.json").write_text("{")
    said = summary(predictions(out), found)
    assert said["patterns"]["split"] == {"predicted": "C", "observed": "C"}
    assert said["patterns"]["tasks"] == {"predicted": None, "observed": "A"}
    assert said["federated_minus_best_local"] is None
    write_summary(out, said, found)
    kept = json.loads((out / "diagnose.json").read_text())
    assert kept["patterns"] == said["patterns"]
    assert [one["setting"] for one in kept["observed"]["seen"]] == [s.setting for s in found.seen]
