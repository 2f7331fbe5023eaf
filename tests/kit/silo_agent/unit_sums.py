"""Sums of units' gradients for a session to send."""

import numpy as np

from dp.noise.grid import Grid
from dp.noise.unit_sum import UnitSum
from tests.kit.silo_agent.session_round import CLIP, DIMENSION, GRID

UNIT = np.full(DIMENSION, 0.25, np.float32)
UNITS = 5


def sum_of(units, *, max_units=20):
    made = UnitSum(Grid(clip_l2=CLIP, steps=GRID, dimension=DIMENSION), max_units=max_units)
    for _ in range(units):
        made.add(UNIT)
    return made
