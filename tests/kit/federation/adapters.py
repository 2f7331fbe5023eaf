"""A two-layer LoRA-like adapter and plans over it, for the tests of `federation`."""

from __future__ import annotations

import numpy as np

from federation.plan.plan import Plan
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

RANK = 3
SIDES = {"model.layer0": (9, 7), "model.layer1": (5, 12)}
GRID = 2**20
CLIP = 4.0

_CONSTANT = (ROOT / "deploy" / "examples" / "plan-constant.toml").read_text()


def lora(seed: int, *, b_scale: float = 1.0) -> dict[str, np.ndarray]:
    """Gaussian A, and gaussian B scaled by ``b_scale`` (0 is a fresh adapter)."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for prefix, (m, n) in SIDES.items():
        tensors[f"{prefix}.lora_A.weight"] = draw.normal(size=(RANK, n)).astype(np.float32)
        b = draw.normal(size=(m, RANK)) * b_scale
        tensors[f"{prefix}.lora_B.weight"] = (b + 0.0).astype(np.float32)
    return tensors


def product(tensors: dict[str, np.ndarray], prefix: str) -> np.ndarray:
    """BA in float64."""
    a, b = (tensors[f"{prefix}.lora_{which}.weight"].astype(np.float64) for which in "AB")
    return b @ a


def plan_of(
    method: str, *, gauge: bool = False, server_step: float = 1.0, optimiser: str = "fedavg"
) -> Plan:
    """A valid plan with this aggregation."""
    text = _CONSTANT.replace(
        'method = "fedavg"',
        f'method = "{method}"\ngauge = {str(gauge).lower()}\nserver_step = {server_step!r}\n'
        f'server_optimiser = "{optimiser}"',
    ).replace("clip_l2 = 1.0", f"clip_l2 = {CLIP!r}")
    return read_plan(text.encode())


RECORD_TABLE = """
[privacy.record]
sampling_rate = 0.5
expected_units = 8
steps_per_round = 3
"""


def record_plan(
    mode: str,
    *,
    method: str = "rolora",
    gauge: bool = False,
    optimiser: str = "adam",
    server_step: float = 1.0,
    grid: int = 2**16,
    steps: int = 3,
) -> Plan:
    """A valid plan of a record-level mode, three steps a round, without exploration."""
    table = RECORD_TABLE.replace("steps_per_round = 3", f"steps_per_round = {steps}")
    section = f'method = "{method}"\ngauge = {str(gauge).lower()}\nserver_step = {server_step!r}'
    if mode == "record_local":
        table += "delta_clip_l2 = 2.0\n"
    else:
        section += f'\nserver_optimiser = "{optimiser}"'
    text = _CONSTANT.replace('method = "fedavg"', section).replace(
        'mode = "none"', f'mode = "{mode}"'
    )
    text = text.replace("clip_l2 = 1.0", f"clip_l2 = {CLIP!r}\ngrid = {grid}")
    text = text.replace("noise_multiplier = 0.0", "noise_multiplier = 1.0")
    times = "ready_after_s = 1\n"
    if mode == "record_distributed":
        times += "step_answer_after_s = 1\n"
    text = text.replace("[rounds]\n", f"[rounds]\n{times}")
    return read_plan((text + table).encode())
