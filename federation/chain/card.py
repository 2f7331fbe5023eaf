"""What is written beside an adapter of a chain: its card, and where it comes from.

Covered: the fields that a record and its plan decide, for whoever exports or serves the adapter.
Not covered: rendering (``federation/adapter/card.py``); who counts releases: a coordinator counts
those that it asked of all silos, a silo those of its own ledger, which are more where it trained a
round again and fewer where it was away.
"""

from __future__ import annotations

from collections.abc import Sequence

from federation.adapter.card import FamilySuccess, ModelCard
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.chain.record import AdapterRecord
from federation.plan.charges import epsilon_told
from federation.plan.plan import Plan

__all__ = ["card_of", "provenance_of"]


def card_of(
    record: AdapterRecord,
    plan: Plan,
    *,
    federation: str,
    releases: int,
    first_steps: int,
    trainings: int,
    head_sha256: bytes | None = None,
    success: Sequence[FamilySuccess] = (),
) -> ModelCard:
    """The card; ``head_sha256`` is of the chain's newest record where it is another one.

    ``first_steps`` of the releases were of a round's step 0; ``success`` is known to a coordinator.
    """
    return ModelCard(
        federation=federation,
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
        head_sha256=(head_sha256 or record.sha256).hex(),
        rank=plan.model.lora_rank,
        alpha=plan.model.lora_alpha,
        target=plan.model.target,
        privacy=plan.spec,
        releases=releases,
        epsilon=epsilon_told(
            plan.spec, releases=releases, first_steps=first_steps, trainings=trainings
        ),
        success=tuple(success),
        incomplete=INCOMPLETE_ADAPTERS.get(plan.aggregation.method, ""),
    )


def provenance_of(record: AdapterRecord) -> dict[str, str]:
    """What ``provenance.json`` says."""
    return {
        "run": record.run_id,
        "round": str(record.round),
        "step": str(record.step),
        "kind": record.kind,
        "adapter_sha256": record.adapter_sha256.hex(),
        "record_sha256": record.sha256.hex(),
        "record_signature": record.signature.hex(),
        "plan_sha256": record.plan_sha256.hex(),
        "base_model_sha256": record.base_model_sha256.hex(),
        "survivors": ", ".join(record.survivors),
    }
