"""``chorale audit explain`` and ``decisions``, and ``chorale-lab replay-decisions``."""

import asyncio
import base64
import json

import pytest
from typer.testing import CliRunner

from lab.cli.main import app as lab
from server.cli.main import app
from server.config import CoordinatorConfig
from server.store import served
from tests.kit.server import world as sw
from tests.kit.server.scripted_advisor import Scripted, says

SELECTION = 'policy = "advised"\ncount = 5'


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A run of two rounds, one advised and one not; and how a command is typed."""
    endpoint = Scripted(says(count=4), says(count=1))
    plan = sw.plan_toml(rounds=2, selection=SELECTION, mode="silo", noise=0.05)
    with sw.World(tmp_path, silos=6, advisor=endpoint) as world:
        run_id = asyncio.run(world.run(plan))
    monkeypatch.setattr(CoordinatorConfig, "load", lambda _data: None)
    monkeypatch.setattr(
        served, "database_in_force", lambda _config: f"sqlite:///{tmp_path}/coordinator.db"
    )

    def typed(*words, program=app, code=0):
        said = CliRunner().invoke(program, [*words, "--format", "json"])
        assert said.exit_code == code, said.output
        return json.loads(said.stdout)

    return run_id, typed, tmp_path


def test_a_round_is_explained_with_what_was_asked_answered_and_decided(ran):
    run_id, typed, _ = ran
    first = typed("audit", "explain", run_id, "1")["data"]
    assert first["there"] == [f"silo-00{number}" for number in range(6)]
    assert len(first["choice"]["silos"]) == 4
    assert first["advice"]["verdict"] == "a proposal within its limits"
    assert (first["advice"]["reason"], len(first["advice"]["turns"])) == ("because", 1)
    assert first["replay_equal"] is True
    second = typed("audit", "explain", run_id, "2")["data"]
    assert second["advice"]["verdict"] == "no proposal: refused: count is not within 4 to 6"
    assert (second["advice"]["reason"], len(second["advice"]["turns"])) == ("", 3)
    text = CliRunner().invoke(app, ["audit", "explain", run_id, "2"]).stdout
    assert "decided again from the record: the same" in text
    assert "verdict: no proposal" in text


def test_what_is_not_there_says_what_to_do(ran):
    run_id, typed, tmp_path = ran
    assert typed("audit", "explain", run_id, "9", code=4)["error_code"] == "no_decision"
    absent = typed("audit", "decisions", "run-x", "--out", str(tmp_path / "f"), code=4)
    assert (absent["error_code"], absent["next_step"]) == ("run_absent", "chorale run list")


def test_decisions_are_replayed_and_a_changed_one_is_found(ran):
    run_id, typed, tmp_path = ran
    out = tmp_path / "decisions.jsonl"
    typed("audit", "decisions", run_id, "--out", str(out))
    assert out.stat().st_mode & 0o777 == 0o600
    same = typed("replay-decisions", str(out), program=lab)["data"]
    assert same == {"equal": 2, "other": 0, "replay_equal": True}

    lines = out.read_text().splitlines()
    moved = json.loads(lines[0])
    moved["choice"]["silos"][0] = "silo-005"
    out.write_text("\n".join([json.dumps(moved), lines[1]]))
    assert typed("replay-decisions", str(out), program=lab, code=1)["error_code"] == (
        "decision_differs"
    )

    told = json.loads(lines[0])
    advice = base64.b64decode(told["advice"]).replace(b'"count":4', b'"count":5')
    told["advice"] = base64.b64encode(advice).decode()
    out.write_text(json.dumps(told))
    refused = typed("replay-decisions", str(out), program=lab, code=4)
    assert refused["error_code"] == "decision_malformed"


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[]", b"nonsense", b"\xff\xfe", b'{"run": 1}', b"[" * 100_000, b"9" * (5 << 20)],
)
def test_a_hostile_file_is_refused(tmp_path, line):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(line)
    said = CliRunner().invoke(lab, ["replay-decisions", str(path), "--format", "json"])
    assert (said.exit_code, json.loads(said.stdout)["error_code"]) == (4, "decision_malformed")
