"""Entries and small ledgers that the ledger tests share."""

from __future__ import annotations

import struct

from dp.config import Mode
from dp.journal import HEADER_BYTES
from dp.ledger import Ledger, LedgerEntry

DELTA = 1e-5


def entry(number=0, attempt=0, *, run="run", step=0, part=0, **change):
    fields = {
        "mode": Mode.SILO,
        "q": 1.0,
        "z": 4.0,
        "steps": 1,
        "dimension": 10,
        "descriptor_sha256": bytes(32),
    }
    return LedgerEntry(
        run=run, round=number, attempt=attempt, step=step, part=part, **{**fields, **change}
    )


def none_entry(number=0, attempt=0, **change):
    return entry(number, attempt, mode=Mode.NONE, z=0.0, **change)


def opened(path, cap=100.0):
    return Ledger.open(path, delta=DELTA, epsilon_cap=cap)


def frames(data):
    """Offsets at which records begin, and the end."""
    offsets = [0]
    while offsets[-1] < len(data):
        (length,) = struct.unpack_from(">I", data, offsets[-1])
        offsets.append(offsets[-1] + HEADER_BYTES + length)
    return offsets


def small_ledger(path):
    """Genesis, two debits and an agreement, with the heavy divergences of mode none as zeros."""
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        ledger.reserve(none_entry(1))
        ledger.mark_agreed(none_entry(1).identity)
        return path.read_bytes(), ledger.head()
