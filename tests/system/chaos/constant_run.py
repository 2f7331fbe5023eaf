"""Four silos with the ``constant`` evolver, masked and noised: rounds of a second or two.

Silo k moves along one common pattern by a power of two of its own. The noise is so small that the
sum, projected on the pattern, says exactly whose vectors are in it, and still every upload is
charged. The vector has two chunks, so that an upload can be cut in half: no part of one is kept.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evolution.methods.constant import constant_pattern
from federation.adapter.encoding import encode_adapter
from lab.loopback import LoopbackFederation
from tests.kit.processes import constant_federation as cf

SILOS = cf.SILOS
VALUES = {silo: 2.0 ** -(k + 8) for k, silo in enumerate(SILOS)}
WIDE = 60_000
NOISE = 0.001
TOLERANCE = min(VALUES.values()) / 4
"""Noise moves the projection by less than a tenth of it."""


def tensors() -> dict[str, np.ndarray]:
    prefix = "base_model.model.layers.0.proj"
    return {
        f"{prefix}.lora_A.weight": np.ones((cf.RANK, WIDE), np.float32),
        f"{prefix}.lora_B.weight": np.zeros((WIDE, cf.RANK), np.float32),
    }


DIMENSION = 2 * cf.RANK * WIDE


def prepare(
    loopback: LoopbackFederation, rounds: int, *, phase_deadline_s: int
) -> tuple[Path, Path]:
    """Join everybody and write plan and adapter; the coordinator runs."""
    for silo_id in SILOS:
        loopback.enrol(silo_id)
        cf.configure(loopback, silo_id, value=VALUES[silo_id], policy=cf.policy_toml(v1=True))
    loopback.publish_roster(colluding=1)
    plan, adapter = cf.write_run(
        loopback,
        # One silo is killed in many rounds that follow each other, and must be asked in each.
        cf.plan_toml(
            rounds=rounds, mode="silo", noise=NOISE, phase_deadline_s=phase_deadline_s
        ).replace("[rounds]\n", "[rounds]\nsit_out_after = 0\n"),
    )
    adapter.write_bytes(encode_adapter(tensors()))
    return plan, adapter


def members(total: np.ndarray) -> tuple[str, ...] | None:
    """Whose vectors a released sum is of; None if it is the sum of no set of silos.

    Args:
        total: Signed integers of the delta.
    """
    pattern = constant_pattern(1.0, DIMENSION).astype(np.float64)
    moved = total.astype(np.float64) * (cf.CLIP / cf.GRID)
    found = float(moved @ pattern / (pattern @ pattern))
    inside = []
    for silo_id, value in sorted(VALUES.items(), key=lambda item: -item[1]):
        if found > value - TOLERANCE:
            inside.append(silo_id)
            found -= value
    return tuple(sorted(inside)) if abs(found) < TOLERANCE else None
