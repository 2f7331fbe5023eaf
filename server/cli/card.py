"""The facts of a model card, from the coordinator's own store.

Covered: what the coordinator knows of a run: its plan, its chain, what was charged, masked sums.
Not covered: the wording (`federation.adapter.card`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from federation.adapter.card import FamilySuccess, ModelCard
    from federation.chain.record import AdapterRecord
    from federation.plan.plan import Plan
    from server.store.rounds import RoundRow

__all__ = ["model_card"]


def model_card(
    data: Path, plan: Plan, chain: tuple[AdapterRecord, ...], record: AdapterRecord
) -> ModelCard:
    """The card of one adapter of a verified chain.

    Args:
        data: The coordinator's data directory.
        plan: The run's plan.
        chain: All records of the run, verified.
        record: Which of them.
    """
    from federation.adapter.card import ModelCard
    from federation.aggregate.registry import INCOMPLETE_ADAPTERS
    from server.config import CoordinatorConfig
    from server.members.terms import require_federation
    from server.run.budget import epsilon_spent
    from server.store import Store
    from server.store.served import database_in_force

    config = CoordinatorConfig.load(data)
    store = Store(database_in_force(config))
    try:
        charged = store.rounds.charged(record.run_id)
        finished = store.rounds.finished(record.run_id)
        federation = require_federation(store)
    finally:
        store.close()
    return ModelCard(
        federation=federation.name,
        run_id=record.run_id,
        run_name=plan.name,
        round=record.round,
        step=record.step,
        silos=len(record.survivors),
        base=plan.model.base,
        base_sha256=record.base_model_sha256.hex(),
        adapter_sha256=record.adapter_sha256.hex(),
        plan_sha256=record.plan_sha256.hex(),
        record_sha256=record.sha256.hex(),
        head_sha256=chain[-1].sha256.hex(),
        rank=plan.model.lora_rank,
        alpha=plan.model.lora_alpha,
        privacy=plan.spec,
        releases=charged.releases,
        epsilon=epsilon_spent(plan, charged),
        success=_success(finished, until=record.round + 1),
        incomplete=INCOMPLETE_ADAPTERS.get(plan.aggregation.method, ""),
    )


def _success(rows: tuple[RoundRow, ...], *, until: int) -> tuple[FamilySuccess, ...]:
    """The figures of rounds up to the one that explored with the exported adapter."""
    from federation.adapter.card import FamilySuccess
    from server.figures import RoundFigures

    return tuple(
        FamilySuccess(
            round=row.round, family=family, ratio=ratio.mean, standard_error=ratio.standard_error
        )
        for row in rows
        if row.round <= until and row.figures_json
        for family, ratio in RoundFigures.from_json(row.figures_json).estimates.items()
    )
