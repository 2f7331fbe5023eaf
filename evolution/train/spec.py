"""On what a silo trains, and how it fits into memory: the silo's own choice, never the plan's.

None of it changes what is computed beyond rounding: batch, rank, clip and steps are the plan's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["TrainerSpec"]

_MAX_PROCESSES: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSpec:
    """See the module; read from ``[training]`` of ``silo.toml``.

    Raises:
        ValueError: A value is outside what its line says.
    """

    device: str = "auto"
    """``auto`` takes a GPU if there is one; else ``cpu`` or ``cuda``. Record-level privacy computes
    its gradients on the CPU, so it refuses ``cuda`` and leaves a GPU alone under ``auto``."""
    micro_batch_tokens: int = 0
    """Most padded tokens in one forward pass; 0 takes each batch of the plan whole. One trajectory
    that is longer goes alone."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    processes: int = 1
    """1 trains in the daemon; more start as many workers with torchrun, one GPU each."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: ``ddp`` copies the base to each, ``fsdp`` divides it."""

    def __post_init__(self) -> None:
        if self.device not in {"auto", "cpu", "cuda"}:
            raise ValueError(f"device is auto, cpu or cuda, not {self.device!r}")
        if self.micro_batch_tokens < 0:
            raise ValueError("micro_batch_tokens cannot be negative")
        if not 1 <= self.processes <= _MAX_PROCESSES:
            raise ValueError(f"processes is a number from 1 to {_MAX_PROCESSES}")
        if self.sharding not in {"ddp", "fsdp"}:
            raise ValueError(f"sharding is ddp or fsdp, not {self.sharding!r}")
