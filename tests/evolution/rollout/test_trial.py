"""What a few episodes come to in numbers, and what is read from them."""

import dataclasses

import pytest

from evolution.rollout.conversation import ChatFormat
from evolution.rollout.trial import MAX_UNKNOWN, trial_of, troubles
from lab.base.tokenizer import build_tokenizer
from tests.kit.evolution.scripted_engine import tokenizer
from tests.kit.evolution.trajectories import won

CHAT = ChatFormat.from_tokenizer(build_tokenizer(["goal", "plank", "find", "."]))


def test_words_are_counted_without_the_marks_of_turns():
    ids = CHAT.opening("find goal .", "a goal plank zebra", [("goal", "plank")])
    assert CHAT.words_read(ids) == (9, 2)
    assert CHAT.unknown_words("zebra goal a zebra <|unk|>") == ("zebra", "a")


def test_what_can_write_everything_knows_every_word():
    chat = ChatFormat.from_tokenizer(tokenizer())
    ids = chat.opening("Säge", "ζ\x00", [])
    words, unknown = chat.words_read(ids)
    assert words > 0
    assert unknown == 0
    assert chat.unknown_words("Säge ζ") == ()


def test_an_unknown_token_with_another_task_stands_for_no_word():
    """Byte-level vocabularies name their end of text so."""
    shared = build_tokenizer(["goal"])
    shared.unk_token = shared.eos_token
    chat = ChatFormat.from_tokenizer(shared)
    assert chat.unknown_words("zebra") == ()
    assert chat.words_read(chat.opening("goal", "goal", []))[1] == 0


def tried(steps=(), **changes):
    one = won(steps=4)
    for index, change in enumerate(steps):
        own = list(one.steps)
        own[index] = dataclasses.replace(own[index], **change)
        one = dataclasses.replace(one, steps=tuple(own))
    return dataclasses.replace(one, **changes)


def test_figures_of_what_was_played():
    words = tuple(CHAT.encode("goal zebra plank ."))
    known = tuple(CHAT.encode("goal"))
    steps = [
        {"context_ids": words, "cut_off": True},
        *({"context_ids": known, "invalid": index == 2} for index in range(3)),
    ]
    found = trial_of(
        CHAT, [tried(steps), tried(steps, success=False, truncated=True)], dropped=1, duration_s=6.0
    )
    assert (found.episodes, found.dropped, found.solved, found.truncated) == (2, 1, 1, 1)
    assert (found.turns, found.cut_off, found.not_read) == (8, 2, 2)
    assert (found.words, found.unknown) == (14, 2)
    assert found.unknown_share == 2 / 14
    assert (found.turns_per_episode, found.seconds_per_episode) == (4.0, 2.0)
    assert found.line == (
        "1 of 2 episodes solved, 1 dropped, 14.3 % of 14 words unknown, 2 of 8 answers cut off, "
        "4.0 turns and 2.00 s an episode"
    )


def test_nothing_played_divides_by_nothing():
    found = trial_of(CHAT, [], dropped=0, duration_s=0.0)
    assert (found.unknown_share, found.turns_per_episode, found.seconds_per_episode) == (0, 0, 0)
    assert troubles(found, max_new_tokens=8) == ()


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"unknown": int(MAX_UNKNOWN * 1000)}, []),
        ({"unknown": int(MAX_UNKNOWN * 1000) + 1}, ["unknown_words"]),
        ({"cut_off": 3}, []),
        ({"cut_off": 4}, ["cut_off"]),
        ({"not_read": 4}, ["not_read"]),
        ({"unknown": 900, "cut_off": 8, "not_read": 8}, ["unknown_words", "cut_off", "not_read"]),
    ],
)
def test_what_keeps_a_model_from_learning_is_named_with_its_remedy(changes, codes):
    found = dataclasses.replace(
        trial_of(CHAT, [tried(), tried()], dropped=0, duration_s=1.0), words=1000, **changes
    )
    said = troubles(found, max_new_tokens=8)
    assert [one.code for one in said] == codes
    assert all(one.text and one.fix for one in said)
