"""Rows, an objective, a plan and a tolerance for training steps."""

from __future__ import annotations

import numpy as np

from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.trainer import SftSettings
from evolution.trajectory import Step, Task, Trajectory

RANK, ALPHA = 4, 8.0
NLL = Part.own("nll")
PLAN = SftSettings(epochs=2, batch_size=5, learning_rate=3e-3, grad_clip_l2=1.0, seed=5)
ROUNDING = 1e-5
"""Entries move by about 0.02 in these runs; measured differences are near 1e-7."""


def episode(seed: int) -> Trajectory:
    rng = np.random.default_rng(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(6, 40, count))

    return Trajectory(
        task=Task(environment="early", task_id=seed),
        steps=tuple(
            Step(
                observation="o",
                action="a",
                context_ids=words(4 + turn),
                action_ids=words(1 + seed % 3),
                action_logprobs=(-1.0,) * (1 + seed % 3),
            )
            for turn in range(1 + seed % 4)
        ),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=0,
    )


EPISODES = [episode(seed) for seed in range(17)]
ROWS = [Row.of(one) for one in EPISODES]


def apart(one, two) -> float:
    return max(float(np.abs(one[name] - two[name]).max()) for name in one)
