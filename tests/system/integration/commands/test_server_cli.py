"""The admin's command line: its contract, and the way from nothing to a published roster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.cli.main import main
from silo_agent.identity.join import join
from tests.kit.paths import ROOT

pytestmark = pytest.mark.xdist_group("server_cli")

PLAN = ROOT / "deploy" / "examples" / "plan-constant.toml"


@pytest.fixture
def chorale(monkeypatch, capfd):
    """Run ``chorale`` here: a process of its own would load everything again for every command."""

    def run(*arguments):
        words = ["chorale", *map(str, arguments)]
        capfd.readouterr()
        # The coordinator runs in this process too, and its log is no answer of the command.
        with Path(os.devnull).open() as nobody, monkeypatch.context() as patch, capture_logs():
            patch.setattr(sys, "argv", words)
            patch.setattr(sys, "stdin", nobody)
            with pytest.raises(SystemExit) as stop:
                main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, stop.value.code or 0, out, err)

    return run


def data(done):
    assert done.returncode == 0, done.stderr
    envelope = json.loads(done.stdout)
    assert (envelope["schema_version"], envelope["status"]) == (1, "ok")
    return envelope["data"]


def failure(done, code):
    assert done.returncode == code, done.stderr
    envelope = json.loads(done.stdout)
    assert envelope["status"] == "error"
    assert set(envelope) == {
        "schema_version",
        "status",
        "error_code",
        "message",
        "hint",
        "next_step",
    }
    return envelope


def test_from_invites_to_a_published_roster(chorale, coordinator, tmp_path):
    where = ("--data", coordinator.data_dir, "--format", "json")
    for silo_id in ("hospital-a", "hospital-b", "hospital-c"):
        invite = data(chorale("invite", "oncology", silo_id, "--ttl", "10m", *where))["invite"]
        join(invite, tmp_path / silo_id)
    roster, signed = tmp_path / "roster.json", tmp_path / "signed.json"
    assert data(chorale("roster", "propose", "--out", roster, *where))["silos"] == 3
    unsigned = failure(chorale("roster", "publish", roster, *where), 4)
    assert unsigned["error_code"] == "roster_unsigned"
    root = ("--dir", coordinator.root_dir, "--format", "json")
    # Nobody answers the question, so nothing is signed.
    refused = failure(chorale("root", "sign", roster, "--out", signed, *root), 4)
    assert "not confirmed" in refused["message"]
    assert not signed.exists()
    data(chorale("root", "sign", roster, "--out", signed, "--yes", *root))
    assert data(chorale("roster", "publish", signed, *where))["epoch"] == 1
    silos = data(chorale("silo", "list", *where))["silos"]
    assert {silo["state"] for silo in silos} == {"rostered"}
    # None of them has called yet.
    assert {silo["silent"] for silo in silos} == {True}
    records = data(chorale("audit", "tail", "-n", "3", *where))["records"]
    assert records[-1]["event"] == "roster_published"
    assert data(chorale("audit", "verify", *where))["records"] > 5
    assert data(chorale("budget", *where)) == {"runs": [], "heads": []}
    # With a roster, a plan needs neither --silos nor --colluding.
    forecast = data(chorale("run", "plan", PLAN, "--dimension", "100", *where))
    assert (forecast["silos"], forecast["threshold"]) == (3, 3)


def test_watching_streams_json_lines_and_ends_with_the_run(chorale, coordinator):
    done = chorale("run", "watch", "run-1", "--data", coordinator.data_dir, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["run"]["round"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["run"]["state"] == "finished"
    assert {line["collapse"] for line in lines} == {None}


def test_a_list_can_be_piped_and_an_empty_one_has_no_line(chorale, coordinator):
    where = ("--data", coordinator.data_dir)
    done = chorale("silo", "list", *where)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert (done.returncode, names) == (0, ["hospital-a", "hospital-b", "hospital-c"])
    assert done.stderr == ""
    assert all(line.split()[1:3] == ["rostered", "silent"] for line in done.stdout.splitlines())
    one = chorale("silo", "show", "hospital-a", *where)
    assert one.stdout.startswith("hospital-a: rostered, silent\n")
    none = chorale("budget", *where)
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr.startswith("no runs yet: ")


def test_exit_codes(chorale, coordinator, tmp_path):
    where = ("--data", coordinator.data_dir, "--format", "json")
    assert failure(chorale("invite", "--format", "json"), 4)["error_code"] == "arguments"
    absent = failure(chorale("silo", "list", "--data", tmp_path, "--format", "json"), 4)
    assert "chorale init" in absent["message"]
    unknown = failure(chorale("adapter", "list", "none", *where), 4)
    assert unknown["error_code"] == "run_unknown"
    soon = chorale("invite", "oncology", "a", "--ttl", "soon", *where)
    assert failure(soon, 4)["error_code"] == "arguments"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(PLAN.read_text() + '\nsurprise = "x"\n')
    plan = ("run", "plan", wrong, "--silos", "4", "--colluding", "1", "--dimension", "9")
    refused = failure(chorale(*plan, "--format", "json"), 4)
    assert refused["error_code"] == "plan_refused"
    assert "surprise" in refused["message"]


def test_an_absent_coordinator_is_exit_code_2(chorale, tmp_path):
    root = data(chorale("root", "init", "--dir", tmp_path / "root", "--format", "json"))
    made = chorale(
        "init",
        "--federation",
        "f",
        "--host",
        "localhost",
        "--root-public-key",
        root["root_public_key"],
        "--data",
        tmp_path / "data",
        "--listen",
        "127.0.0.1:1",
        "--format",
        "json",
    )
    assert data(made)["coordinator_address"] == "localhost:1"
    where = ("--data", tmp_path / "data", "--format", "json")
    assert failure(chorale("silo", "list", *where), 2)["error_code"] == "unavailable"
    assert data(chorale("admin", "renew", *where))["name"] == "admin"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from server.cli import main; sys.argv = ['chorale', '--help']\n"
        "try:\n    main.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'grpc', 'sqlalchemy', 'numpy', 'pydantic', 'torch', 'lab'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
