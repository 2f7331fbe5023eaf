"""Maze: find a goal in a 6×6 maze seen one cell at a time.

A spanning tree with some of its dead ends opened (a braided maze has loops, so that going back is
not the only way out). The observation tells where the goal lies, as the crow flies, which sides of
the current cell are walls, and the last move; it never shows the map.

The label of a task is the quarter of the compass the goal lies in, so silos can be given mazes that
all lead one way. The start is 3 to 9 moves away from the goal.

Covered: a new maze per task. Not covered: mazes the agent remembers across episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache

import numpy as np

from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import task_rng
from evolution.errors import EpisodeStateError

__all__ = ["Maze"]

Cell = tuple[int, int]

_SIDE = 6
_MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_NEAREST, _FARTHEST = 3, 9
_WORDS = (
    "find the goal . actions : move up down left right walls none last not possible here 1 2 3 4 5"
)
_BRAID = 0.6  # the share of dead ends that are opened


class Maze(ScriptedEnvironment):
    """See the module."""

    name = "maze"
    family = "maze"
    max_steps = 14
    labels = ("up left", "up right", "down left", "down right")
    vocabulary = frozenset(_WORDS.split())

    def __init__(self) -> None:
        self._open: set[tuple[Cell, Cell]] = set()
        self._distance: dict[Cell, int] = {}
        self._at: Cell = (0, 0)
        self._goal: Cell = (0, 0)
        self._last = "none"
        self._step = 0
        self._over = True

    @property
    def instruction(self) -> str:
        """What the agent is told once."""
        return "find the goal . actions : move up . move down . move left . move right ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        vertical, horizontal = self.task_label(task_id).split()
        rng = task_rng(self.name, task_id)
        while True:
            self._open = _passages(rng)
            self._goal = (int(rng.integers(_SIDE)), int(rng.integers(_SIDE)))
            self._distance = _distances(self._goal, self._open)
            starts = [
                cell
                for cell, moves in self._distance.items()
                if _NEAREST <= moves <= _FARTHEST
                and cell[0] != self._goal[0]
                and cell[1] != self._goal[1]
                and (cell[0] > self._goal[0]) == (vertical == "up")
                and (cell[1] > self._goal[1]) == (horizontal == "left")
            ]
            if starts:
                break
        self._at = starts[int(rng.integers(len(starts)))]
        self._last = "none"
        self._step = 0
        self._over = False
        return self._observe(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play ``move up``, ``move down``, ``move left`` or ``move right``.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._over:
            raise EpisodeStateError("the episode is over; reset first")
        self._step += 1
        verb, _, way = " ".join(action.split()).partition(" ")
        valid = verb == "move" and way in _MOVES
        moved = valid and self._leads(way)
        if moved:
            self._at = _beside(self._at, way)
            self._last = way
        solved = self._at == self._goal
        truncated = not solved and self._step >= self.max_steps
        self._over = solved or truncated
        text = self._observe() if moved else f"not possible . {self._observe()}"
        return text, float(solved), solved, truncated, {**self._info(), "valid": valid}

    def success(self, info: Info) -> bool:
        """Whether the goal was reached."""
        return bool(info["moves_to_goal"] == 0)

    def admissible(self) -> Sequence[str]:
        """The moves that no wall stops."""
        return [f"move {way}" for way in _MOVES if self._leads(way)]

    def expert_action(self, rng: np.random.Generator) -> str:
        """A move that brings the goal nearer."""
        here = self._distance[self._at]
        good = [
            way
            for way in _MOVES
            if self._leads(way) and self._distance[_beside(self._at, way)] < here
        ]
        return f"move {rng.choice(good)}"

    def random_action(self, rng: np.random.Generator) -> str:
        """A move that no wall stops."""
        return str(rng.choice(self.admissible()))

    def _leads(self, way: str) -> bool:
        return (self._at, _beside(self._at, way)) in self._open

    def _observe(self) -> str:
        down, right = self._goal[0] - self._at[0], self._goal[1] - self._at[1]
        where = []
        if down:
            where.append(f"{abs(down)} {'down' if down > 0 else 'up'}")
        if right:
            where.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
        walls = " ".join(way for way in _MOVES if not self._leads(way)) or "none"
        return f"goal {' '.join(where) or 'here'} . walls {walls} . last {self._last} ."

    def _info(self) -> Info:
        return {"moves_to_goal": self._distance[self._at], "step": self._step}


def _beside(cell: Cell, way: str) -> Cell:
    down, right = _MOVES[way]
    return cell[0] + down, cell[1] + right


@cache
def _neighbours(cell: Cell) -> tuple[Cell, ...]:
    around = (_beside(cell, way) for way in _MOVES)
    return tuple(c for c in around if 0 <= c[0] < _SIDE and 0 <= c[1] < _SIDE)


def _passages(rng: np.random.Generator) -> set[tuple[Cell, Cell]]:
    """A random depth-first spanning tree, then some dead ends opened; both directions listed."""
    start = (int(rng.integers(_SIDE)), int(rng.integers(_SIDE)))
    seen, stack = {start}, [start]
    opened: set[tuple[Cell, Cell]] = set()
    while stack:
        cell = stack[-1]
        fresh = [c for c in _neighbours(cell) if c not in seen]
        if not fresh:
            stack.pop()
            continue
        chosen = fresh[int(rng.integers(len(fresh)))]
        opened |= {(cell, chosen), (chosen, cell)}
        seen.add(chosen)
        stack.append(chosen)
    for cell in [(row, column) for row in range(_SIDE) for column in range(_SIDE)]:
        closed = [c for c in _neighbours(cell) if (cell, c) not in opened]
        if len(_neighbours(cell)) - len(closed) == 1 and rng.random() < _BRAID:
            chosen = closed[int(rng.integers(len(closed)))]
            opened |= {(cell, chosen), (chosen, cell)}
    return opened


def _distances(goal: Cell, opened: set[tuple[Cell, Cell]]) -> dict[Cell, int]:
    """Moves to the goal from every cell, breadth first."""
    distance = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for beside in _neighbours(cell):
            if beside not in distance and (cell, beside) in opened:
                distance[beside] = distance[cell] + 1
                queue.append(beside)
    return distance
