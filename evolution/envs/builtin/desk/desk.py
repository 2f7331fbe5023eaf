"""Desk: an assistant with a calendar, mail, files and orders, in plain English.

An errand takes two calls: ``open`` a place of one department, then act on what is found there. The
second turn says what is wanted in that department's way, which is another in each of the four::

    calendar   Open the calendar of Eva    Eva: nine, one, two. book the first     book: nine
    mail       Open the mail about rose    rose: Tom, Eva, Leo. answer the second  answer: Eva
    files      Open the folder tower       tower: sail, fog, king. delete the last delete: king
    orders     Open the orders of Tom      Tom: elf. order two                     order: two elves

A call is a verb and an argument, as ``book: nine``, ``book nine``, ``book(nine)`` or
``book("nine")``. Invariants:

1. The verdict is on the state: after the last errand the calendars, letters, files and orders must
   be those that the errands ask for, and nobody reads the agent's words for it.
2. Opening changes nothing, so a wrong place can be left again. Every other call that is possible
   changes the state for good and ends its errand, right or wrong.
3. What cannot be read, and what is not possible, costs a step; the request is said again. There is
   one step to spare.
4. Names, and the words that places, files and goods are called by, are dealt out over the splits
   (``words.asked_of`` deals the nouns); a word of one split is in no task of another. Hours and
   numbers are too few for that and are the same in all.

``desk`` has one errand. In ``desk-long`` a second one of the next department follows, so that a
task needs the ways of two.

Covered: a million seeded tasks of a split. Not covered: requests that contradict each other, calls
with several arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from evolution.envs.builtin.words.words import SHARES, asked_of
from evolution.envs.environment import Example, Info, ScriptedEnvironment
from evolution.envs.tasks import SPLIT_SIZE, Split, label_index, task_rng
from evolution.errors import EpisodeStateError

__all__ = ["Desk", "LongDesk", "names_of"]

_HOURS: Final = ("nine", "ten", "eleven", "twelve", "one", "two", "three", "four")
_COUNTS: Final = ("two", "three", "four", "five", "six", "seven")
_OWN: Final = frozenset({"book", "calendar", "folder"})
"""Nouns that the desk says itself."""
_PLACES: Final = 3
_SHORTEST, _LONGEST = 3, 4
_CALL: Final = re.compile(
    r"(open|book|answer|delete|order)(?: *[:(] *| +)[\"']?([a-z]+(?: [a-z]+)?)[\"']?\)?\.?",
    re.IGNORECASE,
)
_MAX_CALL_CHARS: Final = 64
_Place = tuple[str, str]
"""Department and name."""
_State = dict[_Place, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Department:
    """One kind of errand."""

    verb: str
    """Of the call that acts."""
    first: str
    """What is said before anything is open."""
    wish: str
    """What is asked for once the place is open; empty where the errand draws it."""


_DEPARTMENTS: Final[Mapping[str, _Department]] = MappingProxyType(
    {
        "calendar": _Department(verb="book", first="Open the calendar of {}", wish="the first"),
        "mail": _Department(verb="answer", first="Open the mail about {}", wish="the second"),
        "files": _Department(verb="delete", first="Open the folder {}", wish="the last"),
        "orders": _Department(verb="order", first="Open the orders of {}", wish=""),
    }
)
_EXAMPLES: Final[tuple[Example, ...]] = (
    ("Open the calendar of Nora", "open: Nora"),
    ("Nora: nine, eleven, three. book the first", "book: nine"),
    ("Open the mail about harbour", "open: harbour"),
    ("harbour: Karl, Egon, Rosa. answer the second", "answer: Egon"),
    ("Open the folder vineyard", "open: vineyard"),
    ("vineyard: acorn, lighthouse, mandolin. delete the last", "delete: mandolin"),
    ("Open the orders of Rosa", "open: Rosa"),
    ("Rosa: teacup. order three", "order: three teacups"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Errand:
    """What is wanted of one department."""

    department: str
    """Which."""
    place: str
    """What is to be opened."""
    wish: str
    """What is to be done there, in the department's way."""
    argument: str
    """What that comes to."""

    @property
    def call(self) -> str:
        """The call that runs it, once the place is open."""
        return f"{_DEPARTMENTS[self.department].verb}: {self.argument}"


