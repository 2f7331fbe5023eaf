"""What the runs of ``server_world`` are: plans, the adapter they start from, what each silo adds.

Silo k contributes 2^-(k+3) times a known pattern, so a sum tells who is in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evolution.methods.constant import constant_pattern
from federation.adapter.encoding import encode_adapter
from federation.adapter.layout import Layout
from federation.plan.plan import Plan
from federation.plan.read import read_plan

CLIP, GRID, RANK, WIDTH = 16.0, 2**20, 2, 12
NO_MODEL = bytes(32)
FAMILY = "constant"
EPISODES = 64
UNITS = 4
"""B̄ of a plan with steps."""
AFTER_S = 1
"""When a silo says ready and answers a step, in the record modes."""


def plan_toml(
    *,
    rounds: int = 1,
    mode: str = "none",
    noise: float = 0.0,
    n_min: int = 3,
    quorum: int = 3,
    spare: int = 2,
    method: str = "fedavg",
    steps: int = 0,
    optimiser: str = "fedavg",
    delta_clip: float | None = None,
    silo_noise: float = 0.0,
    exact_figures: bool = True,
    selection: str = "",
    vetoes: str | None = None,
) -> bytes:
    exact = f"exact_figures = {str(exact_figures).lower()}" if mode == "none" else ""
    record = f"""
[privacy.record]
sampling_rate = 0.5
expected_units = {UNITS}
steps_per_round = {steps}
{"" if delta_clip is None else f"delta_clip_l2 = {delta_clip}"}
{f"silo_noise_multiplier = {silo_noise}" if silo_noise else ""}
"""
    return f"""\
name = "world"
[model]
base = "none"
base_sha256 = "{NO_MODEL.hex()}"
dtype = "float32"
lora_rank = {RANK}
[evolve]
method = "constant"
episodes_per_round = {EPISODES}
[aggregation]
method = "{method}"
server_optimiser = "{optimiser}"
[privacy]
mode = "{mode}"
clip_l2 = {CLIP}
grid = {GRID}
noise_multiplier = {noise}
metrics_noise_multiplier = {noise}
delta = 1e-5
epsilon_cap = 1e9
accept_low_cosine = true
{exact}
{record if steps else ""}
[secure_aggregation]
n_min = {n_min}
[rounds]
count = {rounds}
ready_deadline_s = 60
{f"ready_after_s = {AFTER_S}" if mode.startswith("record") or vetoes is not None else ""}
{f"step_answer_after_s = {AFTER_S}" if mode == "record_distributed" else ""}
phase_deadline_s = 6
quorum = {quorum}
spare_attempts = {spare}
{"[selection]" if selection else ""}
{selection}
{"" if vetoes is None else "[vetoes]"}
{vetoes or ""}
[evaluate]
held_out = 0
""".encode()


def stepped_toml(**settings: Any) -> bytes:
    """A plan in which each round has several releases."""
    chosen = {"steps": 3, "optimiser": "adam", **settings}
    return plan_toml(mode="record_distributed", noise=0.05, **chosen)


def initial_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {
        "layer.lora_A.weight": draw.normal(size=(RANK, WIDTH)).astype(np.float32),
        "layer.lora_B.weight": np.zeros((WIDTH, RANK), np.float32),
    }


INITIAL = encode_adapter(initial_tensors())
DIMENSION = Layout.from_tensors(initial_tensors()).dimension


def value_of(silo_id: str) -> float:
    return 2.0 ** -(int(silo_id[-3:]) + 3)


def fixed_point(silo_id: str) -> np.ndarray:
    """The silo's vector in grid units; the clip does not bite."""
    pattern = constant_pattern(value_of(silo_id), DIMENSION).astype(np.float64)
    assert np.linalg.norm(pattern) < 0.9 * CLIP
    return np.rint(pattern * (GRID / CLIP)).astype(np.int64)


def expected_adapter(survivors: tuple[str, ...], rounds: int = 1) -> dict[str, np.ndarray]:
    """The plain average of fixed-point vectors, applied the way fedavg says."""
    tensors = initial_tensors()
    layout = Layout.from_tensors(tensors)
    total = sum(fixed_point(silo_id) for silo_id in survivors)
    mean = np.asarray(total, np.float64) / (GRID / CLIP * len(survivors))
    for _ in range(rounds):
        for name, part in layout.unflatten(mean).items():
            tensors[name] = (tensors[name].astype(np.float64) + part).astype(np.float32)
    return tensors


def parsed(plan: bytes) -> Plan:
    return read_plan(plan)
