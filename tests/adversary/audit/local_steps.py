"""The silo's own noisy training as a mechanism under audit: ledger, receipt, clip and noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Ledger
from dp.steps.sgd import DpStep
from tests.adversary.audit.canary_rows import CLIP_L2, backend, rows, unit

DELTA = 1e-5


def local_spec(*, q, z, steps, population):
    return PrivacySpec(
        mode=Mode.RECORD_LOCAL,
        unit="task",
        clip_l2=CLIP_L2,
        noise_multiplier=z,
        delta=DELTA,
        epsilon_cap=1e9,
        grid=1 << 16,
        metrics_noise_multiplier=1.0,
        record=RecordSpec(
            sampling_rate=q,
            expected_units=2 * population,
            steps_per_round=steps,
            delta_clip_l2=1.0,
        ),
    )


class LocalSteps:
    """Starts runs of ``record_local`` that share one ledger."""

    def __init__(self, directory: Path, *, q, z, steps, dimension, population=None):
        self.dimension = dimension
        self.population = tuple(unit(j) for j in range(dimension))[:population]
        self.spec = local_spec(q=q, z=z, steps=steps, population=len(self.population))
        self.ledger = Ledger.open(directory / "ledger", delta=DELTA, caps={"task": 1e9})
        self.runs = 0

    def __call__(self):
        self.runs += 1
        receipt = self.ledger.reserve_training(
            run=f"audit-{self.runs}", round=0, spec=self.spec, adapter_sha256=bytes(32)
        )
        step = DpStep(receipt=receipt, dimension=self.dimension, backend=backend(self.dimension))
        scale = self.spec.record.expected_units / self.spec.clip_l2

        def mechanism(present, _step):
            rows_of = {unit(j): rows(j) for j in np.flatnonzero(present).tolist()}
            released = step.gradient(self.population, rows_of)
            return released.astype(np.float64) * scale

        return mechanism

    def noise(self, steps):
        """What is released when no unit is there, in multiples of C: shape (steps, d)."""
        mechanism, nobody = self(), np.zeros(self.dimension, dtype=bool)
        return np.array([mechanism(nobody, step) for step in range(steps)])

    def close(self):
        self.ledger.close()
