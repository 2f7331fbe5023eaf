"""What was freed piece by piece goes back to the machine."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

from evolution.model.allocator import give_back

PIECES, PIECE_BYTES = 2_000, 100_000


def resident_bytes():
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    ]
    return 1024 * int(line.split()[1])


class Model:
    """Like one of torch's: only the collector of cycles frees it."""

    def __init__(self):
        self.layers = [np.ones(PIECE_BYTES, np.uint8) for _ in range(PIECES)]
        self.itself = self


def test_freed_pieces_between_used_ones_are_given_back():
    pieces = [np.ones(PIECE_BYTES, np.uint8) for _ in range(PIECES)]
    kept = pieces[:: PIECES // 10]
    used = resident_bytes()
    del pieces
    give_back()
    assert len(kept) == 10
    assert used - resident_bytes() > 0.8 * PIECES * PIECE_BYTES


def test_a_model_in_a_cycle_goes_where_it_is_looked_for():
    gc.collect()
    gc.disable()
    try:
        model = Model()
        used = resident_bytes()
        del model
        give_back()
        assert used - resident_bytes() < 0.1 * PIECES * PIECE_BYTES
        give_back(collect=True)
        assert used - resident_bytes() > 0.8 * PIECES * PIECE_BYTES
    finally:
        gc.enable()
