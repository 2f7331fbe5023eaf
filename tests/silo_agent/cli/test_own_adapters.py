"""What a silo's adapters came to on its own tasks, in ``status`` and ``alone``; which to serve."""

import json
from pathlib import Path

import pytest

from evolution.methods.personal.compared import CANDIDATES, Choice, Choices, Compared
from ops.cli.envelope import Exit
from silo_agent.books.local_store import ChainHead, LocalStore
from tests.kit.silo_agent.command_line import call


def judged_row(successes, episodes=8, label="plank", environment="craft", temperature=0.0):
    return {
        "environment": environment, "label": label, "shard": 0, "temperature": temperature,
        "episodes": episodes, "successes": successes,
    }  # fmt: skip


def test_status_shows_the_personal_adapter_beside_the_global_one(silo: Path, monkeypatch, capsys):
    store = LocalStore(silo)
    head = ChainHead(
        round=3, step=0, position=3, adapter_sha256=bytes([1]) * 32, record_sha256=bytes(32)
    )
    store.set_chain_head("run-1", head)
    for number, solved, personal in ((2, 1, False), (3, 2, False), (3, 6, True)):
        store.append_evaluation(
            run_id="run-1",
            round_number=number,
            adapter_sha256="01" * 32,
            rows=[judged_row(solved), judged_row(solved, label="stick")],
            personal=personal,
        )
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
    (run,) = json.loads(out)["data"]["runs"]
    assert [(row["round"], row["personal"], row["successes"]) for row in run["judged"]] == [
        (3, False, 4),
        (3, True, 12),
    ]
    shown = "round 3, craft at temperature 0"
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert f"run run-1: global, {shown}: 25.0 % of 16 held-out episodes solved" in out
    assert f"run run-1: personal, {shown}: 75.0 % of 16 held-out episodes solved" in out
    assert "round 2, craft" not in out
    # Counts that nobody can pair any more: √(¼·¾/16 + ¾·¼/16) is 15.3 points.
    assert (
        "run run-1: serve for all it has: this silo's own adapter (+50.0 ± 15.3 points to the "
        "shared one on 16 tasks, round 3, by the judged counts alone)"
    ) in out
    (silo / "evaluation.jsonl").write_text('{"run":"run-1","round":"x"}\n')
    code, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert code == Exit.OK
    assert "problem: the evaluation of run run-1 is damaged" in out


def compared_rows(own, *, base=(0, 0), tasks=40):
    return Choice(
        compared=tuple(
            Compared(
                candidate=one,
                tasks=tasks,
                gained={"own": own, "base": base}.get(one.kind, (0, 0))[0],
                lost={"own": own, "base": base}.get(one.kind, (0, 0))[1],
            )
            for one in CANDIDATES
        )
    )


def test_status_recommends_an_adapter_for_each_family_and_for_all(silo: Path, monkeypatch, capsys):
    store = LocalStore(silo)
    head = ChainHead(
        round=3, step=0, position=3, adapter_sha256=bytes([1]) * 32, record_sha256=bytes(32)
    )
    store.set_chain_head("run-1", head)
    for number, own in ((2, (0, 0)), (3, (9, 2))):
        found = Choices(
            families={"craft": compared_rows(own), "maze": compared_rows((1, 1), base=(2, 1))},
            members={"craft": "craft", "maze": "maze"},
        )
        store.append_choice({"run": "run-1", "round": number, **found.row()})
    for kind, solved in ((0, 2), (1, 6), (2, 7)):
        store.append_evaluation(
            run_id="run-1",
            round_number=3,
            adapter_sha256="01" * 32,
            rows=[judged_row(solved)],
            personal=kind > 0,
            chosen=kind == 2,
        )
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    serve = [line for line in out.splitlines() if "serve for" in line]
    said = "points to the shared one on {} tasks, round 3, chosen by tasks of its own)"
    assert serve == [
        "run run-1: serve for family craft: this silo's own adapter (+17.5 ± 7.9 "
        + said.format(40),
        "run run-1: serve for family maze: not told apart: keep the shared adapter (the base "
        "model without an adapter: +2.5 ± 4.4 " + said.format(40),
        "run run-1: serve for all it has: this silo's own adapter (+8.8 ± 4.4 " + said.format(80),
    ]
    assert "run run-1: chosen, round 3, craft at temperature 0: 87.5 %" in out
    _, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo), "--format", "json")
    (run,) = json.loads(out)["data"]["runs"]
    assert [(row["family"], row["adapter"], row["weight"]) for row in run["recommended"]] == [
        ("craft", "own", 1.0), ("maze", "shared", 0.0), (None, "own", 1.0)
    ]  # fmt: skip
    assert [row["chosen"] for row in run["judged"]] == [False, False, True]
    store.append_choice({"run": "run-1", "round": 4, "families": {"craft": []}, "members": {}})
    code, out, _ = call(monkeypatch, capsys, "status", "--data", str(silo))
    assert code == Exit.OK
    assert "problem: the choice of run run-1 is damaged" in out
    assert "serve for" not in out


@pytest.mark.parametrize("method", ["fedsa", "fedavg"])
def test_alone_shows_both_adapters_and_says_what_is_missing(
    silo: Path, tmp_path: Path, monkeypatch, capsys, method
):
    out_dir, plan = tmp_path / "alone", tmp_path / "plan.toml"
    plan.write_text(plan.read_text().replace('method = "fedavg"', f'method = "{method}"', 1))

    def evolve(*, out_dir: Path, **_others) -> None:
        out_dir.mkdir(exist_ok=True)
        for personal in (False, True):
            LocalStore(out_dir).append_evaluation(
                run_id="alone",
                round_number=3,
                adapter_sha256="01" * 32,
                rows=[judged_row(6 if personal else 2)],
                personal=personal,
            )

    monkeypatch.setattr("silo_agent.local_work.alone.evolve_alone", evolve)
    arguments = ("alone", str(plan), "--adapter", str(plan), "--out", str(out_dir))
    code, out, err = call(monkeypatch, capsys, *arguments, "--data", str(silo), "--format", "json")
    assert code == Exit.OK
    data = json.loads(out)["data"]
    assert [row["successes"] for row in data["judged"]] == [2, 6]
    if method == "fedsa":
        assert "B = 0" in data["adapter_note"]
        assert f"this silo's B is under {out_dir / 'evolve' / 'personal'}" in err
    else:
        assert data["adapter_note"] is None
        assert "note:" not in err
    _, out, _ = call(monkeypatch, capsys, *arguments, "--data", str(silo))
    assert "personal, round 3, craft" in out
