"""Canary tasks: units that nobody could guess, each in the training data by a coin of its own.

A canary is one task with one episode of one turn: random words as the observation, random words as
the agent's answer. Nothing but having been trained on makes an answer likely, so a canary is about
the easiest unit there is to recognise; a real task shares most of what it teaches with others.

Invariants: canaries are distinct; which of them are members is decided by fair, independent coins
that depend on the seed alone and are not looked at by whoever trains or scores.

Covered: any tokenizer whose chat format ``evolution.rollout.conversation`` understands.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dp.steps.units import UnitId
from evolution.model.causal_lm import load_tokenizer
from evolution.rollout.conversation import ChatFormat
from evolution.trajectory import Step, Task, Trajectory

__all__ = ["ENVIRONMENT", "Canaries", "plant", "unit_of"]

ENVIRONMENT = "canary"
_OBSERVATION_WORDS = 4
_ANSWER_WORDS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """What is planted, and where."""

    rows: tuple[Trajectory, ...]
    """One episode for each task."""
    included: npt.NDArray[np.bool_]
    """The coins: whether the task's episode is in the training data."""

    @property
    def members(self) -> tuple[Trajectory, ...]:
        """The episodes that are trained on."""
        return tuple(row for row, there in zip(self.rows, self.included, strict=True) if there)

    @property
    def population(self) -> tuple[UnitId, ...]:
        """All tasks: that a task was explored is public, what it taught is not."""
        return tuple(unit_of(row) for row in self.rows)


def unit_of(row: Trajectory) -> UnitId:
    """The privacy unit of an episode: its task."""
    return UnitId(row.task.environment, str(row.task.task_id))


def plant(base_dir: str | Path, count: int, *, seed: int) -> Canaries:
    """Make canaries of the words of a base model's tokenizer, and throw their coins.

    The seed decides everything.
    """
    tokenizer = load_tokenizer(base_dir)
    chat = ChatFormat.from_tokenizer(tokenizer)
    special = set(tokenizer.all_special_tokens)
    words = sorted(word for word in tokenizer.get_vocab() if word not in special)
    rng = np.random.default_rng(seed)
    rows: dict[str, Trajectory] = {}
    while len(rows) < count:
        observation = " ".join(rng.choice(words, _OBSERVATION_WORDS))
        action = " ".join(rng.choice(words, _ANSWER_WORDS))
        answer = tuple(chat.answer(action))
        step = Step(
            observation=observation,
            action=action,
            context_ids=tuple(chat.opening("", observation)),
            action_ids=answer,
            action_logprobs=(0.0,) * len(answer),
        )
        row = Trajectory(
            task=Task(environment=ENVIRONMENT, task_id=len(rows)),
            steps=(step,),
            final_observation="",
            success=True,
            adapter_sha256="",
            round=0,
        )
        rows.setdefault(row.conversation_sha256, row)
    return Canaries(rows=tuple(rows.values()), included=rng.random(count) < 0.5)
