"""What an operator says about runs: durable, for one plan, heard by other processes, never lost."""

import multiprocessing
import os
from dataclasses import replace

import pytest

from silo_agent.errors import LocalStoreError
from silo_agent.policy.approvals import APPROVALS_FILE, Approvals, Standing, Word, operating_user

PLAN, OTHER = bytes([1]) * 32, bytes([2]) * 32


def word(*, approved=True, run="run-1", plan=PLAN, at=100):
    return Word(run_id=run, plan_sha256=plan, approved=approved, by="ada", at_unix_s=at)


def test_without_a_word_the_policy_decides(tmp_path):
    said = Approvals(tmp_path)
    assert said.standing("run-1", PLAN, manual=True) is Standing.PENDING
    assert said.standing("run-1", PLAN, manual=False) is Standing.OPEN
    assert said.words() == ()
    # Looking leaves nothing behind.
    assert list(tmp_path.iterdir()) == []


def test_an_approval_is_for_one_plan_of_one_run(tmp_path):
    Approvals(tmp_path).say(word())
    said = Approvals(tmp_path)
    assert said.standing("run-1", PLAN, manual=True) is Standing.APPROVED
    assert said.standing("run-1", OTHER, manual=True) is Standing.PENDING
    assert said.standing("run-2", PLAN, manual=True) is Standing.PENDING
    assert said.about("run-1") == word()


def test_a_refusal_is_for_every_plan_wins_over_auto_and_over_an_older_approval(tmp_path):
    said = Approvals(tmp_path)
    said.say(word())
    said.say(word(approved=False, at=101))
    for manual in (True, False):
        assert said.standing("run-1", PLAN, manual=manual) is Standing.REFUSED
        assert said.standing("run-1", OTHER, manual=manual) is Standing.REFUSED
    said.say(word(at=102))
    assert said.standing("run-1", PLAN, manual=False) is Standing.APPROVED
    # The refusal still stands for every plan that was not approved after it.
    assert said.standing("run-1", OTHER, manual=False) is Standing.REFUSED


def test_a_reader_hears_what_another_object_says_without_being_made_anew(tmp_path):
    daemon, command = Approvals(tmp_path), Approvals(tmp_path)
    assert daemon.standing("run-1", PLAN, manual=True) is Standing.PENDING
    command.say(word())
    assert daemon.standing("run-1", PLAN, manual=True) is Standing.APPROVED
    command.say(word(approved=False))
    assert daemon.standing("run-1", PLAN, manual=True) is Standing.REFUSED


def test_a_line_that_a_crash_cut_short_is_dropped_and_the_next_word_is_whole(tmp_path):
    said = Approvals(tmp_path)
    said.say(word())
    with (tmp_path / APPROVALS_FILE).open("ab") as file:
        file.write(word(approved=False).to_line()[:-7])
    assert said.standing("run-1", PLAN, manual=True) is Standing.APPROVED
    said.say(word(run="run-2"))
    assert [one.run_id for one in said.words()] == ["run-1", "run-2"]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"approved",
        b'{"run":"run-1","plan_sha256":"00","approved":true,"by":"x","at_unix_s":1}',
        word().to_line().replace(b"true", b'"yes"'),
        word().to_line().replace(b'"by"', b'"of"'),
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_approves_nothing_and_takes_no_word(tmp_path, line):
    said = Approvals(tmp_path)
    said.say(word())
    with (tmp_path / APPROVALS_FILE).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(LocalStoreError, match="line 2"):
        said.standing("run-1", PLAN, manual=False)
    with pytest.raises(LocalStoreError, match="line 2"):
        said.say(word())


def test_a_file_that_others_made_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / APPROVALS_FILE).symlink_to(elsewhere)
    with pytest.raises(LocalStoreError):
        Approvals(tmp_path).say(word())
    assert not elsewhere.exists()


def _say_many(directory, name, count):
    for number in range(count):
        Approvals(directory).say(word(run=f"{name}-{number}"))


def test_processes_take_turns_and_lose_no_word(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_say_many, args=(tmp_path, f"run-{k}", 20)) for k in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    said = Approvals(tmp_path).words()
    assert len(said) == len({one.run_id for one in said}) == 60


def test_the_file_is_the_daemons_alone_and_the_user_is_the_systems(tmp_path, monkeypatch):
    Approvals(tmp_path).say(word())
    assert (tmp_path / APPROVALS_FILE).stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert operating_user() != "somebody-else"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert operating_user() == "uid 4000000000"
    assert replace(word(), by=operating_user()).by.startswith("uid")
