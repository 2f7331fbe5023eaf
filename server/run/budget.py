"""What runs have cost by their plans, and where each silo's ledger stands.

ε is a function of the plan, of how many attempts reached the upload and of how many rounds were
begun, so it can be shown to anyone. Under ``record_local`` a training is charged before it begins,
whether or not its round ever reaches an upload, so one training is counted for each round whose
task went out: that is what a silo was charged that trained once in each of them.

Invariants: a figure that cannot be computed is infinite, never a guess. The kinds shown are those
that the run's noise was made for and those inside them; of larger kinds no figure is stated. In
mode ``none`` the one figure is infinite from the first release on, so none needs a flag.

Covered: each unit kind's figure, the one that stands for a run, and the ledger heads. Not covered:
a silo's own ledger, which is what binds and which only its operator sees: it was charged less where
the silo was away, more where a crash or a repeated task made it train a round again, and by other
runs.
"""

from __future__ import annotations

import secagg.wire as secagg_wire
from chorale.v1 import admin_pb2 as pb
from dp.accounting.charge import UnitKind
from dp.accounting.compose import Epsilon
from federation.plan.charges import epsilon_of_run, epsilon_told, own_unit
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from server.context import RunContext
from server.store import Store
from server.store.rounds import Charged

__all__ = ["budget_response", "epsilon_spent", "show_epsilon", "shown_epsilon"]


def epsilon_spent(plan: Plan, charged: Charged) -> dict[UnitKind, Epsilon]:
    """ε so far, by the plan, for each unit kind that it costs anything."""
    return epsilon_told(
        plan.spec,
        releases=charged.releases,
        first_steps=charged.first_steps,
        trainings=charged.rounds,
    )


def shown_epsilon(plan: Plan, charged: Charged) -> float:
    """ε so far, by the plan, for its own unit; infinite after the first release without noise."""
    return epsilon_spent(plan, charged)[own_unit(plan.spec)].epsilon


def show_epsilon(plan: Plan, run_id: str, context: RunContext) -> None:
    """Set the metrics of the run that is driven to what it has cost so far."""
    spent = shown_epsilon(plan, context.store.rounds.charged(run_id))
    context.metrics.set_epsilon(spent=spent, cap=plan.privacy.epsilon_cap)


def budget_response(store: Store) -> pb.GetBudgetResponse:
    """Every run's ε by unit kind, and every silo's newest ledger head."""
    response = pb.GetBudgetResponse()
    for row in store.runs.list():
        plan, charged = read_plan(row.plan), store.rounds.charged(row.run_id)
        spent = epsilon_spent(plan, charged)
        response.runs.add(
            run_id=row.run_id,
            name=row.name,
            mode=plan.spec.mode.value,
            releases=charged.releases,
            charged_releases=plan.charged_releases,
            delta=plan.spec.delta,
            epsilon_cap=plan.spec.epsilon_cap,
            units=[
                pb.UnitEpsilon(unit=unit, spent=spent[unit].epsilon, planned=planned.epsilon)
                for unit, planned in epsilon_of_run(plan).items()
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
