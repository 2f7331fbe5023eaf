"""Desk: the state decides, each department has its own way, and no split has another's words."""

from itertools import combinations

import pytest

from evolution.envs import EpisodeStateError, Split, make
from evolution.envs.builtin.desk.desk import Desk, LongDesk, names_of
from evolution.envs.builtin.words.words import forms
from evolution.rollout.conversation import MAX_EXAMPLES

DEPARTMENTS = ("calendar", "mail", "files", "orders")
OWN = {"book", "calendar", "folder"}
VERBS = {"calendar": "book", "mail": "answer", "files": "delete", "orders": "order"}


def tasks(department, split=Split.TRAIN, count=40):
    desk = Desk()
    first = desk.labels.index(department)
    return desk.task_ids(split)[first : first + len(DEPARTMENTS) * count : len(DEPARTMENTS)]


def opened(desk, task_id):
    """What is shown once the place that is asked for is open; place, entries and wish."""
    desk.reset(task_id)
    place, _, rest = desk.step(desk.expert_action(None))[0].partition(": ")
    entries, _, wish = rest.partition(". ")
    return place, entries.split(", "), wish


@pytest.mark.parametrize(
    ("department", "wish", "index"),
    [
        ("calendar", "book the first", 0),
        ("mail", "answer the second", 1),
        ("files", "delete the last", -1),
    ],
)
def test_what_a_department_wants_is_a_place_in_its_list(department, wish, index):
    desk, lengths = Desk(), set()
    for task_id in tasks(department):
        _, entries, said = opened(desk, task_id)
        assert said == wish
        lengths.add(len(set(entries)))
        for number, entry in enumerate(entries):
            opened(desk, task_id)
            _, reward, terminated, _, info = desk.step(f"{VERBS[department]}: {entry}")
            assert terminated
            right = number == index % len(entries)
            assert (desk.success(info), reward) == (right, float(right))
    assert lengths == {3, 4}


def test_orders_want_a_count_and_a_plural():
    desk, plurals = Desk(), dict(forms("nouns"))
    for task_id in tasks("orders"):
        _, (good,), wish = opened(desk, task_id)
        verb, _, count = wish.partition(" ")
        for said, right in (
            (f"{count} {plurals[good]}", True),
            (f"{count} {good}", False),
            (f"{'two' if count != 'two' else 'six'} {plurals[good]}", False),
        ):
            opened(desk, task_id)
            *_, terminated, _, info = desk.step(f"{verb}: {said}")
            assert terminated
            assert desk.success(info) is right


@pytest.mark.parametrize("department", DEPARTMENTS)
def test_the_right_way_in_the_wrong_place_leaves_the_wrong_state(department):
    desk = Desk()
    for task_id in tasks(department, count=10):
        desk.reset(task_id)
        asked = desk.expert_action(None)
        wrong = next(action for action in desk.admissible() if action != asked)
        assert not desk.step(wrong)[0].startswith("not ")
        call = next(a for a in desk.admissible() if a.startswith(VERBS[department]))
        *_, terminated, _, info = desk.step(call)
        assert terminated
        assert not desk.success(info)


@pytest.mark.parametrize("wrong", ["a place", "nonsense"])
def test_a_wrong_place_can_be_left_and_what_is_not_read_can_be_said_again(wrong):
    desk = Desk()
    for task_id in desk.task_ids(Split.TRAIN)[:40]:
        first, _ = desk.reset(task_id)
        asked = desk.expert_action(None)
        if wrong == "nonsense":
            assert desk.step("please do it")[0] == f"not understood. {first}"
        else:
            desk.step(next(action for action in desk.admissible() if action != asked))
        desk.step(desk.expert_action(None))
        *_, terminated, truncated, info = desk.step(desk.expert_action(None))
        assert (terminated, truncated) == (True, False)
        assert desk.success(info)


def test_nothing_can_be_done_before_a_place_is_open():
    desk = Desk()
    for task_id in desk.task_ids(Split.TRAIN)[:8]:
        first, _ = desk.reset(task_id)
        call = desk.solve(task_id)[-1]
        desk.reset(task_id)
        observation, *_, terminated, _, info = desk.step(call)
        assert observation == f"not possible. {first}"
        assert (terminated, info["valid"]) == (False, True)


