"""Wordle: guess a five-letter word within six tries.

The observation is a summary of the board rather than the guesses so far, because a raw history is
too hard for a small model: letters whose place is known, letters known to be in the word, and
letters known not to be in it. A task also fixes one opening guess that is on the board from the
start, so a word comes up in many different situations.

Marking follows the usual rule: exact places first, then each other letter is marked as present at
most as often as the secret still has it.

Covered: words from the list that ships beside this file; anything else costs a try. Not covered: a
second language; secrets that never occurred before (the list is the agent's dictionary, so the same
words are secrets in all splits, in other situations).
"""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Sequence
from importlib import resources

import numpy as np

from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import task_rng
from evolution.errors import EpisodeStateError

__all__ = ["Wordle", "mark", "words"]

_LENGTH = 5
_WORDS = "guess the word . actions : known present absent none _ not left 0 1 2 3 4 5 6"


@functools.cache
def words() -> tuple[str, ...]:
    """The dictionary: five-letter words in the file's order."""
    text = resources.files("evolution.envs.builtin").joinpath("wordle_words.txt").read_text("utf-8")
    return tuple(text.split())


def mark(secret: str, guess: str) -> str:
    """Mark a guess at a secret word.

    One letter per place: ``g`` right place, ``y`` elsewhere in the word, ``b`` neither.
    """
    left = Counter(s for s, g in zip(secret, guess, strict=True) if s != g)
    marks = []
    for s, g in zip(secret, guess, strict=True):
        if s == g:
            marks.append("g")
        elif left[g] > 0:
            left[g] -= 1
            marks.append("y")
        else:
            marks.append("b")
    return "".join(marks)


class Wordle(ScriptedEnvironment):
    """See the module."""

    name = "wordle"
    family = "wordle"
    max_steps = 6
    labels = ("word",)
    vocabulary = frozenset(_WORDS.split()) | set(string.ascii_lowercase)

    def __init__(self) -> None:
        self._secret = ""
        self._board: list[tuple[str, str]] = []
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "guess the word . actions : c r a n e ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        self.task_label(task_id)  # refuses an id that belongs to no split
        secret, opening = task_rng(self.name, task_id).choice(len(words()), size=2, replace=False)
        self._secret = words()[secret]
        self._board = []
        self._put(words()[opening])
        self._step = 0
        self._over = False
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play the letters of a word, with or without spaces.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over; reset first")
        guess = "".join(action.split())
        known_word = guess in words()
        self._step += 1
        if known_word:
            self._put(guess)
        solved = guess == self._secret
        truncated = not solved and self._step >= self.max_steps
        self._over = solved or truncated
        text = self._observe() if known_word else f"not the word . {self._observe()}"
        return text, float(solved), solved, truncated, {**self._info(), "valid": known_word}

    def success(self, info: Info) -> bool:
        """Whether the word was found."""
        return bool(info["found"])

    def admissible(self) -> Sequence[str]:
        """The words of the dictionary."""
        return [" ".join(word) for word in words()]

    def expert_action(self, rng: np.random.Generator) -> str:
        """A word that fits everything on the board."""
        fits = [w for w in words() if all(mark(w, guess) == marks for guess, marks in self._board)]
        return " ".join(str(rng.choice(fits)))

    def random_action(self, rng: np.random.Generator) -> str:
        """Any word of the dictionary."""
        return " ".join(str(rng.choice(words())))

    def _put(self, guess: str) -> None:
        self._board.append((guess, mark(self._secret, guess)))

    def _observe(self) -> str:
        places = ["_"] * _LENGTH
        inside: set[str] = set()
        tried: set[str] = set()
        for guess, marks in self._board:
            for place, (letter, colour) in enumerate(zip(guess, marks, strict=True)):
                tried.add(letter)
                if colour == "g":
                    places[place] = letter
                if colour != "b":
                    inside.add(letter)
        present = " ".join(sorted(inside - set(places))) or "none"
        absent = " ".join(sorted(tried - inside)) or "none"
        left = self.max_steps - self._step
        return f"known {' '.join(places)} . present {present} . absent {absent} . left {left} ."

    def _info(self) -> Info:
        return {"found": self._board[-1][0] == self._secret, "step": self._step}
