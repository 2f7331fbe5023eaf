"""φ₀, the adapter that a run starts from, made from shapes alone.

B = 0 (LoRA, arXiv 2106.09685, §4.1), so the first round plays the base model itself. A is normal
with standard deviation 0.08·√(128 / in): 0.08 at width 128, where it was tuned, and scaled so that
the entries of A·x keep their size at other widths.

Invariants:

1. Names and shapes are those of an adapter that peft makes on the target's linear layers.
2. Each tensor has a random stream of its own, derived from the seed and its module's name, so an
   adapter depends on seed, rank and shapes and on nothing else: asked for twice, here or with a
   learning framework (``evolution/model/lora.py``), it is the same bytes. On fewer layers it is
   the same tensors, of those layers.

Covered: the architectures of ``federation.adapter.shapes``, without a model's weights and without a
learning framework. Not covered: other architectures; ``chorale-lab adapter init`` reads them.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

from federation.adapter.shapes import ModelShape
from federation.adapter.target import ALL_LINEAR, Target
from federation.adapter.value_head import first_head

__all__ = ["first_factor", "initial_adapter"]

_DOMAIN: Final = "chorale/initial-adapter/v1"
_REFERENCE_STD: Final = 0.08
_REFERENCE_WIDTH: Final = 128
_PREFIX: Final = "base_model.model."
_A: Final = ".lora_A.weight"


def first_factor(module: str, *, rank: int, in_features: int, seed: int) -> npt.NDArray[np.float32]:
    """A of one linear layer with its name in the base model: r × in, float32.

    ``in_features`` is the width of the layer's input; the seed is the run's.
    """
    key = hashlib.sha256(f"{_DOMAIN}\0{seed}\0{module}".encode()).digest()
    draw = np.random.Generator(np.random.Philox(int.from_bytes(key[:16], "little")))
    std = _REFERENCE_STD * np.sqrt(_REFERENCE_WIDTH / in_features)
    factor: npt.NDArray[np.float32] = (draw.standard_normal((rank, in_features)) * std).astype(
        np.float32
    )
    return factor


def initial_adapter(
    shape: ModelShape,
    *,
    rank: int,
    seed: int,
    target: Target = ALL_LINEAR,
    value_head: bool = False,
) -> dict[str, npt.NDArray[np.float32]]:
    """φ₀ as the module defines it: float32 factors by name; the seed decides every entry of A.

    A value head, where it is asked for, begins at zero.

    Raises:
        LayoutError: If the adapter would be larger than any the protocol carries.
        TargetError: The target names a layer that there is not.
    """
    adapter: dict[str, npt.NDArray[np.float32]] = {}
    if value_head:
        adapter |= first_head(shape.hidden)
    for spec in shape.lora_layout(rank, target).specs:
        if spec.name.endswith(".lora_B.weight"):
            adapter[spec.name] = np.zeros(spec.shape, np.float32)
            continue
        module = spec.name.removeprefix(_PREFIX).removesuffix(_A)
        adapter[spec.name] = first_factor(module, rank=rank, in_features=spec.shape[1], seed=seed)
    return adapter
