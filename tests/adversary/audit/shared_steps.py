"""A release that silos share as a mechanism under audit: three ledgers, three shares, one sum.

The canaries are units of the first silo; the others add their noise and nothing else. What is
released is the sum of all three vectors in the ring, as it is once the masks have cancelled.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp.accounting.charge import attempt_charges
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.ledger import Ledger, LedgerEntry
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import NoiseShare, lift, metrics_sigma, per_silo_sigma
from dp.noise.source import NoiseSource
from dp.steps.sgd import unit_sum
from tests.adversary.audit.canary_rows import CLIP_L2, backend, rows, unit

DELTA = 1e-5
SILOS = THRESHOLD = N_MIN = 3
BLOCK = MetricsBlock(("episodes/craft", "successes/craft"), (64.0, 64.0))


def shared_spec(*, q, z, population):
    return PrivacySpec(
        mode=Mode.RECORD_DISTRIBUTED,
        unit="task",
        clip_l2=CLIP_L2,
        noise_multiplier=z,
        delta=DELTA,
        epsilon_cap=1e9,
        grid=1 << 16,
        metrics_noise_multiplier=z,
        record=RecordSpec(sampling_rate=q, expected_units=2 * population, steps_per_round=1000),
    )


def silo_spec(z):
    return PrivacySpec(
        mode=Mode.SILO,
        unit="task",
        clip_l2=CLIP_L2,
        noise_multiplier=z,
        delta=DELTA,
        epsilon_cap=1e9,
        metrics_noise_multiplier=z,
    )


class SharedReleases:
    """Releases of three silos; every release has an identity and a debit of its own."""

    def __init__(self, directory: Path, *, spec, dimension):
        self.spec = spec
        self.dimension = dimension
        self.grid = Grid(clip_l2=spec.clip_l2, steps=spec.grid, dimension=dimension)
        self.sigma = per_silo_sigma(spec.noise_multiplier, spec.grid, THRESHOLD, N_MIN, 0)
        self.metrics_sigma = metrics_sigma(spec, BLOCK, tries=2, t=THRESHOLD, n_min=N_MIN, c=0)
        self.ledgers = [
            Ledger.open(directory / f"ledger-{silo}", delta=DELTA, caps={"task": 1e9, "silo": 1e9})
            for silo in range(SILOS)
        ]
        self.releases = 0
        self.metrics = np.zeros(BLOCK.size)

    def shares(self, vectors, figures):
        """Each silo's vector with its noise, as signed integers: shape (silos, d + m)."""
        self.releases += 1
        descriptor = self.releases.to_bytes(32, "big")
        encoded = []
        for ledger, vector, metrics in zip(self.ledgers, vectors, figures, strict=True):
            receipt = ledger.reserve(
                LedgerEntry(
                    run="audit",
                    round=self.releases,
                    attempt=0,
                    step=0,
                    part=0,
                    mode=self.spec.mode,
                    charges=attempt_charges(self.spec, step=0),
                    dimension=self.dimension,
                    descriptor_sha256=descriptor,
                )
            )
            share = NoiseShare(
                grid=self.grid,
                block=BLOCK,
                sigma=self.sigma,
                metrics_sigma=self.metrics_sigma,
                source=NoiseSource.fresh("audit"),
            )
            encoded.append(
                share.encode(
                    delta=vector, metrics=metrics, receipt=receipt, descriptor_sha256=descriptor
                )
            )
        return np.array(encoded, dtype=np.uint32)

    def total(self, vectors, figures):
        """The sum of a release in multiples of C, and of the metrics block in grid units."""
        summed = self.shares(vectors, figures).sum(axis=0, dtype=np.uint32)
        signed = lift(summed)
        return signed[: self.dimension] / self.spec.grid, signed[self.dimension :]

    def close(self):
        for ledger in self.ledgers:
            ledger.close()


class SharedSteps(SharedReleases):
    """Starts runs of ``record_distributed``."""

    def __init__(self, directory: Path, *, q, z, dimension):
        super().__init__(
            directory, spec=shared_spec(q=q, z=z, population=dimension), dimension=dimension
        )
        self.population = tuple(unit(j) for j in range(dimension))
        self.backend = backend(dimension)

    def units(self, present):
        return unit_sum(
            self.population,
            {unit(j): rows(j) for j in np.flatnonzero(present).tolist()},
            spec=self.spec,
            dimension=self.dimension,
            backend=self.backend,
        )

    def __call__(self):
        nobody = np.zeros(self.dimension, dtype=bool)

        def mechanism(present, _step):
            vectors = [self.units(present), self.units(nobody), self.units(nobody)]
            return self.total(vectors, [None] * SILOS)[0]

        return mechanism
