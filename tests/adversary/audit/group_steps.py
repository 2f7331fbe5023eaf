"""Noisy steps of GRPO on the small language model: what one of them tells of one task group.

Under audit is what a silo does in ``record_local`` with method ``grpo``: credit of each group's
tries, the objective ``clipped`` with a divergence from the base, per-unit gradients through the
model with a public divisor, ledger, clip and noise. The attacker has the adapter, the canary's
group and all others' sum without it, so a release is seen along the canary's own gradient: there it
is N(0, z²) without the canary and N(1, z²) with it, in multiples of C, as long as no other group's
gradient knows that it is there.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dp.ledger.ledger import Ledger
from dp.steps.sgd import DpStep
from dp.steps.units import UnitId
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.trajectory import Group, Task
from lab.membership.canaries import ENVIRONMENT, plant
from lab.membership.training import BACKEND, Settings, trainer_of
from tests.adversary.audit.canary_rows import CLIP_L2
from tests.adversary.audit.local_steps import DELTA, local_spec
from tests.kit.paths import ROOT

GROUPS, TRIES = 3, 2
STEPS = 100
"""Of one training, half of them with the canary."""
DIVISOR = 1.0
"""Of a group's sum: small, so that each gradient is longer than the clip."""
OBJECTIVE = Part.own("clipped", kl="k2", kl_to="base", kl_beta=0.1)
WORK = PartWork(
    round=1,
    tries_per_task=TRIES,
    best_per_task=True,
    temperature=1.0,
    rng=np.random.default_rng(0),
)


def by_group(groups):
    """Each group's rows, credited as the driver does: a fresh part for each."""
    nothing = MemoryView(successes=lambda _shortest: (), groups=tuple)
    credit = Part.own("group-relative")
    return [credit.make().credit([group], nothing, WORK) for group in groups]


class GroupSteps:
    """Releases of one step at one adapter, with the canary's group and without it."""

    def __init__(self, directory: Path, *, z, releases, credited=by_group):
        settings = Settings(base_dir=ROOT / "lab" / "base_model", rank=1, seed=0)
        self.trainer = trainer_of(settings)
        self.names = settings.trainable()
        self.credited = credited
        self.population = tuple(UnitId(ENVIRONMENT, str(number)) for number in range(GROUPS))
        self.groups = self._played(plant(settings.base_dir, GROUPS * TRIES, seed=3).rows)
        self.spec = local_spec(q=1.0, z=z, steps=STEPS, population=GROUPS)
        self.trainings = -(-2 * releases // STEPS)
        self.directory = directory

    def _played(self, tries):
        """Groups of the first tries, of which half succeeded."""
        groups = []
        for number in range(GROUPS):
            task = Task(environment=ENVIRONMENT, task_id=number)
            own = [
                dataclasses.replace(one, task=task, success=bool(place % 2))
                for place, one in enumerate(tries[number * TRIES : (number + 1) * TRIES])
            ]
            groups.append(Group(task=task, round=1, trajectories=tuple(own)))
        return groups

    def _rows_of(self, groups):
        """Rows by unit, with what the objective asks of the base and of the model."""
        rows_of = {}
        for group, rows in zip(groups, self.credited(groups), strict=True):
            said = self.trainer.logprobs(rows)
            rows_of[UnitId(ENVIRONMENT, str(group.task.task_id))] = tuple(
                dataclasses.replace(row, logprobs=value, known={"base": value - np.float32(0.1)})
                for row, value in zip(rows, said, strict=True)
            )
        return rows_of

    def _gradients(self):
        return self.trainer.gradients(
            self.names, OBJECTIVE, backend=BACKEND, divisor=DIVISOR, temperature=1.0
        )

    def seen(self):
        """Releases along the canary's gradient, in multiples of C: with it, and without."""
        with_it = self._rows_of(self.groups)
        without = self._rows_of(self.groups[1:])
        clipped = {}
        for unit, gradient in zip(
            with_it, self._gradients().unit_gradients(list(with_it.values())), strict=True
        ):
            norm = float(np.linalg.norm(gradient))
            assert norm > CLIP_L2, f"{unit} would not be clipped"
            clipped[unit] = gradient.astype(np.float64) * (CLIP_L2 / norm)
        canary = self.population[0]
        direction = clipped[canary] / CLIP_L2
        others = sum(
            CLIP_L2 / np.linalg.norm(gradient) * gradient.astype(np.float64)
            for gradient in self._gradients().unit_gradients(list(without.values()))
        )
        found = np.empty((self.trainings * STEPS // 2, 2))
        for number, pair in enumerate(np.split(found, self.trainings)):
            with self._ledger(number) as ledger:
                receipt = ledger.reserve_training(
                    run="audit", round=0, spec=self.spec, adapter_sha256=bytes(32)
                )
            step = DpStep(receipt=receipt, dimension=len(direction), backend=self._gradients())
            for place in np.ndindex(pair.shape):
                rows_of = without if place[1] else with_it
                released = step.gradient(self.population, rows_of).astype(np.float64)
                along = (released * self.spec.record.expected_units - others) @ direction
                pair[place] = along / CLIP_L2
        return found[:, 0], found[:, 1]

    def _ledger(self, number):
        """One of its own for each training: no cap is meant for as many as are watched here."""
        return Ledger.open(self.directory / f"ledger-{number}", delta=DELTA, caps={"task": 1e9})
