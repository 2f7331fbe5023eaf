"""Short histories of updates, as a server optimiser sees them."""

from __future__ import annotations

import numpy as np

from federation.aggregate.registry import OPTIMISERS
from federation.chain.record import AdapterRecord
from federation.chain.sums import encode_sum, sum_sha256
from federation.plan.plan import Plan
from tests.kit.federation.records import one_sum

NAMES = sorted(name for name, cls in OPTIMISERS.items() if cls.crosses_rounds)


def history(plan: Plan, dimension: int, rounds: int) -> list:
    """One release a round, the second of them skipped."""
    draw, made = np.random.default_rng(6), []
    for number in range(1, rounds + 1):
        total = draw.integers(-(2**18), 2**18, dimension + 2).astype(np.int32)
        skipped = number == 2
        record = AdapterRecord(
            run_id="run",
            round=number,
            kind="skipped" if skipped else "aggregated",
            adapter_sha256=b"a" * 32,
            plan_sha256=b"p" * 32,
            base_model_sha256=b"b" * 32,
            parent_sha256=b"a" * 32,
            record_parent_sha256=b"r" * 32,
            parts=() if skipped else one_sum(sum_sha256=sum_sha256(encode_sum(total))),
        )
        made.append((record, None if skipped else total))
    return made
