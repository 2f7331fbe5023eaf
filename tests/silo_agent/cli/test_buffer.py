"""``chorale-silo buffer``: import, show and delete, while no daemon runs."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys

import pytest

from evolution.memory.memory import Memory
from ops.cli.envelope import Exit
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.cli.main import main
from tests.kit.evolution.tiny_base import writable_copy
from tests.kit.evolution.trajectories import won


def episode(task_id, subject=""):
    return {
        "conversations": [
            {"from": "human", "loss": None, "value": "craft the goal item ."},
            {"from": "gpt", "loss": False, "value": "ok ."},
            {"from": "human", "loss": None, "value": "goal plank ."},
            {"from": "gpt", "loss": True, "value": "craft 1 plank"},
        ],
        "item_id": f"textcraft_{task_id}",
        "subject": subject,
    }


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(
            sys, "argv", ["chorale-silo", "buffer", *map(str, arguments), "--format", "json"]
        )
        with pytest.raises(SystemExit) as stop:
            main()
        answer = json.loads(capsys.readouterr().out)
        return int(stop.value.code or 0), answer

    return run


@pytest.fixture
def silo(tiny_base, tmp_path):
    writable_copy(tiny_base, tmp_path / "base")
    (tmp_path / "silo.toml").write_text('environments = ["craft"]\nbase_model = "base"')
    return tmp_path


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "expert.jsonl"
    lines = [json.dumps(episode(n, subject="zoe" if n == 3 else "")) for n in (1, 2, 3)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def played(silo):
    """What a run has explored."""
    directory = silo / "evolve" / "00aa"
    directory.mkdir(parents=True)
    with Memory(directory / "successes.sqlite") as memory:
        memory.add([won(1), won(3, subject="zoe"), won(4)])
        memory.add([won(3, subject="zoe", word=9, success=False)])
    return directory / "successes.sqlite"


def test_import_twice_show_and_delete(call, silo, file, played):
    code, answer = call("import", file, "--environment", "craft", "--data", silo)
    assert (code, answer["data"]["read"], answer["data"]["added"]) == (Exit.OK, 3, 3)
    assert answer["data"]["longest_tokens"] > 0
    assert stat.S_IMODE((silo / "experts.sqlite").stat().st_mode) == 0o600
    _, answer = call("import", file, "--environment", "craft", "--data", silo)
    assert answer["data"]["added"] == 0
    _, answer = call("show", "--data", silo)
    assert answer["data"]["buffers"] == [
        {
            "file": name,
            "environments": [
                {
                    "environment": "craft",
                    "explored": solved + failed,
                    "solved": solved,
                    "failed": failed,
                    "demonstrations": shown,
                    "tasks": 3,
                }
            ],
        }
        for name, solved, failed, shown in (
            ("experts.sqlite", 0, 0, 3),
            ("evolve/00aa/successes.sqlite", 3, 1, 0),
        )
    ]
    code, answer = call("delete", "--subject", "zoe", "--data", silo)
    # The demonstration, and what the agent tried in vain as well as what it solved.
    assert (code, answer["data"]["deleted"]) == (Exit.OK, 3)
    code, answer = call("delete", "--task", "craft", "1", "--data", silo)
    assert (code, answer["data"]["deleted"]) == (Exit.OK, 2)
    _, answer = call("show", "--data", silo)
    rows = [buffer["environments"][0] for buffer in answer["data"]["buffers"]]
    assert [(row["explored"], row["demonstrations"]) for row in rows] == [(0, 1), (1, 0)]
    assert b"zoe" not in (silo / "experts.sqlite").read_bytes() + played.read_bytes()


def test_a_personal_adapter_that_may_know_what_was_deleted_is_named(call, silo, played):
    personal = played.parent / "personal"
    personal.mkdir()
    _, answer = call("delete", "--subject", "zoe", "--data", silo)
    assert answer["data"] == {
        "deleted": 2, "principles": 0, "results": 0, "diagnoses": 0, "personal": [str(personal)],
    }  # fmt: skip


@pytest.mark.parametrize("what", [("--subject", "zoe"), ("--task", "craft", "1")])
def test_finished_work_that_may_hold_what_was_deleted_goes_too(call, silo, played, what):
    results = silo / "results"
    results.mkdir()
    (results / f"{'0' * 32}.result").write_bytes(b"a delta")
    (results / ".0.result.00.partial").write_bytes(b"half of one")
    _, answer = call("delete", *what, "--data", silo)
    assert answer["data"]["results"] == 1
    assert list(results.iterdir()) == []


def test_while_a_daemon_holds_the_ledger_nothing_is_touched(call, silo, file, played):
    ledger = os.open(silo / LEDGER_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
    before = played.read_bytes()
    for arguments in (
        ("import", file, "--environment", "craft"),
        ("show",),
        ("delete", "--subject", "zoe"),
    ):
        code, answer = call(*arguments, "--data", silo)
        assert (code, answer["error_code"]) == (Exit.SERVER, "daemon_running")
    assert played.read_bytes() == before
    assert not (silo / "experts.sqlite").exists()
    os.close(ledger)
    # The ledger's file is there, and nobody holds it.
    assert call("delete", "--subject", "zoe", "--data", silo)[0] == Exit.OK


def test_the_lock_is_held_while_a_command_works(call, silo, file, monkeypatch):
    (silo / LEDGER_FILE).touch()
    seen = []
    add = Memory.add_expert

    def spy(self, trajectories):
        with (silo / LEDGER_FILE).open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(True)
        return add(self, trajectories)

    monkeypatch.setattr(Memory, "add_expert", spy)
    assert call("import", file, "--environment", "craft", "--data", silo)[0] == Exit.OK
    assert seen == [True]


def test_what_cannot_be_imported_is_a_typed_answer(call, silo, file, tmp_path):
    def code_of(*arguments):
        code, answer = call(*arguments, "--data", silo)
        return code, answer["error_code"]

    assert code_of("import", file, "--environment", "maze") == (
        Exit.ARGUMENTS, "unknown_environment",
    )  # fmt: skip
    file.write_text(file.read_text() + "\n{}")
    code, answer = call("import", file, "--environment", "craft", "--data", silo)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "expert_file")
    assert "expert.jsonl:4" in answer["message"]
    assert not (silo / "experts.sqlite").exists()
    assert code_of("delete") == (Exit.ARGUMENTS, "arguments")
    assert code_of("delete", "--subject", "x", "--task", "craft", "1") == (
        Exit.ARGUMENTS, "arguments",
    )  # fmt: skip
    (silo / "experts.sqlite").write_bytes(b"not a database at all, but long enough" * 40)
    assert code_of("show") == (Exit.ARGUMENTS, "memory_corrupt")
    assert code_of("delete", "--subject", "") == (Exit.ARGUMENTS, "memory_corrupt")
    (silo / "base" / "tokenizer.json").write_text("{")
    assert code_of("import", file, "--environment", "craft")[0] == Exit.ARGUMENTS
    (silo / "silo.toml").write_text('environments = ["craft"]')
    assert code_of("import", file, "--environment", "craft") == (Exit.ARGUMENTS, "no_base_model")


def test_a_silo_that_holds_nothing_says_so(call, silo):
    assert call("show", "--data", silo) == (
        Exit.OK, {"schema_version": 1, "status": "ok", "data": {"buffers": []}},
    )  # fmt: skip
