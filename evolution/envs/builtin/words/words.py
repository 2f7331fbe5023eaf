"""Words: one-turn drills in plain English, the simplest case for a pretrained model.

Two families of four questions: the first, second, third or last word of a list, and the plural,
past tense, comparative or superlative of a word. A small pretrained model answers some of them once
two example turns have shown the form, and learns the others in minutes on a CPU.

Words of the second family are dealt out over the splits, so that a form which is asked for in one
split was seen in no other: who gets it right has learned how forms are made. Lists are of any
words, for their answer is in the question.

Covered: 1,806 inflected forms, irregular ones among them, written by us. Not covered: forms that
two dictionaries spell in two ways, which are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Final

import numpy as np

from evolution.envs.environment import Example, Info, ScriptedEnvironment
from evolution.envs.tasks import SPLIT_SIZE, Split, label_index, task_rng
from evolution.errors import EpisodeStateError

__all__ = ["SHARES", "Words", "asked_of", "forms"]

_LIST: Final = ("first", "second", "third", "last")
_FORMS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "plural": ("nouns", 1),
        "past": ("verbs", 1),
        "comparative": ("adjectives", 1),
        "superlative": ("adjectives", 2),
    }
)
"""File and column of each form."""
_ASKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plural": "What is the plural of {}?",
        "past": "What is the past tense of {}?",
        "comparative": "What is the comparative of {}?",
        "superlative": "What is the superlative of {}?",
    }
)
SHARES: Final[Mapping[Split, tuple[int, int]]] = MappingProxyType(
    {Split.PRETRAIN: (0, 2), Split.TRAIN: (2, 7), Split.HELD_OUT: (7, 10)}
)
"""Tenths of the words that a split asks for."""
_EXAMPLES: Final[tuple[Example, ...]] = (
    ("What is the first word of this list? tinsel, cobweb, hazel, acorn", "tinsel"),
    ("What is the plural of bramble?", "brambles"),
    ("What is the second word of this list? sorrel, bracken, flint, tallow", "bracken"),
    ("What is the past tense of whittle?", "whittled"),
    ("What is the last word of this list? quiver, mantle, bonfire, gravel", "gravel"),
    ("What is the comparative of nimble?", "nimbler"),
)
_SHORTEST, _LONGEST = 4, 5
_QUOTES: Final = " \t\"'`.,!:;*"


@functools.cache
def forms(name: str) -> tuple[tuple[str, ...], ...]:
    """Rows of a word and its forms, in the file's order: ``nouns``, ``verbs``, ``adjectives``."""
    folder = resources.files("evolution.envs.builtin.words")
    lines = folder.joinpath(f"{name}.txt").read_text("utf-8").splitlines()
    return tuple(tuple(line.split()) for line in lines)


@functools.cache
def asked_of(name: str, split: Split) -> tuple[tuple[str, ...], ...]:
    """The rows that a split asks for, a fixed part of a fixed order."""
    rows = forms(name)
    order = np.random.default_rng([len(rows), *name.encode()]).permutation(len(rows))
    start, end = (len(rows) * tenths // 10 for tenths in SHARES[split])
    return tuple(rows[int(index)] for index in order[start:end])


class Words(ScriptedEnvironment):
    """See the module."""

    name = "words"
    family = "words"
    max_steps = 1
    labels = (*_LIST, *_FORMS)

    def __init__(self) -> None:
        self._answer = ""
        self._others: tuple[str, ...] = ()
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "Answer each question with one word."

    @property
    def examples(self) -> Sequence[Example]:
        """Three of each family, of words that no task has."""
        return _EXAMPLES

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Ask a question.

        Raises:
            TaskIdError: The id belongs to no split.
        """
        label = self.labels[label_index(task_id, labels=len(self.labels))]
        rng = task_rng(self.name, task_id)
        self._over = False
        if label in _FORMS:
            name, column = _FORMS[label]
            rows = asked_of(name, list(Split)[task_id // SPLIT_SIZE])
            row = rows[int(rng.integers(len(rows)))]
            self._answer = row[column]
            self._others = tuple(word for word in row if word != self._answer)
            return _ASKED[label].format(row[0]), {}
        pool = forms("nouns")
        count = int(rng.integers(_SHORTEST, _LONGEST + 1))
        words = [pool[int(one)][0] for one in rng.choice(len(pool), size=count, replace=False)]
        self._answer = words[-1 if label == "last" else _LIST.index(label)]
        self._others = tuple(word for word in words if word != self._answer)
        return f"What is the {label} word of this list? {', '.join(words)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Judge the answer; case, quotes and a full stop do not matter."""
        if self._over:
            raise EpisodeStateError("the episode is over: reset first")
        self._over = True
        said = action.strip(_QUOTES).lower()
        solved = said == self._answer
        read = said.isalpha()
        said_back = "right" if solved else "not right" if read else "not a word"
        info: Info = {"valid": read, "solved": solved}
        return said_back, float(solved), solved, not solved, info

    def success(self, info: Info) -> bool:
        """The answer was the word."""
        return bool(info.get("solved", False))

    def expert_action(self, rng: np.random.Generator) -> str:  # noqa: ARG002  # knows the answer
        """The word that is asked for."""
        return self._answer

    def random_action(self, rng: np.random.Generator) -> str:
        """Another word of the question, or another form."""
        return self._others[int(rng.integers(len(self._others)))] if self._others else self._answer
