"""A process beside this one: whatever its code does, the parent gets an answer or a typed error."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from evolution.envs.foreign.child import Child, Children, Role, children_of
from evolution.errors import (
    EnvironmentSetupError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)

ROLE = Role(module="tests.kit.evolution.child_roles", file_bytes=1_000)


@pytest.fixture
def child():
    made = Child(ROLE)
    yield made
    made.close()


@pytest.fixture
def children():
    made = Children(ROLE)
    yield made
    made.close()


def until(true):
    end_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def ask(child: Child, do: str, *, timeout_s: float = 60.0, **more: object):
    return child.ask({"do": do, **more}, timeout_s=timeout_s)


def test_one_process_answers_in_order(child):
    assert ask(child, "echo", text="crème\n{}") == "crème\n{}"
    assert ask(child, "echo", text="\ud800") == "?"
    assert ask(child, "count") == 3


def test_what_it_prints_is_no_answer(child):
    assert ask(child, "print", text="asked for") == "asked for"
    assert ask(child, "echo", text="next") == "next"


@pytest.mark.parametrize(
    ("do", "error"),
    [
        ("die", ForeignUnreachableError),
        ("hang", ForeignTimeoutError),
        ("talk", ForeignReplyError),
        ("unjson", ForeignUnreachableError),
    ],
)
def test_after_a_failure_the_next_question_has_another_process(child, do, error):
    ask(child, "count")
    with pytest.raises(error):
        ask(child, do, timeout_s=2.0)
    assert ask(child, "count") == 1


@pytest.mark.parametrize(("do", "error"), [("raise", "KeyError"), ("fill", "MemoryError")])
def test_an_exception_costs_one_answer_and_says_nothing_of_the_package(child, do, error):
    with pytest.raises(ForeignReplyError, match="raised an exception") as raised:
        ask(child, do, text="secret")
    assert "secret" not in str(raised.value)
    assert error not in str(raised.value)
    assert ask(child, "count") == 2


def test_what_does_not_fit_the_operators_table_is_said(child):
    with pytest.raises(EnvironmentSetupError, match="no such generator"):
        ask(child, "setup", text="no such generator")


def test_it_knows_nothing_of_the_daemons_environment(child, monkeypatch):
    monkeypatch.setenv("CHORALE_SILO_SECRET", "x")
    found = ask(child, "surround")
    assert found["PYTHONHASHSEED"] == "0"
    assert "CHORALE_SILO_SECRET" not in found
    assert "HOME" not in found


def test_files_are_bounded(child, tmp_path):
    path = tmp_path / "written"
    assert ask(child, "write", path=str(path), size=1_000) == 1_000
    with pytest.raises(ForeignReplyError):
        ask(child, "write", path=str(path), size=1_001)


def test_what_a_late_child_started_is_killed_with_it(child):
    started = ask(child, "start")
    with pytest.raises(ForeignTimeoutError):
        ask(child, "hang", timeout_s=0.2)
    until_s = time.monotonic() + 20
    while _runs(started) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not _runs(started)


def test_a_module_that_cannot_be_imported_is_named():
    child = Child(Role(module="nobody_at_all.x", file_bytes=0))
    with pytest.raises(EnvironmentSetupError, match="nobody_at_all"):
        child.ask({}, timeout_s=1.0)
    child.close()


def test_whoever_asks_while_another_answer_is_awaited_gets_a_child_that_is_free(tmp_path, children):
    asked, go_on = tmp_path / "asked", tmp_path / "go on"
    question = {"do": "await", "asked": str(asked), "path": str(go_on)}
    late = threading.Thread(target=lambda: children.ask(question, timeout_s=120.0))
    late.start()
    until(asked.exists)
    assert children.ask({"do": "count"}, timeout_s=60.0) == 1
    assert late.is_alive()
    go_on.touch()
    late.join()
    assert children.ask({"do": "count"}, timeout_s=60.0) == 2


def test_nobody_waits_until_another_child_stands_in_for_a_lost_one(children):
    """The question after a lost child goes to one that was started before it was lost."""
    children.ask({"do": "count"}, timeout_s=60.0)
    for _ in range(2):
        children._next.join()
        with pytest.raises(ForeignTimeoutError):
            children.ask({"do": "hang"}, timeout_s=0.2)
        lost_s = time.time()
        assert children.ask({"do": "since"}, timeout_s=60.0) < lost_s


def test_a_child_whose_parent_is_gone_works_no_longer_than_an_answer_may_take(child):
    work_s, _ = ask(child, "limit")
    assert 600 <= work_s <= 660


def test_there_is_one_set_of_children_of_a_role():
    assert children_of(ROLE) is children_of(Role(module=ROLE.module, file_bytes=ROLE.file_bytes))
    assert children_of(ROLE) is not children_of(Role(module=ROLE.module, file_bytes=0))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that nobody has waited for yet has ended all the same.
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
