"""Silos' updates of a small adapter, and means of them, for the tests of `lab.aggregation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from federation.adapter.layout import Layout
from lab.aggregation.aggregation import LabAggregation, SiloUpdate, make_lab_aggregation

RANK = 3
SIDES = {"model.layer0": (14, 11), "model.layer1": (12, 17)}
SILOS = 4
CLIP = 1e3


def adapter(seed: int = 0, *, b_scale: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    tensors = {}
    for prefix, (m, n) in SIDES.items():
        tensors[f"{prefix}.lora_A.weight"] = draw.normal(size=(RANK, n)).astype(np.float32)
        b = draw.normal(size=(m, RANK)) * b_scale
        tensors[f"{prefix}.lora_B.weight"] = (b + 0.0).astype(np.float32)
    return tensors


LAYOUT = Layout.from_tensors(adapter())


def updates(
    names: Sequence[str] | frozenset[str], *, seed: int = 1, scale: float = 0.3, silos: int = SILOS
) -> list[SiloUpdate]:
    draw, shapes = np.random.default_rng(seed), {s.name: s.shape for s in LAYOUT.specs}

    def sample() -> dict[str, np.ndarray]:
        return {
            name: (scale * draw.normal(size=shapes[name])).astype(np.float32)
            for name in sorted(names)
        }

    return [
        SiloUpdate(delta=sample(), successes=silo, mean_gradient=sample()) for silo in range(silos)
    ]


class Mean:
    """The mean after clipping in float64, without a grid; it remembers what was asked for."""

    def __init__(self, noise: float = 0.0) -> None:
        self.asked: list[tuple[str, float, int]] = []
        self.noise = noise

    def __call__(self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str) -> np.ndarray:
        self.asked.append((what, clip_l2, vectors[0].size))
        clipped = [v * min(1.0, clip_l2 / max(float(np.linalg.norm(v)), 1e-300)) for v in vectors]
        draw = np.random.default_rng(len(self.asked))
        return np.mean(clipped, axis=0) + self.noise * draw.normal(size=vectors[0].size)


def made(method: str, **changes: object) -> LabAggregation:
    settings: dict = {
        "silos": SILOS,
        "clip_l2": CLIP,
        "server_step": 1.0,
        "gauge": False,
        "server_optimiser": "fedavg",
        "options": {},
    }
    return make_lab_aggregation(method, LAYOUT, **(settings | changes))


def product(tensors: Mapping[str, np.ndarray], prefix: str) -> np.ndarray:
    a, b = (tensors[f"{prefix}.lora_{which}.weight"].astype(np.float64) for which in "AB")
    return b @ a


def moved(tensors: Mapping[str, np.ndarray], update: SiloUpdate) -> dict[str, np.ndarray]:
    """A silo's own adapter, float64."""
    own = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return own | {name: own[name] + d.astype(np.float64) for name, d in update.delta.items()}


def mean_product(
    tensors: Mapping[str, np.ndarray], silos: Sequence[SiloUpdate], prefix: str
) -> np.ndarray:
    return np.mean([product(moved(tensors, silo), prefix) for silo in silos], axis=0)
