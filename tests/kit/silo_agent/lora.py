"""The smallest adapter that a plan's export takes."""

import numpy as np


def lora(plan):
    """Both factors of one layer, of the plan's rank, all zero."""
    rank = plan.model.lora_rank
    layer = "base_model.model.layer"
    return {
        f"{layer}.lora_A.weight": np.zeros((rank, 4), dtype=np.float32),
        f"{layer}.lora_B.weight": np.zeros((4, rank), dtype=np.float32),
    }
