"""A pool like FedAgent's: 6,410 tasks of six types, of which the base solves 30 % of each."""

import numpy as np

SHARES = (0.25, 0.20, 0.18, 0.15, 0.12, 0.10)
SIZE = 6410
_COUNTS = [round(SIZE * share) for share in SHARES]
_COUNTS[0] += SIZE - sum(_COUNTS)

TYPES = np.repeat(np.arange(6), _COUNTS)
SOLVED = np.arange(SIZE) % 10 < 3
P0 = np.bincount(TYPES) / SIZE
