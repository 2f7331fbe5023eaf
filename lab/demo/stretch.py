"""A long part of the demo: how much of it is done, and how long the rest may take.

What is left is the mean of the steps that are done, times those that are not; before the first is
done, a guess. A step that takes longer than that has a tenth of what it took so far before it.

Covered: steps that end one after the other or at once, told by several threads. Not covered: where
the guess comes from (``recipe.py``, ``guess.py``); drawing it (``progress.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Stretch", "span"]

_OVERDUE: Final = 0.1
_MINUTES_FROM_S: Final = 90
_ROUNDED_S: Final = 5


def span(seconds: float) -> str:
    """A duration for people."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(kw_only=True, slots=True)
class Stretch:
    """One part, begun when it is made."""

    title: str
    steps: int = 1
    """How many there are."""
    called: str = ""
    """What they are: ``rounds``."""
    guess_s: float | None = None
    """How long the whole may take; None if nobody can say before a step is done."""
    clock: Callable[[], float] = time.monotonic
    doing: str = ""
    """What goes on now, in words."""
    done: int = 0
    """Of ``steps``."""
    _began: float = field(init=False)
    _newest: float = field(init=False)
    """When the newest step was done."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """The clock runs from here."""
        self._began = self._newest = self.clock()

    def step(self, doing: str | None = None) -> None:
        """One more is done; ``doing`` says what comes now."""
        with self._lock:
            self._reach(self.done + 1)
        if doing is not None:
            self.doing = doing

    def reach(self, done: int) -> None:
        """So many are done; fewer than before changes nothing."""
        with self._lock:
            self._reach(done)

    def _reach(self, done: int) -> None:
        if done > self.done:
            self.done, self._newest = min(done, self.steps), self.clock()

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return self.clock() - self._began

    @property
    def left_s(self) -> float | None:
        """What the rest may take; None where nobody can say."""
        if self.done >= self.steps:
            return 0.0
        if self.done:
            one_s = (self._newest - self._began) / self.done
        elif self.guess_s is not None:
            one_s = self.guess_s / self.steps
        else:
            return None
        since_s = self.clock() - self._newest
        this_s = max(one_s - since_s, _OVERDUE * since_s)
        return this_s + one_s * (self.steps - self.done - 1)

    @property
    def share(self) -> float:
        """How much of its time is over, from 0 to 1; by steps where that is not known."""
        left = self.left_s
        if left is None:
            return self.done / self.steps
        return self.elapsed_s / (self.elapsed_s + left) if self.elapsed_s + left else 1.0

    def __str__(self) -> str:
        """All of it in one line."""
        left, line = self.left_s, f"{self.title}: "
        if self.steps > 1:
            line += f"{self.done} of {self.steps} {self.called}, "
        line += span(self.elapsed_s)
        if left is not None:
            line += f", about {_rounded(left)} left"
        return f"{line}; {self.doing}" if self.doing else line


def _rounded(seconds: float) -> str:
    """No more than is known of a time that is guessed."""
    if seconds >= _MINUTES_FROM_S:
        return f"{round(seconds / 60)} min"
    return f"{max(1, round(seconds / _ROUNDED_S)) * _ROUNDED_S} s"
