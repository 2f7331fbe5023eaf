"""BabyAI: the real grid worlds of the ``minigrid`` package, as text.

Eight levels (going to, picking up, opening, putting next to), one label each. The agent sees what
BabyAI shows it, the 7×7 cells before it without what walls hide, turned into words: the mission,
what is carried, what is right ahead, and up to six things in sight, nearest first, with their place
relative to the agent. Actions are BabyAI's own single moves.

The scripted player is the package's ``BabyAIBot``. It must see every step of an episode, so it is
made anew whenever it was not asked before each step; it may have no answer in a state that it would
never have got into, which is an ``EnvironmentFailureError`` of its own.

Success is BabyAI's own verdict on the mission (a positive reward), whatever the size of the reward.

Covered: single rooms, 14 steps. Not covered: several rooms, keys, missions in sequence.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT
from minigrid.envs.babyai.goto import GoToDoor, GoToLocal, GoToObj, GoToRedBallGrey
from minigrid.envs.babyai.open import OpenDoor
from minigrid.envs.babyai.pickup import PickupDist
from minigrid.envs.babyai.putnext import PutNextLocal
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import task_rng
from evolution.errors import EnvironmentFailureError, EpisodeStateError

__all__ = ["BabyAI", "NoAnswerError"]

# In the order of minigrid's action numbers.
_ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "open")
_LEVELS: dict[str, tuple[Any, dict[str, int]]] = {
    "red ball": (GoToRedBallGrey, {}),
    "go to object": (GoToObj, {}),
    "go to one of four": (GoToLocal, {"room_size": 6, "num_dists": 4}),
    "go to one of seven": (GoToLocal, {"room_size": 8, "num_dists": 7}),
    "go to door": (GoToDoor, {}),
    "pick up": (PickupDist, {}),
    "open door": (OpenDoor, {}),
    "put next": (PutNextLocal, {"room_size": 5, "num_objs": 3}),
}
_WORDS = (
    "do mission . actions : turn left right forward pick up drop open see front carry nothing "
    "clear wall not possible ahead closed locked go to the a put next in of you on your behind "
    "object ball box key door red green blue purple yellow grey 1 2 3 4 5 6"
)
_VIEW = 7
_MAX_THINGS = 6
# The bot states its assumptions as assertions and plain attribute access.
_BOT_FAILURES = (
    AssertionError,
    AttributeError,
    DisappearedBoxError,
    IndexError,
    TypeError,
    ValueError,
)
_DOOR_STATES = ("open", "closed", "locked")


class NoAnswerError(EnvironmentFailureError):
    """The scripted player does not know what to do in this state."""


class BabyAI(ScriptedEnvironment):
    """See the module."""

    name = "babyai"
    family = "babyai"
    max_steps = 14
    labels = tuple(_LEVELS)
    vocabulary = frozenset(_WORDS.split())

    def __init__(self) -> None:
        self._worlds: dict[str, Any] = {}
        self._world: Any = None
        self._view: Any = None
        """What the agent sees: kinds, colours and states of the cells before it."""
        self._bot: Any = None
        self._bot_step = 0
        self._bot_choice = 0
        self._last_action = 0
        self._solved = False
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        listed = " . ".join(_ACTIONS)
        return f"do the mission . actions : {listed} ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        label = self.task_label(task_id)
        if label not in self._worlds:
            level, settings = _LEVELS[label]
            with _quiet():
                self._worlds[label] = level(**settings)
        self._world = self._worlds[label]
        seed = int(task_rng(self.name, task_id).integers(2**31))
        with _quiet():
            seen, _ = self._world.reset(seed=seed)
        self._view = seen["image"]
        self._bot = None
        self._solved = False
        self._step = 0
        self._over = False
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one of the actions that the instruction lists.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over; reset first")
        self._step += 1
        wanted = " ".join(action.split())
        reward, ended = 0.0, False
        known = wanted in _ACTIONS
        if known:
            self._last_action = _ACTIONS.index(wanted)
            seen, reward, ended, _, _ = self._world.step(self._last_action)
            self._view = seen["image"]
        else:
            self._bot = None
        self._solved = reward > 0
        truncated = not ended and self._step >= self.max_steps
        self._over = ended or truncated
        text = self._observe() if known else f"not possible . {self._observe()}"
        info = {**self._info(), "valid": known}
        return text, float(reward), bool(ended), truncated, info

    def success(self, info: Info) -> bool:
        """Whether BabyAI counts the mission as done."""
        return bool(info["solved"])

    def admissible(self) -> Sequence[str]:
        """Every move: those that change nothing are moves as well."""
        return _ACTIONS

    def expert_action(self, rng: np.random.Generator) -> str:
        """What ``BabyAIBot`` would do.

        Raises:
            NoAnswerError: The bot has no answer here.
        """
        del rng
        try:
            if self._bot is None or self._step - self._bot_step > 1:
                self._bot = BabyAIBot(self._world)
                chosen = self._bot.replan(None)
            elif self._bot_step == self._step:
                chosen = self._bot_choice
            else:
                chosen = self._bot.replan(self._last_action)
        except _BOT_FAILURES as error:
            self._bot = None
            raise NoAnswerError("BabyAIBot has no answer in this state") from error
        self._bot_step = self._step
        self._bot_choice = int(chosen)
        if self._bot_choice >= len(_ACTIONS):
            raise NoAnswerError("BabyAIBot considers the mission done")
        return _ACTIONS[self._bot_choice]

    def random_action(self, rng: np.random.Generator) -> str:
        """Any action, mostly moves."""
        return str(rng.choice(_ACTIONS, p=(0.2, 0.2, 0.3, 0.1, 0.1, 0.1)))

    def close(self) -> None:
        """Release the worlds."""
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()
        self._over = True

    def _observe(self) -> str:
        view = self._view.tolist()
        things: list[tuple[int, int, int, str]] = []
        for column in range(_VIEW):
            for row in range(_VIEW):
                ahead, right = _VIEW - 1 - row, column - _VIEW // 2
                name = _thing(view[column][row])
                if name and (ahead or right):
                    things.append((ahead + abs(right), ahead, right, name))
        things.sort()
        seen = [f"see {name} {_place(a, r)} ." for _, a, r, name in things[:_MAX_THINGS]]
        cell = view[_VIEW // 2][_VIEW - 2]
        wall = IDX_TO_OBJECT[cell[0]] == "wall"
        front = _thing(cell) or ("wall" if wall else "clear")
        held = self._world.carrying
        carried = f"{held.color} {held.type}" if held else "nothing"
        mission = str(self._world.mission).replace(",", " ")
        return " ".join([f"mission {mission} . carry {carried} . front {front} .", *seen])

    def _info(self) -> Info:
        return {"solved": self._solved, "step": self._step}


def _thing(cell: Sequence[int]) -> str:
    """Name what is in a cell of the view, or nothing if it is no thing."""
    kind = IDX_TO_OBJECT[cell[0]]
    colour = IDX_TO_COLOR[cell[1]]
    if kind == "door":
        return f"{_DOOR_STATES[cell[2]]} {colour} door"
    return f"{colour} {kind}" if kind in ("ball", "box", "key") else ""


def _place(ahead: int, right: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts)


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Levels print rejected samples; a daemon's standard output is not theirs."""
    return contextlib.redirect_stdout(io.StringIO())
