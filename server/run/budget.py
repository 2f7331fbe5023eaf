"""What runs have cost by their plans, and where each silo's ledger stands.

ε is a function of the plan, of how many attempts reached the upload and of how many rounds were
begun, so it can be shown to anyone. It is by the plan, with one local training a round where
training is charged: a silo's own ledger is what binds, and only its operator sees it.

Covered: the one figure that stands for a run, each unit kind's, and the ledger heads. Not covered:
the accounting itself (``server/run/epsilon.py``).
"""

from __future__ import annotations

import secagg.wire as secagg_wire
from chorale.v1 import admin_pb2 as pb
from dp.accounting.charge import UnitKind
from dp.config import RECORD_MODES
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from server.run.epsilon import epsilon_spent
from server.store import Store
from server.store.rounds import Charged

__all__ = ["budget_response", "own_unit", "shown_epsilon"]


def own_unit(plan: Plan) -> UnitKind:
    """The unit kind that the plan's mode is about; the silo where nothing is protected.

    Args:
        plan: A run's plan.
    """
    spec = plan.spec
    return spec.unit if spec.mode in RECORD_MODES else "silo"


def shown_epsilon(plan: Plan, charged: Charged) -> float:
    """ε so far, by the plan, for its own unit; infinite after the first release without noise.

    Args:
        plan: The run's plan.
        charged: How often it was charged.
    """
    return _spent(plan, charged)[own_unit(plan)]


def budget_response(store: Store) -> pb.GetBudgetResponse:
    """Every run's ε by unit kind, and every silo's newest ledger head.

    Args:
        store: The coordinator's store.
    """
    response = pb.GetBudgetResponse()
    for row in store.runs.list():
        plan, charged = read_plan(row.plan), store.rounds.charged(row.run_id)
        spec = plan.spec
        whole = Charged(
            releases=plan.charged_releases,
            first_steps=plan.first_steps,
            # A spare attempt may need a training of its own.
            rounds=plan.charged_releases,
        )
        spent, planned = _spent(plan, charged), _spent(plan, whole)
        response.runs.add(
            run_id=row.run_id,
            name=row.name,
            mode=spec.mode.value,
            releases=charged.releases,
            charged_releases=plan.charged_releases,
            delta=spec.delta,
            epsilon_cap=spec.epsilon_cap,
            units=[
                pb.UnitEpsilon(unit=kind, spent=spent[kind], planned=epsilon)
                for kind, epsilon in planned.items()
            ],
        )
    for head in store.heads.list():
        response.heads.add(
            silo_id=head.bundle.silo_id,
            seq=head.bundle.ledger_seq,
            sha256=head.bundle.ledger_sha256,
            identity=secagg_wire.identity_to_proto(head.identity),
        )
    return response


def _spent(plan: Plan, charged: Charged) -> dict[str, float]:
    return epsilon_spent(
        plan,
        releases=charged.releases,
        first_steps=charged.first_steps,
        rounds=charged.rounds,
    )
