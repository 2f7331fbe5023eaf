"""On what a silo trains, and how it fits into memory: the silo's own choice, never the plan's.

None of it changes what is computed beyond rounding: batch, rank, clip and steps are the plan's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TrainerSpec"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSpec:
    """See the module; read from ``[training]`` of ``silo.toml``."""

    device: str = "auto"
    """``auto`` takes a GPU if there is one; else ``cpu`` or ``cuda``."""
    micro_batch_tokens: int = 0
    """Most padded tokens in one forward pass; 0 takes each batch of the plan whole."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    processes: int = 1
    """1 trains in the daemon; more start as many workers with torchrun."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: ``ddp`` copies the base to each, ``fsdp`` divides it."""
