"""The card and the provenance beside a served adapter: what an export has, as this silo knows it.

Covered: the fields of ``federation/adapter/card.py``. Not covered: success over all silos, which
the coordinator has; releases and ε are those that this silo's own ledger was charged in the run,
which is more than the coordinator's where this silo trained a round again, and less where it was
away.
"""

from __future__ import annotations

import math

from dp.accounting.compose import Epsilon
from dp.errors import PrivacyError
from dp.ledger.counts import RunDebits
from federation.adapter.card import ModelCard, render_card
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.chain.record import AdapterRecord
from federation.plan.charges import epsilon_of_releases, shown_units
from federation.plan.plan import Plan

__all__ = ["card_of", "provenance_of"]


def card_of(record: AdapterRecord, plan: Plan, *, federation: str, debits: RunDebits) -> str:
    """The text of ``README.md``."""
    spec = plan.spec
    try:
        epsilon = epsilon_of_releases(
            spec,
            releases=debits.releases,
            first_steps=debits.first_steps,
            trainings=debits.trainings,
        )
    except PrivacyError:
        epsilon = dict.fromkeys(shown_units(spec), Epsilon(math.inf))
    return render_card(
        ModelCard(
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
            head_sha256=record.sha256.hex(),
            rank=plan.model.lora_rank,
            alpha=plan.model.lora_alpha,
            target=plan.model.target,
            privacy=spec,
            releases=debits.releases,
            epsilon=epsilon,
            incomplete=INCOMPLETE_ADAPTERS.get(plan.aggregation.method, ""),
        )
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
