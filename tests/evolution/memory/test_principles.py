"""Principles that are kept: what a round counts, caps and age, and what the operator may do."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from evolution.errors import MemoryContentError, MemoryCorruptError
from evolution.memory.principles import Principles
from evolution.principle import Again, Learned, Used, one_line
from evolution.trajectory import Task
from tests.kit.evolution.plays import task, tried

DAY_S = 86_400


@pytest.fixture
def path(tmp_path):
    return tmp_path / "principles.sqlite"


def learned(text, number=1, subject="", more=()):
    source = tried(task(number, subject=subject), f"push {number}")
    return Learned(text=text, sources=(source, *more))


def wrote(kept, round_index, *notes, apart=False):
    """A round from its beginning; what is there afterwards, by text."""
    kept.begin(round_index, apart=apart)
    kept.note(notes, round_index=round_index)
    return {one.text: one for one in kept.listed()}


def test_a_principle_is_what_was_written_of_which_tries_and_what_came_of_it(path):
    with Principles(path) as kept:
        first = learned("look first", subject="zoe", more=[tried(task(2, subject="zoe"), "x")])
        one = wrote(kept, 3, first)["look first"]
        assert (one.environment, one.subject, one.round) == ("room", "zoe", 3)
        assert (one.uses, one.successes, one.score, one.edited) == (0, 0, 0.5, False)
        assert one.made_of == tuple(source.conversation_sha256 for source in first.sources)
        kept.begin(4)
        again = tried(task(3, subject="zoe"), "y")
        won, fell = Used(principle=one.id, success=True), Used(principle=one.id, success=False)
        kept.note([won, won, fell, Again(principle=one.id, source=again)], round_index=4)
        now = kept.get(one.id)
        # (2 + 1) / (3 + 2).
        assert (now.uses, now.successes, now.score) == (3, 2, 0.6)
        assert now.made_of == (*one.made_of, again.conversation_sha256)
        assert (now.text, now.round) == ("look first", 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Principles(path) as kept:
        assert kept.listed() == [now]


def test_the_best_come_first_and_of_equals_the_older(path):
    with Principles(path) as kept:
        wrote(kept, 1, learned("old", 1), learned("bad", 2), learned("good", 3))
        found = wrote(kept, 2, learned("new", 4))
        good = Used(principle=found["good"].id, success=True)
        bad = Used(principle=found["bad"].id, success=False)
        kept.note([good, bad], round_index=2)
        assert [one.text for one in kept.listed()] == ["good", "old", "new", "bad"]


# A round that is begun again ------------------------------------------------------------------


def test_a_round_that_is_begun_again_counts_once_and_reads_the_same(path):
    with Principles(path) as kept:
        stays = wrote(kept, 1, learned("stays", 1))["stays"].id
        kept.begin(2)
        kept.note([Used(principle=stays, success=True)], round_index=2)
        kept.begin(3)
        before = kept.listed()
        notes = [
            learned("new", 2),
            Used(principle=stays, success=True),
            Used(principle=stays, success=False),
            Again(principle=stays, source=tried(task(5), "z")),
        ]
        kept.note(notes, round_index=3)
        after = kept.listed()
        assert (kept.get(stays).uses, kept.get(stays).successes) == (3, 2)
        for _ in range(2):
            kept.begin(3)
            assert kept.listed() == before
            kept.note(notes, round_index=3)
            assert kept.listed() == after
        # What the repetition does not say any more is gone.
        kept.begin(3)
        kept.note([Used(principle=stays, success=False)], round_index=3)
        assert [(one.text, one.uses, one.successes) for one in kept.listed()] == [("stays", 2, 1)]
    with Principles(path) as kept:
        kept.begin(3)
        assert kept.listed() == before


def test_a_run_that_is_set_back_forgets_the_rounds_after(path):
    with Principles(path) as kept:
        wrote(kept, 1, learned("one", 1))
        wrote(kept, 2, learned("two", 2))
        wrote(kept, 3, learned("three", 3))
        assert wrote(kept, 2).keys() == {"one"}


def test_notes_of_a_play_are_kept_all_or_none(path):
    with Principles(path) as kept:
        kept.begin(1)
        for bad in (
            learned("a\nb"),
            learned(""),
            learned("x" * 301),
            learned("mixed", 1, subject="ann", more=[tried(task(2, subject="bob"), "x")]),
        ):
            with pytest.raises(MemoryContentError):
                kept.note([learned("fine"), bad], round_index=1)
        assert kept.listed() == []
        # What is no more is no reason to lose the rest.
        gone = [Used(principle="gone", success=True), Again(principle="gone", source=tried(task()))]
        kept.note([*gone, learned("x" * 300)], round_index=1)
        assert len(kept) == 1


# Caps and age ---------------------------------------------------------------------------------


def test_above_the_cap_the_lowest_score_goes_first_and_of_equals_the_oldest(path):
    with Principles(path, most=2) as kept:
        found = wrote(kept, 1, learned("good", 1), learned("old", 2))
        kept.begin(2)
        notes = [Used(principle=found["good"].id, success=True), learned("new", 3)]
        kept.note(notes, round_index=2)
        # Not yet: what a round reads may not depend on whether it was begun before.
        assert len(kept) == 3
        kept.begin(2)
        assert {one.text for one in kept.listed()} == {"good", "old"}
        kept.note(notes, round_index=2)
        assert wrote(kept, 3).keys() == {"good", "new"}


def test_a_round_writes_no_more_than_the_cap(path):
    with Principles(path, most=2) as kept:
        found = wrote(kept, 1, *(learned(f"text {n}", n) for n in range(5)))
        assert found.keys() == {"text 0", "text 1"}


def test_one_subject_pushes_out_nothing_of_another(path):
    with Principles(path, most=1) as kept:
        wrote(kept, 1, learned("of ann", 1, "ann"), learned("of nobody", 1))
        many = [learned(f"of bob {n}", n, "bob") for n in range(3)]
        assert wrote(kept, 2, *many).keys() == {"of ann", "of nobody", "of bob 0"}
        assert wrote(kept, 3, learned("newer", 9, "bob")).keys() >= {"of ann", "of nobody"}
        assert wrote(kept, 4).keys() == {"of ann", "of nobody", "newer"}


def test_what_the_operator_wrote_is_not_pushed_out(path):
    with Principles(path, most=1) as kept:
        one = wrote(kept, 1, learned("the model's", 1))["the model's"]
        kept.edit(one.id, "mine")
        kept.note([Used(principle=one.id, success=False)] * 9, round_index=1)
        assert wrote(kept, 2, learned("better", 2)).keys() == {"mine", "better"}
        assert wrote(kept, 3).keys() == {"mine"}


def test_nothing_is_older_than_its_age(path):
    now = [1000 * DAY_S]
    with Principles(path, max_age_days=10, clock=lambda: now[0]) as kept:
        wrote(kept, 1, learned("old", 1))
        now[0] += 6 * DAY_S
        found = wrote(kept, 2, learned("young", 2), learned("changed", 3))
        now[0] += 5 * DAY_S
        kept.edit(found["changed"].id, "mine")
        # It is looked at when exploring begins.
        assert len(kept) == 3
        assert wrote(kept, 3).keys() == {"young", "mine"}
        now[0] += 6 * DAY_S
    with Principles(path, max_age_days=10, clock=lambda: now[0]) as kept:
        assert [one.text for one in kept.listed()] == ["mine"]
        now[0] += 5 * DAY_S
        assert wrote(kept, 4) == {}
    assert b"mine" not in path.read_bytes()


@pytest.mark.parametrize("bad", [{"most": 0}, {"max_age_days": 0}])
def test_there_is_room_for_one_and_for_a_day(path, bad):
    with pytest.raises(MemoryContentError):
        Principles(path, **bad)


# The operator ---------------------------------------------------------------------------------


def test_an_edit_is_marked_counts_anew_and_outlives_the_round_again(path):
    with Principles(path) as kept:
        note = learned("the model's", 1)
        one = wrote(kept, 1, note)["the model's"]
        kept.note([Used(principle=one.id, success=True)], round_index=1)
        assert kept.edit(one.id, "mine")
        assert not kept.edit("nothing", "mine")
        edited = kept.get(one.id)
        assert (edited.text, edited.edited, edited.uses, edited.score) == ("mine", True, 0, 0.5)
        assert edited.made_of == one.made_of
        # Its round is begun again, and says what it said.
        assert wrote(kept, 1, note) == {"mine": edited}
        for bad in ("", " x", "a\nb", "a\x1b[2J", "x" * 301):
            with pytest.raises(MemoryContentError, match="1 to 300 characters"):
                kept.edit(one.id, bad)


def test_where_units_are_protected_nothing_is_edited(path):
    with Principles(path) as kept:
        one = wrote(kept, 1, learned("of ann", 1, "ann"), apart=True)["of ann"]
        assert kept.apart
    with Principles(path) as kept:
        # The file knows it, whoever opens it.
        with pytest.raises(MemoryContentError, match="protects each user"):
            kept.edit(one.id, "like bob's")
        assert kept.get(one.id) == one
        assert kept.delete(one.id)


def test_what_is_deleted_is_overwritten(path):
    with Principles(path) as kept:
        found = wrote(
            kept, 1,
            learned("secret of zoe", 1, "zoe"),
            learned("secret of task seven", 7),
            learned("secret that went", 2),
            learned("stays", 3),
        )  # fmt: skip
        seventh = tried(task(7), "again")
        kept.note([Again(principle=found["secret that went"].id, source=seventh)], round_index=1)
        with pytest.raises(MemoryContentError):
            kept.delete_subject("")
        assert kept.delete_subject("zoe") == 1
        assert kept.delete_subject("zoe") == 0
        # The like of one was written of the task, so it goes as well.
        assert kept.delete_task(Task(environment="elsewhere", task_id=7)) == 0
        assert kept.delete_task(task(7)) == 2
        assert kept.delete(found["stays"].id)
        assert not kept.delete(found["stays"].id)
        assert kept.listed() == []
    content = path.read_bytes()
    for word in (b"secret", b"zoe", b"stays", seventh.conversation_sha256.encode()):
        assert word not in content


# Units apart ----------------------------------------------------------------------------------


def of_ann(path, order):
    """What ann's tries read after two rounds, and what is kept of her, for an order of users."""
    with Principles(path, most=2) as kept:
        for round_index in (1, 2):
            kept.begin(round_index, apart=True)
            for subject in order:
                own = kept.listed(subject=subject, rows_apart=True)
                notes = [Used(principle=one.id, success=True) for one in own[:1]]
                new = [learned(f"{subject} {round_index} {n}", n, subject) for n in range(3)]
                kept.note([*notes, *new], round_index=round_index)
        kept.begin(3, apart=True)
        return kept.listed(subject="ann", rows_apart=True)


