"""Wordle's rules."""

import pytest

from evolution.envs import Split
from evolution.envs.builtin.wordle import Wordle, mark, words


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        ("crane", "crane", "ggggg"),
        ("crane", "pilot", "bbbbb"),
        ("crane", "nacre", "yyyyg"),
        ("apple", "paper", "yygyb"),  # two places for p: one exact, one elsewhere
        ("crane", "eerie", "bbybg"),  # one e in the secret: only the exact one is marked
        ("geese", "eerie", "ygbbg"),
    ],
)
def test_marks(secret, guess, marks):
    assert mark(secret, guess) == marks


def test_words_are_five_lower_case_letters_once_each():
    assert len(words()) == len(set(words())) >= 100
    assert all(len(w) == 5 and w.isascii() and w.isalpha() and w.islower() for w in words())


def test_the_board_opens_with_a_guess_that_is_not_the_secret():
    wordle = Wordle()
    for task_id in wordle.task_ids(Split.TRAIN)[:100]:
        observation, info = wordle.reset(task_id)
        assert not wordle.success(info)
        assert "absent none" not in observation or "present none" not in observation


def test_letters_may_come_with_or_without_spaces():
    wordle = Wordle()
    task_id = wordle.task_ids(Split.TRAIN)[0]
    answers = []
    for guess in (words()[0], " ".join(words()[0])):
        wordle.reset(task_id)
        answers.append(wordle.step(guess))
    assert answers[0] == answers[1]