@pytest.mark.parametrize(
    "written", ["{}: {}", "{} {}", "{}({})", '{}("{}")', "{}('{}').", " {}:{} ", "{}: {}."]
)
def test_a_call_may_be_written_in_several_forms(written):
    desk = Desk()
    for task_id in desk.task_ids(Split.TRAIN)[:8]:
        actions = desk.solve(task_id)
        for change in (str, str.upper):
            desk.reset(task_id)
            for action in actions:
                *_, info = desk.step(change(written.format(*action.split(": "))))
                assert info["valid"] is True
            assert desk.success(info)


@pytest.mark.parametrize(
    "said",
    ["book", "book:", "nine", "booknine", "I book: nine", "book: nine today please", "open: 9"],
)
def test_what_is_no_call_is_not_read(said):
    desk = Desk()
    desk.reset(tasks("calendar")[0])
    observation, *_, info = desk.step(said)
    assert observation.startswith("not understood. ")
    assert info["valid"] is False


def test_every_admissible_call_changes_what_is_shown_and_no_other_verb_is_possible():
    desk = Desk()
    for task_id in desk.task_ids(Split.TRAIN)[:8]:
        _, entries, _ = opened(desk, task_id)
        own = VERBS[desk.task_label(task_id)]
        acts = [action for action in desk.admissible() if not action.startswith("open")]
        assert {action.split(": ")[0] for action in acts} == {own}
        assert len(acts) == (12 if own == "order" else len(entries))
        for verb in {*VERBS.values()} - {own}:
            opened(desk, task_id)
            assert desk.step(f"{verb}: {entries[0]}")[0].startswith("not possible. ")


def test_no_split_has_a_name_or_a_noun_of_another():
    people = {split: set(names_of(split)) for split in Split}
    assert all(len(found) >= 20 for found in people.values())
    words = {split: set() for split in Split}
    for split in Split:
        desk = Desk()
        for task_id in desk.task_ids(split)[:400]:
            shown = [desk.reset(task_id)[0], *map(str, desk.admissible()), *desk.solve(task_id)]
            place, entries, _ = opened(desk, task_id)
            words[split] |= {word.strip(".,:") for text in shown for word in text.split()}
            words[split] |= {place, *entries}
    common = set.intersection(*words.values())
    for one, other in combinations(Split, 2):
        assert not people[one] & people[other]
        # What two splits have in common, all three have: the desk's own words, hours and counts.
        assert words[one] & words[other] == common
    assert common
    assert not common & (set().union(*people.values(), *forms("nouns")) - OWN)


def test_the_examples_are_turns_that_are_read_and_of_no_task():
    desk = make("desk")
    assert len(desk.examples) <= MAX_EXAMPLES
    known = {word for row in forms("nouns") for word in row} | {
        n for s in Split for n in names_of(s)
    }
    verbs = [action.partition(": ")[0] for _, action in desk.examples]
    assert verbs == [word for verb in VERBS.values() for word in ("open", verb)]
    for observation, action in desk.examples:
        words = {word.strip(".,:") for word in f"{observation} {action}".split()}
        assert not words & (known - OWN)
        desk.reset(0)
        assert desk.step(action)[4]["valid"] is True


def test_the_long_desk_wants_the_ways_of_two_departments():
    desk = LongDesk()
    for task_id in desk.task_ids(Split.TRAIN)[:24]:
        actions = desk.solve(task_id)
        first = DEPARTMENTS.index(desk.task_label(task_id))
        verbs = [VERBS[DEPARTMENTS[(first + place) % 4]] for place in (0, 1)]
        assert [action.partition(": ")[0] for action in actions] == [
            "open",
            verbs[0],
            "open",
            verbs[1],
        ]
        # A wrong first errand goes on to the second, and cannot be made good there.
        desk.reset(task_id)
        desk.step(actions[0])
        wrong = next(a for a in desk.admissible() if a.startswith(verbs[0]) and a != actions[1])
        *_, terminated, _, _ = desk.step(wrong)
        assert not terminated
        desk.step(actions[2])
        *_, terminated, _, info = desk.step(actions[3])
        assert terminated
        assert not desk.success(info)
        with pytest.raises(EpisodeStateError):
            desk.step(actions[0])
