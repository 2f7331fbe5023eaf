"""The panel of orchestration: what the tuning chooses, and what the tables and the line say."""

import gzip
import json
import shutil

import pytest
from typer.testing import CliRunner

from federation.plan.tables import SelectionSection
from lab.cli.main import app
from lab.experiment.orchestration.orchestrator import Orchestrator, Tries
from lab.experiment.tables import OrchestrationTable
from lab.report.errors import ReportError
from lab.report.lines import LineError, parse_line
from lab.report.panel import chosen, load_panel, render_panel
from tests.kit.lab.experiment_samples import HEAD, SILOS, setting
from tests.kit.lab.lab_results import eval_line, round_line, run_line

ROUNDS = 2
TASKS = 50


def simulated(hours, **changes):
    usual = {
        "asked": 6, "ready": 5, "lost": False, "seconds": 1800.0 * hours, "upload_bytes": 1_000_000,
        "download_bytes": 3_000_000, "requests": 1, "tokens": 700, "advised": True, "liars": 1,
    }  # fmt: skip
    return usual | changes


def decisions(run_id, seed):
    """Of a real run of rounds in which everybody answers."""
    rounds = Orchestrator(
        OrchestrationTable(
            selection=SelectionSection(policy="random", count=3), quorum=3, liars=0, silent=0
        ),
        run_id=run_id, sha256="ab" * 32, seed=seed, rounds=ROUNDS,
        families={f"silo-{k}": ("craft",) for k in range(4)},
        sizes={f"silo-{k}": 9 for k in range(4)}, most_tries=4,
    )  # fmt: skip
    for number in range(1, ROUNDS + 1):
        begun = rounds.begin(number)
        tries = Tries(episodes={"craft": 4}, successes={"craft": 2})
        ready = () if begun.timing.is_lost else begun.timing.ready
        rounds.end(begun, dict.fromkeys(ready, tries), upload_bytes=8)
    return rounds.decisions


def results(directory, runs, experiment="agentic"):
    """A directory with these runs: setting, seed, share solved, hours."""
    lines = []
    for name, seed, solved, hours in runs:
        lines += [
            round_line(name, seed, number, simulated=simulated(hours))
            for number in range(1, ROUNDS + 1)
        ]
        for temperature in (0.0, 1.0):
            right = round(TASKS * solved)
            outcomes = "1" * right + "0" * (TASKS - right)
            lines.append(eval_line(name, seed, outcomes, round=ROUNDS, temperature=temperature))
            # An earlier verdict does not count.
            lines.append(eval_line(name, seed, "0" * TASKS, round=1, temperature=temperature))
        lines.append(run_line(name, seed, experiment, rounds=ROUNDS))
        kept = directory / "runs" / f"{name}-{seed}"
        kept.mkdir(parents=True)
        (kept / "decisions.jsonl").write_text(decisions(f"{experiment}-{name}-{seed}", seed))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "results.jsonl").write_text(text)
    return directory


@pytest.fixture
def tuning(tmp_path):
    """The quickest constant that is within two points of the best is k11 by its mean."""
    runs = [
        ("constant-k7-d60", 905, 0.40, 5), ("constant-k7-d60", 906, 0.40, 5),
        ("constant-k11-d60", 905, 0.60, 9), ("constant-k11-d60", 906, 0.56, 11),
        ("constant-k16-d120", 905, 0.58, 20), ("constant-k16-d120", 906, 0.60, 20),
        ("schedule-decay-d60", 905, 0.50, 7), ("schedule-decay-d60", 906, 0.50, 7),
        ("schedule-growth-d60", 905, 0.50, 6), ("schedule-growth-d60", 906, 0.50, 6),
    ]  # fmt: skip
    return results(tmp_path / "tuning", runs, "agentic-tuning")


@pytest.fixture
def panel(tmp_path):
    runs = [("constant-k11-d60", seed, 0.5, 10 + seed) for seed in (1, 2, 3)]
    runs += [("advised-count", 1, 0.52, 9), ("advised-count", 2, 0.56, 9)]
    runs += [("advised-count", 3, 0.54, 9), ("oracle-k11-d60", 1, 0.6, 4)]
    return results(tmp_path / "panel", runs)


def test_the_rule_takes_the_quickest_of_those_near_the_best(tuning):
    found = load_panel(tuning)
    assert chosen(found, "constant") == "constant-k11-d60"
    # Alike in success: the quicker one.
    assert chosen(found, "schedule") == "schedule-growth-d60"
    with pytest.raises(ReportError, match="nothing can be chosen"):
        chosen(found, "oracle")


def test_candidates_at_other_seeds_are_not_chosen_among(tmp_path):
    runs = [("constant-k7-d60", 905, 0.4, 5), ("constant-k11-d60", 906, 0.6, 9)]
    with pytest.raises(ReportError, match="other seeds"):
        chosen(load_panel(results(tmp_path / "part", runs)), "constant")


def test_figures_by_hand_and_differences_by_seed(panel):
    found = load_panel(panel)
    assert found.runs["advised-count"][2] == pytest.approx(
        {
            "success": 56.0, "greedy": 56.0, "asked": 6, "lost": 0, "up_mb": 2.0, "total_mb": 8.0,
            "hours": 9.0, "tokens": 1400,
        }
    )  # fmt: skip
    hours = found.difference("advised-count", "constant-k11-d60", "hours")
    # 9 − 11, 9 − 12, 9 − 13; t of two degrees is 4.303.
    assert hours.rates == (-2.0, -3.0, -4.0)
    assert (hours.low, hours.high) == pytest.approx(
        (-3 - 4.3027 / 3**0.5, -3 + 4.3027 / 3**0.5), 1e-4
    )
    # One seed has no interval.
    assert str(found.difference("oracle-k11-d60", "constant-k11-d60", "success").low) == "nan"


