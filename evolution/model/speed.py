"""What a machine is fast at, as far as a plan's ``dtype`` should follow from it.

Covered: x86 CPUs without AVX-512, where a product in bfloat16 took six times as long as in float32
(docs/evolution.md). Not covered: what a GPU of a certain age cannot do.
"""

from __future__ import annotations

import torch

__all__ = ["fast_in_16_bits"]


def fast_in_16_bits() -> bool:
    """Whether this machine multiplies in 16 bits as fast as in 32, or faster."""
    return torch.cuda.is_available() or "AVX512" in torch.backends.cpu.get_cpu_capability()
