"""Craft: make the goal item from raw materials, with one fixed recipe book.

The shape of TextCraft (``get 2 log``, ``craft plank``; success is the goal item in hand), built
for small models: the observation shows the goal, what is held and what can be gathered, with
counts and distractors; the recipes are *not* shown, they are what the agent must know. That makes
the sixteen goals sixteen pieces of knowledge, so silos that see different goals have something to
tell each other.

The goals come from four trades with the same depths (one of depth 1, two of depth 2, one of depth
3). They are listed trade by trade in turn, so four shards are four trades.

Covered: recipes with counts, limited sources, items already in hand, wasted materials. Not covered:
recipes in context, tags ("any plank"), tools that survive their use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import task_rng
from evolution.errors import EpisodeStateError

__all__ = ["RECIPES", "Craft"]

# Item → ingredients with counts. Carpenter, mason, cook, weaver.
RECIPES: MappingProxyType[str, dict[str, int]] = MappingProxyType(
    {
        "plank": {"log": 2},
        "pole": {"plank": 1},
        "table": {"plank": 2},
        "ladder": {"pole": 1, "vine": 1},
        "brick": {"stone": 2},
        "glass": {"sand": 2},
        "lamp": {"glass": 1, "stone": 1},
        "oven": {"brick": 1, "stone": 2},
        "forge": {"oven": 1, "sand": 1},
        "flour": {"wheat": 2},
        "noodle": {"flour": 2},
        "dough": {"flour": 1, "egg": 1},
        "cake": {"dough": 1, "egg": 2},
        "thread": {"wool": 2},
        "rope": {"thread": 2},
        "cloth": {"thread": 1, "dye": 1},
        "flag": {"cloth": 1, "dye": 2},
    }
)
_RAW = ("log", "vine", "stone", "sand", "wheat", "egg", "wool", "dye")
_TRADES = (
    ("plank", "pole", "table", "ladder"),
    ("brick", "lamp", "oven", "forge"),
    ("flour", "dough", "noodle", "cake"),
    ("thread", "cloth", "rope", "flag"),
)
_GOALS = tuple(trade[depth] for depth in range(4) for trade in _TRADES)
_ITEMS = frozenset({*RECIPES, *_RAW})
_MAX_GET = 9
_SOURCES = 5
_NEVER = "not possible ."
_ACTION = re.compile(r"(?:get ([1-9]) ([a-z]+)|craft ([a-z]+))")
_WORDS = "craft the goal . actions : get have here nothing not possible done 1 2 3 4 5 6 7 8 9"


class Craft(ScriptedEnvironment):
    """See the module."""

    name = "craft"
    family = "craft"
    max_steps = 8
    labels = _GOALS
    vocabulary = frozenset(_WORDS.split()) | set(RECIPES) | set(_RAW)

    def __init__(self) -> None:
        self._goal = ""
        self._held: dict[str, int] = {}
        self._here: dict[str, int] = {}
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "craft the goal . actions : get 2 log . craft plank ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        self._goal = self.task_label(task_id)
        rng = task_rng(self.name, task_id)
        needs: dict[str, int] = {}
        _add_raw(self._goal, 1, needs)
        self._here = {item: n + int(rng.integers(0, 3)) for item, n in needs.items()}
        others = [item for item in _RAW if item not in needs]
        for item in rng.choice(others, size=_SOURCES - len(needs), replace=False):
            self._here[str(item)] = int(rng.integers(1, 5))
        self._held = {}
        if rng.random() < 0.5:
            # Something that is already in hand: at times useful, at times not.
            item = str(rng.choice([*_RAW, *RECIPES]))
            if item != self._goal:
                self._held[item] = 1
        self._here = {
            item: self._here[item] for item in map(str, rng.permutation(list(self._here)))
        }
        self._step = 0
        self._over = False
        return self._observe(""), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play ``get <count> <item>`` or ``craft <item>``.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over; reset first")
        match = _ACTION.fullmatch(" ".join(action.split()))
        valid = match is not None and _names(match) in _ITEMS
        done_it = match is not None and self._apply(match)
        self._step += 1
        solved = self._held.get(self._goal, 0) > 0
        truncated = not solved and self._step >= self.max_steps
        self._over = solved or truncated
        note = "done ." if solved else "" if done_it else _NEVER
        info = {**self._info(), "valid": valid}
        return self._observe(note), float(solved), solved, truncated, info

    def success(self, info: Info) -> bool:
        """Whether the goal item was made."""
        return bool(info["goal_held"])

    def admissible(self) -> Sequence[str]:
        """What can be taken and what can be made."""
        taken = [
            f"get {count} {item}"
            for item, here in self._here.items()
            for count in range(1, min(here, _MAX_GET - self._held.get(item, 0)) + 1)
        ]
        return [*taken, *(f"craft {item}" for item, needs in RECIPES.items() if self._can(needs))]

    def expert_action(self, rng: np.random.Generator) -> str:
        """The next action of a player who knows the recipes."""
        del rng
        missing: dict[str, int] = {}
        spare = dict(self._held)
        order: list[str] = []
        _plan(self._goal, spare, missing, order)
        for item, count in missing.items():
            return f"get {count} {item}"
        return f"craft {order[0]}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Any action that makes sense as text; crafts are often not possible."""
        sources = [item for item, count in self._here.items() if count]
        if not sources or rng.random() < 0.5:
            return f"craft {rng.choice(list(RECIPES))}"
        item = str(rng.choice(sources))
        return f"get {rng.integers(1, min(self._here[item], 4) + 1)} {item}"

    def _apply(self, match: re.Match[str]) -> bool:
        count, raw, made = match.groups()
        if made is not None:
            recipe = RECIPES.get(made)
            if recipe is None or not self._can(recipe):
                return False
            for item, n in recipe.items():
                self._held[item] -= n
            self._held[made] = self._held.get(made, 0) + 1
            return True
        if self._here.get(raw, 0) < int(count) or self._held.get(raw, 0) + int(count) > _MAX_GET:
            return False
        self._here[raw] -= int(count)
        self._held[raw] = self._held.get(raw, 0) + int(count)
        return True

    def _can(self, recipe: dict[str, int]) -> bool:
        return all(self._held.get(item, 0) >= n for item, n in recipe.items())

    def _observe(self, note: str) -> str:
        parts = [note, f"goal {self._goal} ."] if note else [f"goal {self._goal} ."]
        for name, items in (("have", self._held), ("here", self._here)):
            listed = " ".join(f"{count} {item}" for item, count in items.items() if count)
            parts.append(f"{name} {listed or 'nothing'} .")
        return " ".join(parts)

    def _info(self) -> Info:
        return {"goal_held": self._held.get(self._goal, 0) > 0, "step": self._step}


def _names(match: re.Match[str]) -> str:
    """The item that an action is about; an action about something else cannot be read."""
    return str(match[2] or match[3])


def _add_raw(item: str, count: int, needs: dict[str, int]) -> None:
    """Count the raw materials of an item into ``needs``."""
    if item not in RECIPES:
        needs[item] = needs.get(item, 0) + count
        return
    for part, n in RECIPES[item].items():
        _add_raw(part, n * count, needs)


def _plan(item: str, spare: dict[str, int], missing: dict[str, int], order: list[str]) -> None:
    """Plan one unit of an item: what to gather, and what to craft, deepest first."""
    if spare.get(item, 0) > 0:
        spare[item] -= 1
        return
    if item not in RECIPES:
        missing[item] = missing.get(item, 0) + 1
        return
    for part, n in RECIPES[item].items():
        for _ in range(n):
            _plan(part, spare, missing, order)
    order.append(item)