PLANNED = {
    "constant-k7-d60": (1, 2, 3, 4, 5),
    "constant-k11-d60": (1, 2, 3, 4, 5),
    "schedule-growth-d60": (1, 2, 3, 4, 5),
    "oracle-k11-d60": (1, 2, 3, 4, 5),
    "oracle-k7-d60": (1, 2, 3, 4, 5),
    "advised-count": (1, 2, 3, 4, 5),
    "deev": (1, 2, 3, 4, 5),
}


def line_of(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def test_the_report_replays_every_decision_and_names_what_did_not_run(panel, tuning):
    text = render_panel(panel, tuning, planned=PLANNED)
    figures = line_of(text)
    assert figures["replay_equal"] is True
    assert figures["decisions"] == 7 * ROUNDS
    assert figures["not_run"] == [
        "constant-k11-d60: seeds 4, 5",
        "schedule-growth-d60: seeds 1, 2, 3, 4, 5",
        "oracle-k11-d60: seeds 2, 3",
        "advised-count: seeds 4, 5",
        "deev: seeds 1, 2, 3",
    ]
    assert figures["best_constant"] == "constant-k11-d60"
    assert figures["settings"]["advised-count"]["success"][0] == 54.0
    assert figures["settings"]["oracle-k11-d60"]["hours"] == [4.0, None, None]
    assert "| advised-count | 3 | +4.0 [-1.0, +9.0] |" in text
    # 50 tasks: 25 both solve at all seeds, one more, three more and two more the adviser.
    over_tasks = next(
        line
        for line in text.split("### Success over tasks")[1].splitlines()
        if line.startswith("| advised-count |")
    )
    value = load_panel(panel).difference_over_tasks("advised-count", "constant-k11-d60", "success")
    assert (value.value, value.tasks) == (pytest.approx(0.04), 50)
    assert 0 <= value.low < value.value < value.high < 0.12
    assert f"| +4.0 [{100 * value.low:+.1f}, {100 * value.high:+.1f}] |" in over_tasks
    mean = load_panel(panel).over_tasks("advised-count", "greedy")
    assert mean.value == pytest.approx(0.54)


def test_a_decision_that_does_not_follow_is_found(panel, tuning):
    path = panel / "runs" / "advised-count-2" / "decisions.jsonl"
    first, second = path.read_text().splitlines()
    changed = json.loads(first)
    changed["choice"]["silos"] = ["silo-0", "silo-1", "silo-9"]
    path.write_text(json.dumps(changed) + "\n" + second + "\n")
    figures = line_of(render_panel(panel, tuning))
    assert figures["replay_equal"] is False
    for content in (second + "\n", "nothing\n"):
        path.write_text(content)
        assert line_of(render_panel(panel, tuning))["replay_equal"] is False
    path.unlink()
    assert line_of(render_panel(panel, tuning))["replay_equal"] is False


def test_packed_decisions_are_made_again_too(panel, tuning):
    files = sorted(panel.glob("runs/*/decisions.jsonl"))
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    shutil.rmtree(panel / "runs")
    packed = panel / "decisions.jsonl.gz"
    for kept, equal in ((lines, True), (lines[1:], False)):
        packed.write_bytes(gzip.compress(b"".join(kept)))
        figures = line_of(render_panel(panel, tuning))
        assert (figures["replay_equal"], figures["decisions"] >= 7 * ROUNDS) == (equal, True)
    for content in (gzip.compress(b"nothing\n"), packed.read_bytes()[:-20], b"nothing"):
        packed.write_bytes(content)
        with pytest.raises(ReportError, match="decisions"):
            render_panel(panel, tuning)


def test_the_commands(panel, tuning, tmp_path):
    said = CliRunner().invoke(app, ["panel", "chosen", str(tuning)])
    assert said.exit_code == 0, said.output
    assert said.stdout.split() == ["constant-k11-d60", "schedule-growth-d60", "oracle-k11-d60"]
    (panel / "experiment.toml").write_text(HEAD + SILOS + setting("deev", "fedse"))
    out = tmp_path / "agentic.md"
    words = ["panel", "report", str(panel), "--tuning", str(tuning), "--out", str(out)]
    picture = tmp_path / "agentic.png"
    said = CliRunner().invoke(app, [*words, "--picture", str(picture)])
    assert said.exit_code == 0, said.output
    assert "deev: seeds 0" in out.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    (panel / "runs" / "advised-count-2" / "decisions.jsonl").unlink()
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 1


@pytest.mark.parametrize(
    "changes", [{"ready": 7}, {"lost": 1}, {"tokens": -1}, {"seconds": "1"}, {"upload_bytes": 0.5}]
)
def test_a_round_that_says_something_else_is_refused(changes):
    line = round_line("x", 1, 1, simulated=simulated(1, **changes))
    with pytest.raises(LineError):
        parse_line(json.dumps(line).encode())
    assert parse_line(json.dumps(round_line("x", 1, 1)).encode()).simulated is None
