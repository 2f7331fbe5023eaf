"""T3: whether the environment can be inferred from what the agent has seen (condition C3).

θ_0 plays the same tasks with the same random streams in every world. From the prefix h_t, all that
an agent was told, saw and did up to its t-th observation, a classifier says which world it is:
multinomial logistic regression on a bag of tokens, learned on two thirds of the tasks and counted
on the others, so that it cannot know a task by heart.

    t*      the smallest t whose held-out accuracy is within ``LIMITS.saturated`` of the best
    η̂_cls   its error there; the test passes where it is at most ``LIMITS.error``
    η̂_ker   0: an agent acts in the real environment and predicts nothing of it

t counts observations. An agent has acted t − 1 times by then: with t* = 1 it knows from the start.

Value lost by the prefix (C3-rec) is bounded by itself where every episode begins with a reset, as
all of ours do, so no fresh starts are compared.

Covered: any number of worlds, episodes that end early, whose prefix stays what it was. Not covered:
what a larger classifier would find in the order of words; what two worlds do not show in any
episode that θ_0 plays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evolution.diagnose.kernels import LIMITS, Limits
from evolution.diagnose.policies import Held, Policies
from evolution.diagnose.rates import Rate
from evolution.diagnose.worlds import World, told
from evolution.trajectory import Task, Trajectory

__all__ = ["T3", "Classifier", "environment_shows", "prefix_words"]

_HELD_OUT: Final = 3
"""Every third task is held out."""
_STEPS: Final = 300
_RIDGE: Final = 1e-3
_MOST_WORDS: Final = 4_000
"""The commonest words alone; others are left out."""
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class T3:
    """The test."""

    passed: bool | None
    """None where there is nothing to tell apart, or nothing was played."""
    why: str
    accuracy: tuple[Rate, ...]
    """Held out, for t = 1, 2, …"""
    chance: float
    """What guessing comes to."""
    t_star: int | None
    eta_cls: float | None
    eta_ker: float
    """0, see the module."""
    words: tuple[str, ...]
    """Those that the classifier at t* goes by most."""


class Classifier:
    """Multinomial logistic regression, by accelerated gradient descent from zero (Nesterov 1983).

    Deterministic; with a small ridge the minimum is unique.
    """

    def __init__(
        self, rows: Sequence[Counter[str]], labels: Sequence[int], *, classes: int
    ) -> None:
        count = Counter(word for row in rows for word in row)
        self.words = tuple(word for word, _ in count.most_common(_MOST_WORDS))
        self._place = {word: place for place, word in enumerate(self.words)}
        self.weights: Vector = np.zeros((len(self.words) + 1, classes))
        self._fit(self._features(rows), np.asarray(labels))

    def guess(self, rows: Sequence[Counter[str]]) -> npt.NDArray[np.int64]:
        """The likeliest class of each row; the first of equally likely ones."""
        return np.asarray(np.argmax(self._features(rows) @ self.weights, axis=1), dtype=np.int64)

    def _features(self, rows: Sequence[Counter[str]]) -> Vector:
        found = np.zeros((len(rows), len(self.words) + 1))
        for number, row in enumerate(rows):
            for word, times in row.items():
                if word in self._place:
                    found[number, self._place[word]] = np.log1p(times)
        # Rows of one length: long prefixes would else need other steps than short ones.
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        found /= np.where(norms > 0, norms, 1.0)
        found[:, -1] = 1.0
        return found

    def _fit(self, features: Vector, labels: npt.NDArray[np.int64]) -> None:
        rows, classes = len(labels), self.weights.shape[1]
        wanted = np.eye(classes)[labels]
        # Of logistic loss the curvature is at most ‖x‖²/2, and ‖x‖² is 2 by construction.
        step = 1.0 / (1.0 + _RIDGE)
        ahead = self.weights
        for number in range(_STEPS):
            scores = features @ ahead
            scores -= scores.max(axis=1, keepdims=True)
            shares = np.exp(scores)
            shares /= shares.sum(axis=1, keepdims=True)
            slope = features.T @ (shares - wanted) / rows + _RIDGE * ahead
            taken = ahead - step * slope
            ahead = taken + number / (number + 3) * (taken - self.weights)
            self.weights = taken


def prefix_words(instruction: str, trajectory: Trajectory, t: int) -> Counter[str]:
    """The words of h_t; of a shorter episode all that was seen before its last action."""
    steps = trajectory.steps[:t]
    said = [instruction]
    for place, step in enumerate(steps):
        said.append(step.observation)
        if place + 1 < len(steps):
            said.append(step.action)
    return Counter(word for text in said for word in text.lower().split())


def environment_shows(
    worlds: Sequence[World],
    policies: Policies,
    *,
    start: Held,
    episodes: int,
    horizon: int,
    limits: Limits = LIMITS,
) -> T3:
    """Run T3 with so many episodes in each world."""
    if len(worlds) < 2:  # one world cannot be taken for another
        return _nothing("there is one kind of environment")
    played: dict[str, Mapping[int, Trajectory]] = {}
    for world in worlds:
        tasks = [Task(environment=world.environment, task_id=t) for t in world.tasks[:episodes]]
        tries = policies.play(start, world, tasks).tries
        # By place, for two environments may number their tasks otherwise.
        played[world.name] = {n: one for n, one in enumerate(tries) if one is not None}
    places = sorted(set.intersection(*(set(found) for found in played.values())))
    if len(places) < 2 * _HELD_OUT:
        return _nothing(
            f"{len(places)} tasks could be played in every world, too few to learn from"
        )
    said = {
        world.name: {n: told(world, played[world.name][n].task.task_id) for n in places}
        for world in worlds
    }
    longest = max(len(one.steps) for found in played.values() for one in found.values())
    accuracy, models = [], []
    for t in range(1, min(horizon, longest) + 1):
        rows = {
            n: [prefix_words(said[world.name][n], played[world.name][n], t) for world in worlds]
            for n in places
        }
        rate, model = _counted(rows, classes=len(worlds))
        accuracy.append(rate)
        models.append(model)
    best = max(rate.value for rate in accuracy)
    t_star = next(n for n, r in enumerate(accuracy, 1) if r.value >= best - limits.saturated)
    error = 1.0 - accuracy[t_star - 1].value
    passed = error <= limits.error
    shows = "shows" if passed else "does not show"
    return T3(
        passed=passed,
        why=(
            f"the environment {shows}: at observation {t_star} the classifier errs at "
            f"{100 * error:.1f} %, where guessing errs at {100 * (1 - 1 / len(worlds)):.0f} %"
        ),
        accuracy=tuple(accuracy),
        chance=1 / len(worlds),
        t_star=t_star,
        eta_cls=error,
        eta_ker=0.0,
        words=_telling(models[t_star - 1]) if best > 1 / len(worlds) + limits.error else (),
    )


def _counted(
    rows: Mapping[int, Sequence[Counter[str]]], *, classes: int
) -> tuple[Rate, Classifier]:
    places = list(rows)
    known = [n for k, n in enumerate(places) if k % _HELD_OUT]
    held_out = [n for k, n in enumerate(places) if not k % _HELD_OUT]
    labels = list(range(classes))
    model = Classifier(
        [row for n in known for row in rows[n]], labels * len(known), classes=classes
    )
    guesses = model.guess([row for n in held_out for row in rows[n]])
    right = int((guesses == np.array(labels * len(held_out))).sum())
    return Rate(count=right, total=classes * len(held_out)), model


def _telling(model: Classifier) -> tuple[str, ...]:
    spread = np.ptp(model.weights[:-1], axis=1)
    order = np.argsort(-spread, kind="stable")[:8]
    return tuple(model.words[place] for place in order if spread[place] > 0)


def _nothing(why: str) -> T3:
    return T3(
        passed=None,
        why=why,
        accuracy=(),
        chance=1.0,
        t_star=None,
        eta_cls=None,
        eta_ker=0.0,
        words=(),
    )
