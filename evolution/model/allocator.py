"""Memory that nothing uses any more, given back to the machine.

glibc keeps what a thread has freed for that thread's next need. A batch's activations are freed
piece by piece, so a silo that explored, trained and judged would hold the sum of all three, and a
daemon whose run is over more than a gigabyte of nothing.

Covered: glibc (``ops/heap.py``), and a GPU's cache. Not covered: other C libraries, where this does
nothing.
"""

from __future__ import annotations

import gc
import sys

from ops import heap

__all__ = ["give_back"]


def give_back(*, collect: bool = False) -> None:
    """Return freed memory to the machine; ``collect`` looks for models in reference cycles first.

    Takes a few milliseconds for each hundred megabytes that go, and as long again to come back.
    """
    if collect:
        gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    heap.trim()
