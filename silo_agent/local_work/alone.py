"""What this silo reaches without anyone else: the baseline every federation has to beat.

The same method, settings, tasks and number of rounds as the plan's, the delta applied to the silo's
own adapter without clip, noise or average. Nothing is sent anywhere and no budget is spent.

Where the plan's aggregation is 'fedsa' the final adapter has B = 0, as the published one of such a
run has: on its own it is the base model's function. The silo's factors B are in the method's store
under ``evolve/personal``, and the evaluation is of A and B together.

Covered: the honest comparison "alone against together" from the silo's own files. Not covered:
resuming a rehearsal that was interrupted; it starts over.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from evolution.methods.evolver import Work
from evolution.methods.registry import make_evolver
from federation.adapter.encoding import adapter_sha256, decode_adapter, encode_adapter
from federation.adapter.layout import Layout
from federation.plan.plan import Plan
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.local_work.judge import judge_and_keep
from silo_agent.local_work.plan_terms import evaluations_of, evolver_setup, settings_of

__all__ = ["RUN_ID", "evolve_alone"]

MAX_ADAPTER_BYTES = 1 << 30
RUN_ID = "alone"
"""What the rehearsal is called in its evaluation file."""


def evolve_alone(
    *,
    config: SiloConfig,
    plan: Plan,
    adapter: bytes,
    out_dir: Path,
    progress: Callable[[int, float], None],
) -> bytes:
    """Evolve by oneself for as many rounds as the plan has.

    Args:
        config: This silo.
        plan: The run to compare with.
        adapter: Published bytes of the initial adapter.
        out_dir: Where the evaluation and the final adapter go.
        progress: Called with the round and its exploration success after each round.

    Returns:
        Bytes of the final adapter; the evaluation of it, and of the silo's own adapter beside it
        where it keeps one, is in ``out_dir``.

    Raises:
        EvolverSetupError: The method cannot run with this configuration.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    store = LocalStore(out_dir)
    evolver = make_evolver(
        plan.evolve.method,
        evolver_setup(config, plan, state_dir=out_dir / "evolve", privacy=None),
    )
    tensors = dict(decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES))
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    content = adapter
    for number in range(1, plan.rounds.count + 1):
        trainable = frozenset(spec.name for spec in aggregator.shared_layout(number).specs)
        evolution = evolver.evolve(
            Work(
                round=number,
                adapter=tensors,
                adapter_sha256=adapter_sha256(content).hex(),
                trainable=trainable,
                settings=settings_of(plan),
                seed=config.seed,
            )
        )
        for name, delta in evolution.delta.items():
            tensors[name] = np.asarray(tensors[name] + delta, dtype=np.float32)
        content = encode_adapter(tensors)
        episodes = sum(evolution.episodes.values())
        progress(number, sum(evolution.successes.values()) / episodes if episodes else 0.0)
    (out_dir / "adapter.safetensors").write_bytes(content)
    asked = evaluations_of(
        config,
        plan,
        round_number=plan.rounds.count,
        adapter=tensors,
        adapter_sha256=adapter_sha256(content).hex(),
    )
    judge_and_keep(evolver, asked, store=store, run_id=RUN_ID)
    evolver.close()
    return content
