"""What a session takes of a round's result: the vector and the figures, under some plan."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np

from dp.noise.unit_sum import UnitSum
from federation.adapter.layout import Layout
from silo_agent.local_work.result import Result
from tests.kit.federation.adapters import lora, plan_of

PLAN = plan_of("fedavg")
LAYOUT = Layout.from_tensors(lora(0))


def contribution(delta: np.ndarray | Future[UnitSum], figures: Mapping[str, float]) -> Result:
    """As ``Result.for_attempt`` gives it; sessions look at neither plan nor layout."""
    return Result(run_id="run-1", round=1, plan=PLAN, layout=LAYOUT, delta=delta, figures=figures)
