"""Results files: each line is checked, a bad one is named, unfinished runs stay out."""

import json

import pytest

from lab.report.errors import ReportError, ResultsError
from lab.report.lines import EvalLine, LineError, RoundLine, RunLine, parse_line
from lab.report.results import load_results
from tests.kit.lab.lab_results import eval_line, federation_one, round_line, run_line, write


def encoded(line):
    return json.dumps(line).encode()


def test_the_three_kinds_are_read():
    assert isinstance(parse_line(encoded(run_line("fedse", 0))), RunLine)
    found = parse_line(encoded(round_line("fedse", 0, 1)))
    assert isinstance(found, RoundLine)
    assert found.successes == {"craft": 3, "maze": 1}
    judged = parse_line(encoded(eval_line("fedse", 0, "0110")))
    assert isinstance(judged, EvalLine)
    assert (judged.outcomes, judged.own) == ("0110", None)


BAD = [
    (b"{", "JSON"),
    (b"[1]", "JSON object"),
    (b"\xff\xfe", "JSON"),
    (b"[" * 100_000, "JSON"),
    (b'{"kind": "run", "kind": "run"}', "twice"),
    (encoded({"kind": "note"}), "kind"),
    (encoded(run_line("", 0)), "setting is empty"),
    (encoded(run_line("x" * 121, 0)), "setting"),
    (encoded(run_line("a\nb", 0)), "setting"),
    (encoded(run_line("a", -1)), "seed"),
    (encoded(run_line("a", True)), "seed"),
    (encoded(run_line("a", 0, wall_s=-1)), "wall_s"),
    (encoded(run_line("a", 0, wall_s=float("nan"))), "NaN"),
    (encoded(run_line("a", 0, wall_s=10**400)), "wall_s"),
    (encoded(run_line("a", 0, config=[])), "config"),
    (encoded(run_line("a", 0, config_sha256="ab")), "config_sha256"),
    (encoded(run_line("a", 0, panels=[])), "panels"),
    (encoded(run_line("a", 0, panels={"craft": 4})), "craft is not an object"),
    (encoded(run_line("a", 0, panels={"craft": {"tasks": 0, "sha256": "0" * 64}})), "tasks"),
    (encoded(run_line("a", 0, panels={"craft": {"tasks": 1, "sha256": "0" * 63}})), "sha256"),
    (encoded(run_line("a", 0, panels={"": {"tasks": 1, "sha256": "0" * 64}})), "name"),
    (encoded({k: v for k, v in run_line("a", 0).items() if k != "rounds"}), "rounds is missing"),
    (encoded(round_line("a", 0, 0)), "round"),
    (encoded(round_line("a", 0, 1, successes=11)), "more successes"),
    (encoded(round_line("a", 0, 1, vetoes="all")), "vetoes"),
    (encoded(round_line("a", 0, 1, vetoes=-(10**400))), "vetoes"),
    (encoded(round_line("a", 0, 1, restored_round=-1)), "restored_round"),
    (encoded(eval_line("a", 0, "")), "outcomes"),
    (encoded(eval_line("a", 0, "012")), "outcomes"),
    (encoded(eval_line("a", 0, "01", scope="mine")), "scope"),
    (encoded(eval_line("a", 0, "01", silo=-2)), "silo"),
    (encoded(eval_line("a", 0, "01", silo=0)), "null exactly"),
    (encoded(eval_line("a", 0, "01", own=True, same_family=True)), "null exactly"),
    (encoded(eval_line("a", 0, "01", silo=0, own=True, same_family=False)), "family"),
    (encoded(eval_line("a", 0, "01", silo=0, own=1, same_family=True)), "own"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_bad_line_is_refused_with_its_reason(text, reason):
    with pytest.raises(LineError, match=reason):
        parse_line(text)


def test_the_line_number_is_named(tmp_path):
    write(tmp_path, [run_line("a", 0), eval_line("a", 0, "01"), eval_line("a", 0, "2")])
    with pytest.raises(ResultsError, match="line 3: outcomes") as caught:
        load_results([tmp_path])
    assert caught.value.line == 3


def test_a_torn_last_line_is_an_error(tmp_path):
    write(tmp_path, [run_line("a", 0)])
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "ev')
    with pytest.raises(ResultsError, match="line 2"):
        load_results([tmp_path])


def test_only_finished_runs_count_and_the_others_are_named(tmp_path):
    write(tmp_path, [eval_line("a", 0, "1"), run_line("a", 0), eval_line("a", 1, "0")])
    results = load_results([tmp_path])
    assert results.unfinished == (("a", 1),)
    assert [line.seed for line in results.experiments[0].evals] == [0]


def test_a_repeated_line_of_an_interrupted_run_replaces_the_first(tmp_path):
    write(tmp_path, [eval_line("a", 0, "10"), eval_line("a", 0, "11"), run_line("a", 0)])
    results = load_results([tmp_path])
    assert results.replaced == 1
    assert [line.outcomes for line in results.experiments[0].evals] == ["11"]


def test_contradictions_are_refused(tmp_path):
    write(tmp_path / "twice", [run_line("a", 0), run_line("a", 0)])
    write(tmp_path / "two", [run_line("a", 0), run_line("a", 1, "second")])
    write(tmp_path / "none", [eval_line("a", 0, "1")])
    write(tmp_path / "one", [run_line("a", 0)])
    for name, reason in (("twice", "already"), ("two", "another"), ("none", "no run")):
        with pytest.raises(ReportError, match=reason):
            load_results([tmp_path / name])
    with pytest.raises(ReportError, match="not a file"):
        load_results([tmp_path / "absent"])
    with pytest.raises(ReportError, match="same run"):
        load_results([tmp_path / "one", tmp_path / "one"])


def test_one_experiment_may_lie_in_two_directories(tmp_path):
    lines = federation_one()
    write(tmp_path / "a", [line for line in lines if line["seed"] == 0])
    write(tmp_path / "b", [line for line in lines if line["seed"] != 0])
    (found,) = load_results([tmp_path / "a", tmp_path / "b"]).experiments
    assert found.seeds_of("fedse") == (0, 1, 2)
    assert len(found.evals) == sum(line["kind"] == "eval" for line in lines)
