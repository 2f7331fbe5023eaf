"""Task ids: where they come from and how they are dealt out over silos.

A task is addressed by one integer that seeds everything random about it. Invariants:

1. The three splits are disjoint ranges of equal size: what the base model saw, what silos explore
   and what everybody is judged on never share a task id.
2. An environment names the values of one task attribute (its *labels*, for example the item to
   craft). The label of a task is ``labels[task_id % len(labels)]``, so every split holds all labels
   in equal parts and a label is known without building the task.
3. Shard ``i`` of ``n`` owns the labels whose index is ``i`` modulo ``n``. That is only fair when
   ``n`` divides the number of labels; anything else is refused rather than rounded.

Covered: addressing and partition by label. Not covered: Dirichlet-style soft partitions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from evolution.errors import ShardError, TaskIdError

__all__ = ["SPLIT_SIZE", "Shard", "Split", "label_index", "shard_index", "task_range", "task_rng"]

# A multiple of every count of labels up to 10 and of 12, 14, 15 and 16.
SPLIT_SIZE = 1_008_000


class Split(enum.StrEnum):
    """What a task may be used for."""

    PRETRAIN = "pretrain"
    TRAIN = "train"
    HELD_OUT = "held_out"


_SPLITS = tuple(Split)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One silo's part of an environment's labels."""

    index: int
    """Which part, counted from 0."""
    count: int
    """How many parts there are."""

    def __post_init__(self) -> None:
        """Refuse a part that does not exist.

        Raises:
            ShardError: The index is not below the count.
        """
        if not 0 <= self.index < self.count:
            raise ShardError(f"there is no shard {self.index} of {self.count}")


def task_range(split: Split, *, labels: int, shard: Shard | None = None) -> range:
    """The task ids of a split, or of one shard of it.

    Raises:
        ShardError: The labels cannot be dealt out evenly over that many shards.
    """
    start = _SPLITS.index(split) * SPLIT_SIZE
    if shard is None:
        return range(start, start + SPLIT_SIZE)
    shard_index(0, labels=labels, count=shard.count)
    return range(start + shard.index, start + SPLIT_SIZE, shard.count)


def shard_index(task_id: int, *, labels: int, count: int) -> int:
    """Which of ``count`` shards owns the label of a task.

    Raises:
        ShardError: The labels cannot be dealt out evenly over that many shards.
    """
    if count < 1 or labels % count:
        raise ShardError(f"{labels} task labels cannot be dealt out evenly over {count} shards")
    return label_index(task_id, labels=labels) % count


def label_index(task_id: int, *, labels: int) -> int:
    """The index of a task's label among the environment's labels.

    Raises:
        TaskIdError: The id belongs to no split.
    """
    if not 0 <= task_id < len(_SPLITS) * SPLIT_SIZE:
        raise TaskIdError(f"task id {task_id} belongs to no split")
    return task_id % labels


def task_rng(name: str, task_id: int) -> np.random.Generator:
    """A fresh generator that decides everything random about one task.

    It is the same for the same arguments; two environments never share a stream.
    """
    return np.random.default_rng([task_id, *name.encode()])
