"""A silo in the record-level modes: a small environment, specs, and the work of a round."""

from __future__ import annotations

import dataclasses

import numpy as np

from dp.config import Mode, PrivacySpec, RecordSpec
from evolution.envs.environment import Environment
from evolution.methods.evolver import (
    EvolveSettings,
    LocalPrivacy,
    StepWork,
    Work,
)

RANK, ALPHA, STEPS = 2, 4.0, 3
SETTINGS = EvolveSettings(
    episodes=16, tries_per_task=2, max_new_tokens=3, window=2, learning_rate=1e-2
)
LOCAL = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=0.1,
    noise_multiplier=1.0,
    delta=1e-5,
    epsilon_cap=1e9,
    grid=1 << 14,
    metrics_noise_multiplier=1.0,
    record=RecordSpec(
        sampling_rate=0.5, expected_units=8, steps_per_round=STEPS, delta_clip_l2=1.0
    ),
)
SHARED = dataclasses.replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=dataclasses.replace(LOCAL.record, delta_clip_l2=None),
)


SURE = dataclasses.replace(SHARED, record=dataclasses.replace(SHARED.record, sampling_rate=1.0))
"""``SHARED`` in which every unit is in every step."""
REINFORCED = {
    "episodes": 64,
    "tries_per_task": 8,
    "batch_size": 64,
    "epochs": 1,
    # The tiny base ends an answer after some twenty words; one that is cut off has no loss.
    "max_new_tokens": 40,
    "nominal_tokens": 20,
}
"""Settings of GRPO and PPO: eight tasks with eight tries, one step."""


class Coin(Environment):
    """Solved by an answer whose first word stands in the first half of the alphabet."""

    name = family = "coin"
    max_steps = 1
    labels = ("even", "odd")
    solvable = True
    subjects = False

    @property
    def instruction(self):
        return "craft the goal item ."

    def reset(self, task_id):
        return f"goal plank . have {task_id % 10} log .", {}

    def step(self, action):
        solved = bool(action) and action[0].isalpha() and action[0] <= "m"
        return "done .", 0.0, True, False, {"solved": solved}

    def success(self, info):
        return info["solved"] and self.solvable

    def task_subject(self, task_id):
        return f"user {task_id % 3}" if self.subjects else ""


class Small(Coin):
    """Only five tasks exist."""

    name = family = "small"

    def task_ids(self, split, *, shard=None):
        return super().task_ids(split, shard=shard)[:5]


ENVIRONMENTS = {"coin": f"{__name__}:Coin", "small": f"{__name__}:Small"}


def work(adapter, ledger=None, *, spec=LOCAL, round_index=0, **settings):
    reserved = []

    def reserve():
        receipt = ledger.reserve_training(
            run="r", round=round_index, spec=spec, adapter_sha256=bytes(32)
        )
        reserved.append(receipt)
        return receipt

    made = Work(
        round=round_index,
        adapter=adapter,
        adapter_sha256=f"{round_index}",
        trainable=frozenset(adapter),
        settings=dataclasses.replace(SETTINGS, **settings),
        seed=0,
        privacy=LocalPrivacy(spec=spec, reserve=reserve if ledger else None),
    )
    return made, reserved


def step_work(adapter, *, spec=SHARED, round_index=0, step=0, **settings):
    return StepWork(
        round=round_index,
        step=step,
        adapter=adapter,
        adapter_sha256="x",
        names=tuple(sorted(adapter)),
        trainable=frozenset(adapter),
        settings=dataclasses.replace(SETTINGS, **settings),
        seed=0,
        spec=spec,
    )


def summed(total):
    out = np.zeros(total.grid.dimension, dtype=np.uint32)
    total.add_to(out)
    return out.view(np.int32)


def population(silo, round_index=0, unit="task", **settings):
    """The units of a silo's round and their rows, as a step would take them."""
    asked = step_work({}, round_index=round_index, **settings)
    return silo._population(asked, dataclasses.replace(SHARED, unit=unit))
