"""Plays at work: many of them in step, each with its own tries, all tries in common batches.

A play is a generator (``evolution/parts/seam.py``). Each is asked what it wants, the wishes of all
are played at once, and each is sent what became of its own. So a batch is as large as the engine
likes, and no play sees another's.

Invariants:

1. A play sees its own tries alone, and while it is asked, its own memory alone is open.
2. It may ask for tasks that it was given, for no more tries than it was given, and as often for
   words.
3. What it says happened did: it returns trajectories that it was sent.
4. The random draws of a try depend on the try's place: that of the play's own tasks in the round's
   order. How other plays go on changes no place.
5. Where plays are told apart, one that fails costs its own episodes; else it fails the round.

Covered: one round's plays. Not covered: what a play is (``evolution/parts/plays``), the episodes
themselves (``evolution/rollout/episodes.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolution.errors import LocalTimeError, NotWantedError, PartError
from evolution.parts.seam import MemoryView, PartWork, Play, Playing, Wish
from evolution.rollout.episodes import EpisodeBatch, figures_of
from evolution.trajectory import Ask, Task, Trajectory
from ops.logs.logger import get_logger

__all__ = ["Played", "Player", "play_all"]

_log = get_logger(__name__)

Tries = Callable[[Sequence[Task], Sequence[int]], EpisodeBatch]
"""Plays tasks, each with the key of its random draws."""
Words = Callable[[Sequence[Ask], Sequence[int]], Sequence[str]]
"""Answers questions, each with the key of its random draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What became of all plays."""

    counted: tuple[Trajectory, ...]
    """Episodes that the plays returned, play after play."""
    kept: tuple[Trajectory, ...]
    """Everything that was played to its end, in the order of places; for the memory."""
    dropped: int
    """Tries that failed, and those of plays that did."""
    environment_steps: int
    """Steps taken, including those of dropped tries."""

    @property
    def figures(self) -> dict[str, float]:
        """What was played in numbers, for the silo's own operator."""
        return {
            **figures_of(self.kept),
            "dropped": float(self.dropped),
            "environment_steps": float(self.environment_steps),
        }


@dataclass(kw_only=True, slots=True)
class Player:
    """One play with what it was given."""

    play: Play
    tasks: Sequence[Task]
    """A task as often as it may be tried."""
    places: Sequence[int]
    """Of each of them in the round."""
    view: MemoryView
    work: PartWork
    running: Playing | None = None
    asked: int = 0
    said: int = 0
    sent: list[Trajectory] = field(default_factory=list)
    returned: tuple[Trajectory, ...] = ()
    failed: bool = False


def play_all(players: Sequence[Player], tries: Tries, words: Words, *, apart: bool) -> Played:
    """Run every play to its end.

    Raises:
        PartError: A play did what no play may do, and plays are not told apart.
    """
    kept: list[tuple[int, Trajectory]] = []
    dropped = steps = 0
    wishes = {i: _ask(player, None, apart=apart) for i, player in enumerate(players)}
    while any(wishes.values()):
        placed = sorted(
            (place, i, j) for i, wish in wishes.items() for j, (place, _) in enumerate(wish)
        )
        answers: dict[int, list[Any]] = {
            i: [None] * len(wish) for i, wish in wishes.items() if wish
        }
        tried = [(at, task) for at in placed if isinstance(task := _at(wishes, at), Task)]
        asked = [(at, one) for at in placed if isinstance(one := _at(wishes, at), Ask)]
        if asked:
            said = words([one for _, one in asked], [place for (place, _, _), _ in asked])
            for ((_, i, j), _), text in zip(asked, said, strict=True):
                answers[i][j] = text
        if tried:
            batch = tries([task for _, task in tried], [place for (place, _, _), _ in tried])
            steps += batch.environment_steps
            dropped += batch.dropped
            for ((place, i, j), _), played in zip(tried, batch.tries, strict=True):
                answers[i][j] = played
                if played is not None:
                    players[i].sent.append(played)
                    kept.append((place, played))
        wishes = {i: _ask(players[i], answer, apart=apart) for i, answer in answers.items()}
    kept.sort(key=lambda one: one[0])
    counted = tuple(one for player in players for one in player.returned)
    lost = sum(len(player.sent) for player in players if player.failed)
    return Played(
        counted=counted,
        kept=tuple(one for _, one in kept),
        dropped=dropped + lost,
        environment_steps=steps,
    )


def _at(wishes: Mapping[int, list[tuple[int, Wish]]], at: tuple[int, int, int]) -> Wish:
    _, i, j = at
    return wishes[i][j][1]


def _ask(player: Player, answer: Sequence[Any] | None, *, apart: bool) -> list[tuple[int, Wish]]:
    """What a play wants next, each with its place; nothing if it is at its end."""
    try:
        with player.view.opened():
            return _wish(player, answer)
    except (LocalTimeError, NotWantedError):
        raise
    except Exception as error:
        if not apart:
            raise
        # Which unit's play failed is data: it costs that unit its episodes and nobody else.
        player.failed, player.returned = True, ()
        _log.warning("play_failed", error=type(error).__name__)
        return []


def _wish(player: Player, answer: Sequence[Any] | None) -> list[tuple[int, Wish]]:
    try:
        if player.running is None:
            player.running = player.play.play(player.tasks, player.view, player.work)
            wanted = list(next(player.running))
        else:
            wanted = list(player.running.send(answer or ()))
    except StopIteration as over:
        player.returned = _returned(player, over.value)
        return []
    own = {(task.environment, task.task_id) for task in player.tasks}
    if not wanted or not all(
        isinstance(one, Ask) or (isinstance(one, Task) and (one.environment, one.task_id) in own)
        for one in wanted
    ):
        raise PartError("a play asked for nothing, or for tasks that it was not given")
    placed: list[tuple[int, Wish]] = []
    for one in wanted:
        number = player.said if isinstance(one, Ask) else player.asked
        if number >= len(player.places):
            raise PartError(
                f"a play asked for more than the {len(player.tasks)} tries it was given, or more "
                "often for words"
            )
        placed.append((player.places[number], one))
        if isinstance(one, Ask):
            player.said += 1
        else:
            player.asked += 1
    return placed


def _returned(player: Player, said: object) -> tuple[Trajectory, ...]:
    found = tuple(said) if isinstance(said, list | tuple) else (None,)
    sent = {id(one) for one in player.sent}
    if any(id(one) not in sent for one in found) or len({*map(id, found)}) != len(found):
        raise PartError("a play returns a list of trajectories that it was sent, each once")
    return found
