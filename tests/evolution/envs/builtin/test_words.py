"""Words: what is asked, what counts as an answer, and that no split asks for another's words."""

import pytest

from evolution.envs import Split, make
from evolution.envs.builtin.words.words import Words, forms


def asked(label, split, count=400):
    environment = Words()
    step = len(environment.labels)
    first = environment.labels.index(label)
    for task_id in environment.task_ids(split)[first : first + step * count : step]:
        question, _ = environment.reset(task_id)
        assert environment.task_label(task_id) == label
        yield question, environment.expert_action(None)


@pytest.mark.parametrize(
    ("label", "place"), [("first", 0), ("second", 1), ("third", 2), ("last", -1)]
)
def test_a_place_in_a_list(label, place):
    for question, answer in asked(label, Split.TRAIN, 50):
        head, _, words = question.partition("? ")
        assert f" {label} word" in head
        listed = words.split(", ")
        assert 4 <= len(set(listed)) == len(listed) <= 5
        assert answer == listed[place]


@pytest.mark.parametrize("label", ["plural", "past", "comparative", "superlative"])
def test_no_split_asks_for_a_word_of_another(label):
    words = {split: {question for question, _ in asked(label, split)} for split in Split}
    assert all(len(found) > 40 for found in words.values())
    splits = list(Split)
    for one in splits:
        for other in splits[splits.index(one) + 1 :]:
            assert not words[one] & words[other]


def test_a_few_forms_that_no_rule_makes():
    plurals, pasts = dict(forms("nouns")), dict(forms("verbs"))
    assert (plurals["child"], plurals["wolf"], plurals["berry"]) == (
        "children",
        "wolves",
        "berries",
    )
    assert (pasts["go"], pasts["stop"], pasts["carry"]) == ("went", "stopped", "carried")
    grades = {base: (more, most) for base, more, most in forms("adjectives")}
    assert grades["big"] == ("bigger", "biggest")
    assert grades["happy"] == ("happier", "happiest")


@pytest.mark.parametrize("written", ["{}", "{}.", " '{}' ", '"{}"', "{}!"])
def test_how_an_answer_is_written_does_not_matter(written):
    environment = make("words")
    environment.reset(5)
    answer = environment.expert_action(None)
    for said in (written.format(answer), written.format(answer.upper())):
        environment.reset(5)
        *_, terminated, truncated, info = environment.step(said)
        assert (terminated, truncated) == (True, False)
        assert environment.success(info)


@pytest.mark.parametrize("said", ["the word is {}", "{} {}", "{}s", "not {}"])
def test_more_than_the_word_is_no_answer(said):
    environment = make("words")
    environment.reset(0)
    *_, info = environment.step(said.format(*[environment.expert_action(None)] * 2))
    assert not environment.success(info)


def test_the_examples_are_of_no_task():
    known = {
        word for name in ("nouns", "verbs", "adjectives") for row in forms(name) for word in row
    }
    for question, answer in make("words").examples:
        assert not {word.strip("?,.") for word in question.split()} & known - {
            *make("words").labels,
            "list",
            "tense",
            "word",
        }
        assert answer not in known
