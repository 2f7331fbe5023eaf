"""Entries and small ledgers that the ledger tests share."""

from __future__ import annotations

import json
import struct

from dp.accounting.charge import Charge
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.ledger.journal import HEADER_BYTES
from dp.ledger.ledger import Ledger, LedgerEntry

DELTA = 1e-5
ADAPTER = bytes(range(32, 64))
LOCAL = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=1.0,
    noise_multiplier=1.4,
    delta=DELTA,
    epsilon_cap=8.0,
    grid=2**17,
    metrics_noise_multiplier=6.0,
    record=RecordSpec(
        sampling_rate=0.05,
        expected_units=50,
        steps_per_round=20,
        delta_clip_l2=2.0,
        silo_noise_multiplier=3.0,
    ),
)


def charge(unit="silo", *, q=1.0, z=4.0, steps=1, delta=0.0):
    return Charge(unit=unit, q=q, z=z, steps=steps, delta=delta)


def entry(number=0, attempt=0, *, run="run", step=0, part=0, **change):
    fields = {
        "mode": Mode.SILO,
        "charges": (charge(),),
        "dimension": 10,
        "descriptor_sha256": bytes(32),
    }
    return LedgerEntry(
        run=run, round=number, attempt=attempt, step=step, part=part, **{**fields, **change}
    )


def none_entry(number=0, attempt=0, **change):
    return entry(number, attempt, mode=Mode.NONE, charges=(), **change)


def opened(path, cap=100.0, **caps):
    return Ledger.open(path, delta=DELTA, caps={"silo": cap, "task": cap, "user": cap, **caps})


def trained(ledger, number=0, *, run="run", spec=LOCAL):
    return ledger.reserve_training(run=run, round=number, spec=spec, adapter_sha256=ADAPTER)


def frames(data):
    """Offsets at which records begin, and the end."""
    offsets = [0]
    while offsets[-1] < len(data):
        (length,) = struct.unpack_from(">I", data, offsets[-1])
        offsets.append(offsets[-1] + HEADER_BYTES + length)
    return offsets


def record_at(path, number):
    """The JSON object of one record."""
    data = path.read_bytes()
    start, end = frames(data)[number : number + 2]
    return json.loads(data[start + HEADER_BYTES : end])


def small_ledger(path):
    """Genesis, two uploads without a charge and an agreement: short records."""
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        ledger.reserve(none_entry(1))
        ledger.mark_agreed(none_entry(1).identity)
        return path.read_bytes(), ledger.head()
