"""``chorale-silo principles``: list, show, edit and delete, and what takes principles along."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil

import pytest

from evolution.memory.principles import Principles
from evolution.principle import Learned, Used
from ops.cli.envelope import Exit
from silo_agent.books.leave import wipe
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.evolution.plays import task, tried
from tests.kit.silo_agent.command_line import call as command_line

RUN = "00aa00aa00aa00aa"


@pytest.fixture
def silo(tmp_path):
    (tmp_path / "silo.toml").write_text('environments = ["craft"]')
    return tmp_path


@pytest.fixture
def names(silo):
    """Of three principles by their text; one of zoe's, and one that helped."""
    directory = silo / "evolve" / RUN
    directory.mkdir(parents=True)
    with Principles(directory / "principles.sqlite") as kept:
        for number, (text, subject) in enumerate(
            [("look first", ""), ("call zoe back", "zoe"), ("take one plank", "")]
        ):
            source = tried(task(number, subject=subject), "x")
            kept.note([Learned(text=text, sources=(source,))], round_index=4)
        found = {one.text: one.id for one in kept.listed()}
        kept.note([Used(principle=found["take one plank"], success=True)], round_index=5)
    return found


@pytest.fixture
def call(monkeypatch, capsys, silo):
    def run(*arguments, command="principles"):
        words = (command, *map(str, arguments), "--data", str(silo), "--format", "json")
        code, out, _ = command_line(monkeypatch, capsys, *words)
        return code, json.loads(out)

    return run


@pytest.fixture
def shown(monkeypatch, capsys, silo):
    """For people: the lines on stdout."""

    def run(*arguments):
        words = ("principles", *map(str, arguments), "--data", str(silo))
        code, out, err = command_line(monkeypatch, capsys, *words)
        return code, out.splitlines(), err

    return run


def content(silo):
    return (silo / "evolve" / RUN / "principles.sqlite").read_bytes()


def test_a_list_has_the_best_first(call, shown, names):
    code, answer = call("list")
    assert code == Exit.OK
    rows = answer["data"]["principles"]
    assert [row["text"] for row in rows] == ["take one plank", "look first", "call zoe back"]
    assert rows[0] == {
        "id": names["take one plank"], "environment": "room", "subject": "", "round": 4,
        "text": "take one plank", "uses": 1, "successes": 1, "score": 2 / 3, "edited": False,
        "made_of": [tried(task(2), "x").conversation_sha256], "run": RUN,
    }  # fmt: skip
    code, lines, err = shown("list")
    assert (code, err) == (Exit.OK, "")
    first = f"{names['take one plank']}  score 0.67 (1 of 1 tries succeeded)  room, of nobody, run"
    assert lines[:2] == [f"{first} {RUN}", "  take one plank"]
    assert "room, of zoe" in lines[4]


def test_one_is_shown_with_what_it_was_made_of(call, shown, names):
    _, answer = call("show", names["call zoe back"])
    assert (answer["data"]["text"], answer["data"]["subject"]) == ("call zoe back", "zoe")
    _, lines, _ = shown("show", names["call zoe back"])
    source = tried(task(1, subject="zoe"), "x").conversation_sha256
    assert lines[0] == "call zoe back"
    assert lines[-1] == f"made of {source}"


def test_an_edit_stands_in_the_place_of_the_models_text(call, shown, names, silo, monkeypatch):
    name = names["take one plank"]
    code, answer = call("edit", name, "--text", "take two planks")
    assert (code, answer["data"]["text"], answer["data"]["edited"]) == (
        Exit.OK, "take two planks", True,
    )  # fmt: skip
    assert answer["data"]["uses"] == 0
    # No list of processes has it: a line of standard input.
    monkeypatch.setattr("sys.stdin", io.StringIO("take three\nand more\n"))
    assert shown("edit", name)[1] == [f"edited {name}: take three"]
    assert call("show", name)[1]["data"]["text"] == "take three"
    assert b"plank" not in content(silo)


