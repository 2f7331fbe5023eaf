"""Releases that the tests of noise shares are made of."""

from __future__ import annotations

import numpy as np

from dp.config import Mode
from dp.ledger.entry import Head
from dp.ledger.receipt import ISSUER, Receipt
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import NoiseShare
from dp.noise.source import NoiseSource

D = 500
DESCRIPTOR = bytes(range(32))
GRID = Grid(clip_l2=1.0, steps=2**20, dimension=D)
BLOCK = MetricsBlock(("episodes", "successes"), (64.0, 64.0))
METRICS = {"episodes": 10, "successes": 3}


def receipt(mode=Mode.NONE, *, descriptor=DESCRIPTOR, dimension=D, units=()):
    return Receipt(
        issuer=ISSUER,
        descriptor_sha256=descriptor,
        dimension=dimension,
        mode=mode,
        record=Head(seq=1, sha256=bytes(32)),
        units=units,
    )


def release(*, grid=GRID, block=BLOCK, sigma=0.0, metrics_sigma=0.0, source=None, **change):
    share = NoiseShare(
        grid=grid,
        block=block,
        sigma=sigma,
        metrics_sigma=metrics_sigma,
        source=NoiseSource.fresh("test") if source is None else source,
    )
    arguments = {
        "delta": np.zeros(grid.dimension),
        "metrics": METRICS,
        "receipt": receipt(),
        "descriptor_sha256": DESCRIPTOR,
    }
    return share.encode(**{**arguments, **change})
