"""The coordinator with a true sum and another adapter than follows from it, from round 2 on.

The record it signs names the altered bytes, so every signature, link and digest is right.
"""

from typing import Any

import numpy as np

from federation.adapter.encoding import adapter_parts
from server.cli.coordinator import main
from server.run import aggregation

_rounds = 0


def altered_parts(tensors: Any) -> Any:
    """One coordinate of one tensor moves by one unit in the last place."""
    global _rounds  # noqa: PLW0603  # counted by this process alone
    _rounds += 1
    if _rounds < 2:
        return adapter_parts(tensors)
    name = min(tensors)
    tensor = tensors[name].copy()
    tensor.flat[0] = np.nextafter(tensor.flat[0], np.float32(np.inf))
    return adapter_parts({**tensors, name: tensor})


if __name__ == "__main__":
    aggregation.adapter_parts = altered_parts
    main()