@pytest.mark.parametrize("typed", ["", "x" * 301, "a\x1b[2Jb"])
def test_a_text_that_is_none_is_refused(call, names, monkeypatch, typed):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed + "\n"))
    code, answer = call("edit", names["look first"])
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "memory_content")
    assert "1 to 300 characters" in answer["message"]
    # Nobody's message quotes what was typed.
    assert not typed or typed[:2] not in json.dumps(answer)
    assert call("show", names["look first"])[1]["data"]["text"] == "look first"


def test_where_a_run_protects_users_one_is_deleted_and_not_edited(call, names, silo):
    with Principles(silo / "evolve" / RUN / "principles.sqlite") as kept:
        kept.begin(6, apart=True)
    name = names["call zoe back"]
    code, answer = call("edit", name, "--text", "as bob said")
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "memory_content")
    assert "protects each user" in answer["message"]
    assert call("delete", name)[0] == Exit.OK


def test_what_is_deleted_is_gone(call, names, silo):
    name = names["look first"]
    assert call("delete", name)[1]["data"] == {"id": name, "run": RUN, "deleted": True}
    code, answer = call("delete", name)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "unknown_principle")
    assert answer["next_step"] == "chorale-silo principles list shows those that there are"
    assert len(call("list")[1]["data"]["principles"]) == 2
    assert b"look first" not in content(silo)


def test_one_of_two_runs_that_wrote_the_same_is_named_by_its_run(call, names, silo):
    other = "11bb11bb11bb11bb"
    shutil.copytree(silo / "evolve" / RUN, silo / "evolve" / other)
    name = names["look first"]
    for command in (("show", name), ("edit", name, "--text", "x"), ("delete", name)):
        code, answer = call(*command)
        assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "principle_of_several")
        assert RUN in answer["next_step"]
        assert other in answer["next_step"]
    assert call("edit", name, "--text", "mine", "--run", other)[1]["data"]["run"] == other
    assert call("show", name, "--run", RUN)[1]["data"]["text"] == "look first"
    assert call("delete", name, "--run", other)[0] == Exit.OK
    assert call("show", name)[1]["data"]["run"] == RUN


def test_a_subject_or_a_task_that_is_deleted_takes_its_principles_along(call, names, silo):
    call("edit", names["call zoe back"], "--text", "call her back")
    code, answer = call("delete", "--subject", "zoe", command="buffer")
    assert (code, answer["data"]["principles"], answer["data"]["deleted"]) == (Exit.OK, 1, 0)
    assert b"zoe" not in content(silo)
    assert b"call her back" not in content(silo)
    _, answer = call("delete", "--task", "room", "0", command="buffer")
    assert answer["data"]["principles"] == 1
    assert [row["text"] for row in call("list")[1]["data"]["principles"]] == ["take one plank"]


def test_leaving_with_wipe_takes_them_along(names, silo):
    assert "evolve" in wipe(silo, proofs=False).deleted
    assert not list(silo.rglob("principles.sqlite*"))


def test_while_a_daemon_runs_nothing_is_shown_or_touched(call, names, silo):
    ledger = os.open(silo / LEDGER_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
    before = content(silo)
    name = names["look first"]
    for command in (("list",), ("show", name), ("edit", name, "--text", "x"), ("delete", name)):
        code, answer = call(*command)
        assert (code, answer["error_code"]) == (Exit.SERVER, "daemon_running")
    os.close(ledger)
    assert content(silo) == before


def test_a_damaged_file_and_a_silo_without_any_are_said(call, shown, silo):
    assert call("list")[1]["data"] == {"principles": []}
    assert shown("list")[1] == ["no principles: no run here has a play that keeps some"]
    directory = silo / "evolve" / RUN
    directory.mkdir(parents=True)
    (directory / "principles.sqlite").write_bytes(b"not a database at all, but long" * 40)
    code, answer = call("list")
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "memory_corrupt")
