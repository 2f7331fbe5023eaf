"""Plays: which tries a task gets, what stands before them, and that their number never changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from dp.config import Mode
from evolution.part import Part
from evolution.parts.plays.episodes import values_of
from evolution.parts.plays.repair import suspected
from evolution.parts.telling import like, likeness
from evolution.trajectory import Ask, Group, Task
from federation.plan.methods import PARTS
from federation.plan.recipe import refusal
from tests.kit.evolution.plays import play_out, task, tried

PLAYS = [card.name for card in PARTS.values() if card.kind == "play"]
HELPED = [("hints", {}), ("retry", {}), ("retry", {"critique": True}), ("repair", {}),
          ("experience", {}), ("episodes", {}), ("principles", {})]  # fmt: skip


def made(name, **options):
    return Part.own(name, **options).make()


def fails(wish, number):
    return tried(wish, "look", f"push {number}")


def texts(wave):
    return [None if wish.scaffold is None else wish.scaffold.text for wish in wave]


@pytest.mark.parametrize(("name", "options"), HELPED)
@pytest.mark.parametrize("given", [1, 2, 5])
@pytest.mark.parametrize("solves", [True, False])
def test_a_task_has_as_many_tries_as_it_was_given(name, options, given, solves):
    tasks = [task(1), task(2)] * given
    stored = [tried(task(9), "open", "walk", solved=True)]

    def answer(wish, number):
        lost = wish.task_id == 2 and number == 0
        return None if lost else tried(wish, "look", f"push {number}", solved=solves)

    returned, waves = play_out(made(name, **options), tasks, answer, successes=stored)
    tries = Counter(wish.task_id for wave in waves for wish in wave if isinstance(wish, Task))
    assert tries == {1: given, 2: given}
    # What was lost is not returned, and nothing else is left out or there twice.
    assert len({id(one) for one in returned}) == len(returned) == 2 * given - 1


@pytest.mark.parametrize(("name", "options"), HELPED)
def test_with_nothing_to_help_with_or_nothing_to_help_every_try_is_plain(name, options):
    plain = [task(1)] * 4

    def solved(wish, number):
        return tried(wish, "open", solved=True)

    for answer, stored in ((solved, [tried(task(9), "open", solved=True)]), (fails, [])):
        if name in {"retry", "repair"} and answer is fails:
            # These help themselves with the failed tries.
            continue
        if name in {"experience", "episodes"} and stored:
            # These help unasked.
            continue
        _, waves = play_out(made(name, **options), plain, answer, successes=stored)
        tries = [wish for wave in waves for wish in wave if isinstance(wish, Task)]
        assert tries == plain
        assert all(wish.scaffold is None and not wish.prefix for wish in tries)


# Hints ----------------------------------------------------------------------------------------


def test_hints_grow_until_one_helps():
    way = tried(task(9), "open", "walk", "take", "back", solved=True)

    def answer(wish, number):
        return tried(wish, "x", solved=number == 3)

    tasks = [task(1)] * 6
    _, waves = play_out(made("hints", levels=3), tasks, answer, successes=[way])
    # Three plain; then ⌈4·1/4⌉ = 1 action, which solves it, and the rest plain again.
    assert [texts(wave) for wave in waves] == [[None] * 3, ["open"], [None] * 2]
    _, waves = play_out(made("hints", levels=3), tasks, fails, successes=[way])
    shown = ["open", "open\nwalk", "open\nwalk\ntake"]
    assert [texts(wave) for wave in waves] == [[None] * 3, *([text] for text in shown)]
    assert waves[1][0].scaffold.made_of == (way.conversation_sha256,)
    assert not waves[1][0].scaffold.stays
    _, waves = play_out(made("hints", stays=True), tasks, fails, successes=[way])
    assert waves[1][0].scaffold.stays


def test_a_hint_is_of_the_task_itself_or_else_of_the_likest_one():
    own = tried(task(1), "own", solved=True, saw="nothing in common")
    near = tried(task(8), "near", solved=True, saw="a red window")
    far = tried(task(9), "far", solved=True, saw="some blue tree")
    for stored, first in (([far, near, own], "own"), ([far, near], "near"), ([far], "far")):
        _, waves = play_out(made("hints", levels=1), [task(1)] * 2, fails, successes=stored)
        assert texts(waves[1]) == [first]


# What scaffolds are made of -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hints", "experience", "episodes"])
def test_nobodys_tries_help_at_a_task_of_another_subject(name):
    stored = [
        tried(task(7, subject="ann"), "hers", solved=True),
        tried(task(8), "nobodys", solved=True),
        tried(Task(environment="elsewhere", task_id=3, subject="bob"), "elsewhere", solved=True),
    ]
    tasks = [task(1, subject="bob")] * 4
    options = {"floor": 0.0} if name == "episodes" else {}
    _, waves = play_out(made(name, **options), tasks, fails, successes=stored)
    assert all(wish.scaffold is None for wave in waves for wish in wave)
    his = tried(task(9, subject="bob"), "his", solved=True)
    _, waves = play_out(made(name, **options), tasks, fails, successes=[*stored, his])
    assert "his" in texts(waves[-1])[-1]


def test_likeness_is_the_share_of_words_in_common():
    assert likeness("a red door", "A red window") == pytest.approx(2 / 4)
    assert likeness("a a a", "a") == 1.0
    assert likeness("", "") == 1.0
    assert likeness("a", "") == 0.0


def test_the_order_of_sources_does_not_depend_on_the_order_they_come_in():
    stored = [tried(task(n), *["go"] * n, solved=True, saw="a red door") for n in (3, 2, 5)]
    try_ = tried(task(1), "x")
    found = [one.task.task_id for _, one in like(try_, stored)]
    assert found == [one.task.task_id for _, one in like(try_, stored[::-1])] == [2, 3, 5]


# Retries --------------------------------------------------------------------------------------


def test_a_retry_reads_the_last_failed_tries_and_what_the_model_says_of_them():
    _, waves = play_out(made("retry", attempts=2, critique=True), [task(1)] * 5, fails)
    first, asked, late = waves
    assert texts(first) == [None] * 2
    (question,) = asked
    assert isinstance(question, Ask)
    assert question.max_new_tokens == 64
    tries = [f"a red door\n> look\nturn 1\n> push {n}\nthe end" for n in (0, 1)]
    assert question.text == "\n\n".join(tries)
    assert texts(late) == ["\n\n".join([*tries, "do better"])] * 3
    assert late[0].scaffold.made_of == tuple(
        tried(task(1), "look", f"push {n}").conversation_sha256 for n in (0, 1)
    )


def test_without_a_critique_the_model_is_not_asked():
    _, waves = play_out(made("retry"), [task(1)] * 4, fails)
    assert [len(wave) for wave in waves] == [2, 2]
    assert texts(waves[1]) == ["a red door\n> look\nturn 1\n> push 1\nthe end"] * 2


def test_a_model_that_says_nothing_leaves_the_try_alone():
    _, waves = play_out(made("retry", critique=True), [task(1)] * 2, fails, words="")
    assert texts(waves[-1]) == ["a red door\n> look\nturn 1\n> push 0\nthe end"]


# Repairs --------------------------------------------------------------------------------------


def test_a_repair_goes_on_before_the_first_action_that_could_not_be_read():
    def answer(wish, number):
        return tried(wish, "open", "walk", "mumble", "take", invalid=(2, 3))

    _, waves = play_out(made("repair"), [task(1)] * 4, answer)
    assert [wish.prefix for wish in waves[0]] == [(), ()]
    assert [wish.prefix for wish in waves[1]] == [("open", "walk")] * 2


def test_else_each_step_is_as_likely():
    rng = np.random.default_rng(3)
    found = Counter(suspected(tried(task(1), "a", "b", "c"), rng) for _ in range(3000))
    # 5 standard deviations of a binomial with n = 3000, p = 1/3.
    assert all(abs(found[step] - 1000) < 5 * (3000 * 2 / 9) ** 0.5 for step in range(3))


def test_a_prefix_grows_out_of_the_try_that_it_repairs():
    start = Task(environment="room", task_id=1, prefix=("in",))

    def answer(wish, number):
        return tried(wish, "open", "mumble", invalid=(1,))

    _, waves = play_out(made("repair"), [start] * 2, answer)
    assert waves[1][0].prefix == ("in", "open")


# Experience and episodes ----------------------------------------------------------------------


def test_half_of_the_tries_read_the_likest_success():
    near = tried(task(8), "near", solved=True, saw="a red window")
    far = tried(task(9), "far", solved=True, saw="some blue tree")
    _, waves = play_out(made("experience"), [task(1)] * 5, fails, successes=[far, near])
    assert texts(waves[0]) == [None] * 2
    assert texts(waves[1]) == ["a red window\n> near\nthe end"] * 3


def test_a_value_moves_to_what_it_helped_with():
    def group(round_index, *tries):
        return Group(task=task(1), round=round_index, trajectories=tries)

    groups = [
        group(2, tried(task(1), "c", solved=True, round_index=2, helped_by=("p", "q"))),
        group(1, tried(task(1), "a", solved=False, round_index=1, helped_by=("p",))),
        group(3, tried(task(1), "d", solved=True, round_index=3)),
    ]
    # p: 0 − .3, then −.3 + .3·1.3; q: .3.
    assert values_of(groups, rate=0.3) == pytest.approx({"p": 0.09, "q": 0.3})


def test_episodes_are_chosen_by_value_above_the_floor():
    low, high, far = (
        tried(task(n), word, solved=True, saw=saw)
        for n, word, saw in ((7, "low", "a red door"), (8, "high", "a red gate"),
                             (9, "far", "some blue tree"))
    )  # fmt: skip
    helped = tried(task(2), "x", solved=True, helped_by=(high.conversation_sha256,))
    hurt = tried(task(3), "x", helped_by=(low.conversation_sha256,))
    groups = [Group(task=one.task, round=1, trajectories=(one,)) for one in (helped, hurt)]
    _, waves = play_out(
        made("episodes", count=2, explore=0.0), [task(1)] * 2, fails,
        successes=[low, high, far], groups=groups,
    )  # fmt: skip
    assert texts(waves[1]) == ["a red gate\n> high\nthe end\n\na red door\n> low\nthe end"]
    assert waves[1][0].scaffold.made_of == (high.conversation_sha256, low.conversation_sha256)
    # Without values the likest comes first.
    _, waves = play_out(
        made("episodes", count=1, explore=0.0), [task(1)] * 2, fails, successes=[high, low]
    )
    assert texts(waves[1]) == ["a red door\n> low\nthe end"]


def test_now_and_then_others_are_chosen():
    stored = [tried(task(n), f"way {n}", solved=True) for n in range(10, 20)]
    found = Counter()
    for seed in range(40):
        _, waves = play_out(
            made("episodes", count=1, explore=1.0), [task(1)] * 2, fails, successes=stored,
            seed=seed,
        )  # fmt: skip
        found[texts(waves[1])[0]] += 1
    assert len(found) > 5


# Cards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hints", "experience", "episodes", "principles"])
def test_plays_that_look_at_other_tasks_need_the_user_as_unit(name):
    card = PARTS[name]
    said = refusal(card, Mode.RECORD_LOCAL, "task")
    assert said is not None
    assert "couples 'user'" in said
    assert refusal(card, Mode.RECORD_LOCAL, "user") is None
    assert refusal(card, Mode.SILO, "task") is None


@pytest.mark.parametrize("name", ["retry", "repair"])
def test_plays_of_one_task_run_at_record_level(name):
    assert refusal(PARTS[name], Mode.RECORD_DISTRIBUTED, "task") is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hints", {"levels": 0}),
        ("retry", {"attempts": 3}),
        ("retry", {"critique_tokens": 513}),
        ("episodes", {"rate": 0.0}),
        ("episodes", {"floor": 1.5}),
        ("repair", {"anything": 1}),
        ("principles", {"count": 9}),
        ("principles", {"alike": 0.0}),
        ("principles", {"questions": 0}),
        ("principles", {"tokens": 513}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(ValidationError):
        Part.own(name, **options)
