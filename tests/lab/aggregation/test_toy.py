"""A linear problem on which the methods can be told apart: LoRA of a 96 by 96 layer, eight silos.

The target is the mean of eight matrices of rank eight with a common part, as in a federation whose
silos agree on most things. What is asserted is an order with margins, not figures.
"""

from __future__ import annotations

import numpy as np

from federation.adapter.layout import Layout
from lab.aggregation.aggregation import SiloUpdate, make_lab_aggregation

SIDE, RANK, SILOS, ROUNDS, LOCAL_STEPS, CLIP = 96, 8, 8, 25, 8, 0.2
A, B = "l.lora_A.weight", "l.lora_B.weight"


def targets() -> list[np.ndarray]:
    """W_k = W + a little of rank r of its own; the mean of all is the optimum."""
    draw = np.random.default_rng(0)

    def part(scale: float) -> np.ndarray:
        return scale * draw.normal(size=(SIDE, RANK)) @ draw.normal(size=(RANK, SIDE)) / SIDE

    common = part(1.0)
    return [common + part(0.1) for _ in range(SILOS)]


def trained(start: dict[str, np.ndarray], target: np.ndarray, names: frozenset[str]) -> SiloUpdate:
    """Adam on half the squared distance of BA to the target."""
    own = {name: tensor.astype(np.float64) for name, tensor in start.items()}
    first = {name: np.zeros_like(own[name]) for name in names}
    second = {name: np.zeros_like(own[name]) for name in names}
    for step in range(1, LOCAL_STEPS + 1):
        off = own[B] @ own[A] - target
        gradients = {A: own[B].T @ off, B: off @ own[A].T}
        for name in names:
            first[name] = 0.9 * first[name] + 0.1 * gradients[name]
            second[name] = 0.99 * second[name] + 0.01 * gradients[name] ** 2
            root = np.sqrt(second[name] / (1 - 0.99**step)) + 1e-8
            own[name] = own[name] - 0.02 * (first[name] / (1 - 0.9**step)) / root
    return SiloUpdate(delta={n: (own[n] - start[n]).astype(np.float32) for n in names})


def relative_error(method: str, *, gauge: bool = False, noise: float = 0.0) -> float:
    """Of BA to the optimum after some rounds; noise as a multiple of the clip, in the sum."""
    draw, aims = np.random.default_rng(1), targets()
    bound = 1.0 / np.sqrt(SIDE)
    tensors = {
        A: draw.uniform(-bound, bound, size=(RANK, SIDE)).astype(np.float32),
        B: np.zeros((SIDE, RANK), np.float32),
    }

    def mean(vectors, *, clip_l2, what):
        clipped = [v * min(1.0, clip_l2 / max(np.linalg.norm(v), 1e-12)) for v in vectors]
        sigma = noise * clip_l2 / SILOS
        return np.mean(clipped, axis=0) + sigma * draw.normal(size=vectors[0].size)

    aggregation = make_lab_aggregation(
        method,
        Layout.from_tensors(tensors),
        silos=SILOS,
        clip_l2=CLIP,
        server_step=1.0,
        gauge=gauge,
        server_optimiser="fedavg",
        options={},
    )
    for number in range(1, ROUNDS + 1):
        names = aggregation.trainable(number)
        silos = [trained(tensors, aim, names) for aim in aims]
        tensors = aggregation.combine(tensors, silos, round_number=number, mean=mean)
    optimum = np.mean(aims, axis=0)
    product = tensors[B].astype(np.float64) @ tensors[A].astype(np.float64)
    return float(np.linalg.norm(product - optimum) / np.linalg.norm(optimum))


def test_a_frozen_row_space_cannot_fit_and_two_trained_factors_can():
    """Eight of 96 directions: a random row space misses most of the target, with an SVD or not."""
    errors = {name: relative_error(name) for name in ("fedavg", "ffa", "fedsvd")}
    assert min(errors["ffa"], errors["fedsvd"]) > 0.9
    assert errors["fedavg"] < 0.1
    assert relative_error("rolora", gauge=True) < 0.1


def test_where_clip_and_noise_bite_the_gauge_lets_alternation_learn():
    """A clipped ΔB moves W by as much as A is long; with orthonormal rows that is the clip."""
    plain = relative_error("rolora", noise=0.3)
    gauged = relative_error("rolora", gauge=True, noise=0.3)
    assert gauged < 0.5 * plain
    assert gauged < relative_error("fedavg", noise=0.3)