@functools.cache
def names_of(split: Split) -> tuple[str, ...]:
    """The people of a split, a fixed part of a fixed order."""
    file = resources.files("evolution.envs.builtin.desk").joinpath("names.txt")
    names = file.read_text("utf-8").split()
    order = np.random.default_rng([len(names), *b"names"]).permutation(len(names))
    start, end = (len(names) * tenths // 10 for tenths in SHARES[split])
    return tuple(names[int(index)] for index in order[start:end])


@functools.cache
def _plurals_of(split: Split) -> Mapping[str, str]:
    """The plurals of a split's nouns, without plurals of their own and the desk's own words."""
    rows = (row for row in asked_of("nouns", split) if row[0] != row[1] and row[0] not in _OWN)
    return MappingProxyType({row[0]: row[1] for row in rows})


class Desk(ScriptedEnvironment):
    """See the module."""

    name = "desk"
    family = "desk"
    max_steps = 3
    labels = tuple(_DEPARTMENTS)
    errands: ClassVar[int] = 1

    def __init__(self) -> None:
        self._plurals: Mapping[str, str] = {}
        self._errands: tuple[_Errand, ...] = ()
        self._state: _State = {}
        self._goal: _State = {}
        self._done = 0
        self._open = ""
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "You are an assistant. Answer each message with one command."

    @property
    def examples(self) -> Sequence[Example]:
        """An errand of each department, of words that no task has."""
        return _EXAMPLES

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Lay out the desk of a task.

        Raises:
            TaskIdError: The id belongs to no split.
        """
        first = label_index(task_id, labels=len(self.labels))
        split = list(Split)[task_id // SPLIT_SIZE]
        rng = task_rng(self.name, task_id)
        self._plurals = _plurals_of(split)
        self._state = {}
        errands = []
        for number in range(self.errands):
            department = self.labels[(first + number) % len(self.labels)]
            errand, places = _drawn(department, split, rng)
            errands.append(errand)
            self._state |= places
        self._errands = tuple(errands)
        self._goal = dict(self._state)
        for errand in errands:
            _change(self._goal, (errand.department, errand.place), errand.argument)
        self._done = self._step = 0
        self._open = ""
        self._over = False
        return self._observe(""), self._info(valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Make one call.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over: reset first")
        self._step += 1
        call = _read(action)
        note = "" if call is not None and self._play(*call) else "not possible. "
        finished = self._done == len(self._errands)
        truncated = not finished and self._step >= self.max_steps
        self._over = finished or truncated
        info = self._info(valid=call is not None)
        shown = "done" if finished else self._observe(note if call else "not understood. ")
        return shown, float(info["solved"]), finished, truncated, info

    def success(self, info: Info) -> bool:
        """The desk is as it was to be left."""
        return bool(info.get("solved", False))

    def admissible(self) -> Sequence[str]:
        """Every place to open but the open one, and what can be done where one is open."""
        department = self._errand.department
        places = [f"open: {name}" for kind, name in self._state if kind == department]
        if not self._open:
            return tuple(places)
        places.remove(f"open: {self._open}")
        verb = _DEPARTMENTS[department].verb
        return (*(f"{verb}: {argument}" for argument in self._arguments()), *places)

    def expert_action(self, rng: np.random.Generator) -> str:  # noqa: ARG002  # knows the way
        """Open what is asked for, then do what is asked for."""
        errand = self._errand
        return errand.call if self._open == errand.place else f"open: {errand.place}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Anything that is possible here."""
        actions = self.admissible()
        return actions[int(rng.integers(len(actions)))]

    @property
    def _errand(self) -> _Errand:
        return self._errands[self._done]

    def _play(self, verb: str, argument: str) -> bool:
        """Make a call; False if it is not possible."""
        department = self._errand.department
        if verb == "open":
            found = _among(argument, (name for kind, name in self._state if kind == department))
            self._open = found or self._open
            return bool(found)
        if not self._open or verb != _DEPARTMENTS[department].verb:
            return False
        found = _among(argument, self._arguments())
        if not found:
            return False
        _change(self._state, (department, self._open), found)
        self._done += 1
        self._open = ""
        return True

    def _arguments(self) -> Sequence[str]:
        """What the department's verb can be said of in the open place."""
        department = self._errand.department
        entries = self._state[department, self._open]
        if department != "orders":
            return entries
        goods = (entries[0], self._plurals[entries[0]])
        return tuple(f"{count} {good}" for count in _COUNTS for good in goods)

    def _observe(self, note: str) -> str:
        errand = self._errand
        department = _DEPARTMENTS[errand.department]
        if not self._open:
            return note + department.first.format(errand.place)
        entries = ", ".join(self._state[errand.department, self._open])
        return f"{note}{self._open}: {entries}. {department.verb} {errand.wish}"

    def _info(self, *, valid: bool) -> Info:
        finished = self._done == len(self._errands)
        return {"valid": valid, "solved": finished and self._state == self._goal}


class LongDesk(Desk):
    """Two errands, of two departments one after the other."""

    name = "desk-long"
    family = "desk-long"
    max_steps = 5
    errands = 2


def _read(action: str) -> tuple[str, str] | None:
    """Verb and argument of a call in any of its forms; None if it is none."""
    found = _CALL.fullmatch(action.strip()) if len(action) <= _MAX_CALL_CHARS else None
    return None if found is None else (found[1].lower(), found[2])


def _among(said: str, known: Iterable[str]) -> str:
    """The one that was said, whatever its case; empty if there is none."""
    return next((one for one in known if one.lower() == said.lower()), "")


def _change(state: _State, place: _Place, argument: str) -> None:
    """What a department's verb does to an open place."""
    entries = state[place]
    if place[0] == "orders":
        state[place] = (*entries, argument)
    else:
        state[place] = tuple(entry for entry in entries if entry != argument)


def _drawn(department: str, split: Split, rng: np.random.Generator) -> tuple[_Errand, _State]:
    """An errand, and the places of its department."""
    people, nouns = names_of(split), tuple(_plurals_of(split))

    def some(words: Sequence[str], count: int) -> tuple[str, ...]:
        return tuple(words[int(k)] for k in rng.choice(len(words), size=count, replace=False))

    places = some(people if department in {"calendar", "orders"} else nouns, _PLACES)
    wish = _DEPARTMENTS[department].wish
    state: _State = {}
    if department == "orders":
        goods = some(nouns, _PLACES)
        state |= {(department, place): (good,) for place, good in zip(places, goods, strict=True)}
        wish = str(rng.choice(_COUNTS))
        argument = f"{wish} {_plurals_of(split)[goods[0]]}"
    else:
        # A folder of the name of one of its files would make two things of one word.
        entries = people if department == "mail" else sorted({*nouns} - {*places})
        for place in places:
            count = int(rng.integers(_SHORTEST, _LONGEST + 1))
            if department == "calendar":
                hours = sorted(int(k) for k in rng.choice(len(_HOURS), size=count, replace=False))
                state[department, place] = tuple(_HOURS[hour] for hour in hours)
            else:
                state[department, place] = some(entries, count)
        found = state[department, places[0]]
        argument = found[{"the first": 0, "the second": 1, "the last": -1}[wish]]
    errand = _Errand(department=department, place=places[0], wish=wish, argument=argument)
    return errand, dict(sorted(state.items()))