def test_removing_a_user_changes_nothing_of_anothers(tmp_path):
    found = [
        of_ann(tmp_path / f"{number}.sqlite", order)
        for number, order in enumerate((["ann", "bob", "cid"], ["ann"], ["cid", "bob", "ann"]))
    ]
    assert found[0] == found[1] == found[2]
    first, second = found[0]
    assert (first.text, first.uses) == ("ann 1 0", 1)
    assert second.text in {"ann 2 0", "ann 2 1"}


def test_a_row_that_cannot_be_read_costs_no_other_user_his(path):
    with Principles(path) as kept:
        wrote(kept, 1, learned("of ann", 1, "ann"), learned("of bob", 2, "bob"))
        meddler = sqlite3.connect(path)
        with meddler:
            meddler.execute("UPDATE principle SET text = CAST(x'ff' AS TEXT) WHERE subject = 'bob'")
        meddler.close()
        assert [one.text for one in kept.listed(subject="ann", rows_apart=True)] == ["of ann"]
        assert kept.listed(subject="bob", rows_apart=True) == []
        with pytest.raises(MemoryCorruptError):
            kept.listed()


# Files ----------------------------------------------------------------------------------------


def test_what_is_no_file_of_principles_is_refused(path, tmp_path):
    path.write_bytes(b"not a database at all, but long enough" * 40)
    with pytest.raises(MemoryCorruptError):
        Principles(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as made:
        made.execute("CREATE TABLE theirs (a)")
    made.close()
    with pytest.raises(MemoryCorruptError):
        Principles(other)


def test_a_file_is_its_owners_alone_whatever_the_umask(path: Path):
    before = os.umask(0)
    try:
        Principles(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_text_is_one_line_that_can_be_printed():
    assert one_line("  a\nb\x1b[2Jc\u202e \t d ") == "a b [2Jc d"
    assert one_line("\ud800\n") == ""
    assert one_line("word " * 100) == ("word " * 60).strip()
