"""The play ``principles``: what is read, what is counted, of what the model is asked, what is new.

That a task keeps its number of tries is in test_plays.py; what is kept of notes in
tests/evolution/memory/test_principles.py.
"""

from __future__ import annotations

import pytest

from evolution.part import Part
from evolution.parts.seam import MemoryView
from evolution.principle import Again, Learned, Principle, Used
from evolution.trajectory import Ask, Task
from tests.kit.evolution.plays import play_out, task, tried


def principle(name, text, *, uses=0, successes=0, number=1, subject="", edited=False, of=()):
    return Principle(
        id=name, environment="room", subject=subject, text=text, round=number, uses=uses,
        successes=successes, made_of=of, edited=edited,
    )  # fmt: skip


def even(wish, number):
    """The tries 0, 2, … succeed."""
    return tried(wish, f"push {number}", solved=number % 2 == 0)


def played(tasks, answer=even, **given):
    options = given.pop("options", {})
    noted = []
    _, waves = play_out(
        Part.own("principles", **options).make(), tasks, answer, noted=noted, **given
    )
    return waves, noted


def texts(wave):
    return [None if wish.scaffold is None else wish.scaffold.text for wish in wave]


def kinds(noted, kind):
    return [one for one in noted if isinstance(one, kind)]


def test_the_second_half_reads_those_of_the_highest_score_and_of_equals_the_older():
    stored = [
        principle("f", "young", number=2),  # 1/2
        principle("a", "never", uses=4),  # 1/6
        principle("b", "always", uses=1, successes=1, of=("x", "y")),  # 2/3
        principle("e", "old", number=1, of=("y", "z")),  # 1/2
        principle("c", "mostly", uses=7, successes=5),  # 6/9, and older than none
    ]
    waves, _ = played([task(1)] * 5, principles=stored)
    read = "Keep in mind:\n- always\n- mostly\n- old"
    assert [texts(wave) for wave in waves[:2]] == [[None] * 2, [read] * 3]
    helped = waves[1][0].scaffold
    assert helped.made_of == ("x", "y", "z")
    assert not helped.stays
    waves, _ = played([task(1)] * 2, principles=stored, options={"count": 1})
    assert texts(waves[1]) == ["Keep in mind:\n- always"]


def test_a_use_is_each_try_that_read_it_and_ended():
    stored = [principle("a", "first"), principle("b", "second")]

    def answer(wish, number):
        return None if number == 4 else tried(wish, f"push {number}", solved=number in {1, 5})

    _, noted = played([task(1)] * 6, answer, principles=stored)
    # Tries 0 to 2 are plain, though one of them succeeds; 3 fails, 4 is lost, 5 succeeds.
    expected = [Used(principle=name, success=success) for name in "ab" for success in (False, True)]
    assert kinds(noted, Used) == expected


def test_nobodys_principles_are_read_at_a_task_of_another_subject():
    stored = [
        principle("a", "of ann", subject="ann"),
        principle("n", "of nobody"),
        Principle(id="e", environment="elsewhere", subject="bob", text="far", round=1),
    ]
    tasks = [task(1, subject="bob")] * 2
    waves, noted = played(tasks, principles=stored)
    assert texts(waves[1]) == [None]
    assert not kinds(noted, Used)
    waves, _ = played(tasks, principles=[*stored, principle("b", "of bob", subject="bob")])
    assert texts(waves[1]) == ["Keep in mind:\n- of bob"]


# Writing --------------------------------------------------------------------------------------


def test_the_model_is_asked_of_the_shortest_success_and_of_the_last_failure_of_a_task():
    def answer(wish, number):
        actions = (("open", "walk"), ("open",), ("fall",), ("stumble",))[number]
        return tried(wish, *actions, solved=number < 2)

    waves, _ = played([task(1)] * 4 + [task(2)], answer, options={"tokens": 20})
    asked = waves[-1]
    assert all(isinstance(one, Ask) and one.max_new_tokens == 20 for one in asked)
    assert [one.text for one in asked] == [
        "a red door\n> open\nthe end",
        "a red door\n> stumble\nthe end",
        "a red door\n> open\nturn 1\n> walk\nthe end",
    ]
    assert ["succeeded" in one.instruction for one in asked] == [True, False, True]
    assert ["failed" in one.instruction for one in asked] == [False, True, False]


def test_no_more_questions_than_the_plan_allows():
    waves, noted = played([task(1)] * 2 + [task(2)] * 2, options={"questions": 3})
    assert len(waves[-1]) == 3
    # All answers are alike: one principle, of three tries.
    (one,) = kinds(noted, Learned)
    assert [source.task.task_id for source in one.sources] == [1, 1, 2]


def test_nothing_is_asked_where_nothing_ended():
    waves, noted = played([task(1)] * 2, lambda wish, number: None)
    assert all(isinstance(wish, Task) for wave in waves for wish in wave)
    assert noted == []


@pytest.mark.parametrize(("shared", "same"), [(17, True), (16, False)])
def test_what_is_alike_is_one_that_there_is(shared, same):
    """Of 20 words 17 in common are a likeness of 0.85, and 16 one of 0.80."""
    stored = principle("a", " ".join(f"w{n}" for n in range(20)))
    said = " ".join(f"W{n}" for n in range(shared))
    _, noted = played([task(1)], principles=[stored], words=said)
    (one,) = noted
    source = tried(task(1), "push 0", solved=True)
    assert one == (
        Again(principle="a", source=source) if same else Learned(text=said, sources=(source,))
    )


def test_the_likest_is_the_one():
    stored = [principle("a", "open the red door"), principle("b", "open the big red door")]
    _, noted = played(
        [task(1)], principles=stored, words="open the big red door", options={"alike": 0.5}
    )
    assert [one.principle for one in noted] == ["b"]


def test_what_the_operator_wrote_is_never_added_to_nor_written_again():
    stored = [principle("a", "open the door", edited=True)]
    _, noted = played([task(1)], principles=stored, words="Open the door")
    assert noted == []
    # It is read and counted like any other.
    waves, noted = played([task(1)] * 2, principles=stored, words="open the door")
    assert texts(waves[1]) == ["Keep in mind:\n- open the door"]
    assert kinds(noted, Used) == [Used(principle="a", success=False)]


def test_what_is_alike_of_another_subject_or_environment_is_another_one():
    stored = [
        principle("a", "open the door", subject="ann"),
        Principle(id="e", environment="elsewhere", subject="", text="open the door", round=1),
    ]
    _, noted = played([task(1), task(2, subject="bob")], principles=stored, words="open the door")
    assert [one.sources[0].task.subject for one in kinds(noted, Learned)] == ["", "bob"]


def test_a_text_is_one_line_cut_at_its_length_and_silence_is_none():
    answers = iter(["first,\nthen\x1b second " + "on " * 200, " \n "])
    _, noted = played([task(1), task(2)], words=lambda _: next(answers))
    (one,) = noted
    assert one.text == ("first, then second " + "on " * 200)[:300].strip()


def test_a_view_that_is_shut_shows_and_takes_nothing():
    view = MemoryView(
        successes=lambda _: (), groups=lambda: (), principles=lambda: (principle("a", "x"),)
    )
    view.note(Used(principle="a", success=True))
    assert view.principles() == ()
    with view.opened():
        assert len(view.principles()) == 1
        view.note(Used(principle="a", success=True))
    view.note(Used(principle="a", success=False))
    assert view.noted == [Used(principle="a", success=True)]
