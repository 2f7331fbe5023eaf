"""What must hold before this silo works or shows a key: roster, verdict, budget, adopted head.

Invariants: a roster is believed only under the pinned root key or by the approvals of members of
one that was, never at an older epoch, and only as the one that the message at hand names; no work
begins and no key is made that the ledger could not charge, unit kind by unit kind, beyond what the
site allows in a day, or beyond the attempts and trainings that the run's plan states ε for; no
attempt is joined but of the step after the adopted head.

Covered: the checks around the guardian's rules. Not covered: the rules (``policy.py``).
"""

from __future__ import annotations

from dp.accounting.charge import Charge, attempt_charges
from dp.config import Mode
from dp.errors import BudgetExceededError
from dp.ledger.ledger import Ledger
from federation.chain.record import AdapterRecord, next_place
from federation.chain.task import SURVIVORS_ALREADY_SIGNED, RoundTask
from federation.plan.charges import charges_of_round
from federation.plan.plan import Plan
from secagg.descriptor import AggregationId, Descriptor
from secagg.errors import Check
from secagg.roster import SignedRoster, follow_rosters
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import PolicyRefusalError, SessionError
from silo_agent.identity.identity import Identity
from silo_agent.line.transport import Coordinator
from silo_agent.policy.document import LimitsSection
from silo_agent.policy.policy import Decision
from silo_agent.policy.refusal import over_budget, run_used_up, too_many_today

__all__ = [
    "fetch_roster",
    "require_accepted",
    "require_attempt_budget",
    "require_budget",
    "require_head",
    "require_next",
]


def fetch_roster(
    coordinator: Coordinator, *, identity: Identity, store: LocalStore, roster_sha256: bytes
) -> SignedRoster:
    """The roster with this digest, verified under the pinned root and not older than known.

    One that members approved is followed from the newest one accepted here, or from one that the
    root signed since.

    Raises:
        VerificationError: the signature, the approvals or the epoch.
        SessionError: another roster is published, or it is another federation's.
    """
    last_epoch, last_sha256 = store.newest_roster_epoch(), store.newest_roster_sha256()
    rosters: tuple[SignedRoster, ...] = (coordinator.roster(),)
    if rosters[-1].approvals and rosters[-1].roster.sha256 != last_sha256:
        rosters = coordinator.rosters(last_epoch)
    roster = rosters[-1]
    follow_rosters(rosters, identity.root_key, last_epoch=last_epoch, last_sha256=last_sha256)
    if roster.roster.sha256 != roster_sha256:
        raise SessionError(
            "the published roster is not the one the message names", check=Check.DESCRIPTOR_ROSTER
        )
    if roster.roster.federation != identity.federation:
        raise SessionError(
            "the roster belongs to another federation", check=Check.DESCRIPTOR_ROSTER
        )
    store.set_newest_roster_epoch(roster.roster.epoch, roster.roster.sha256)
    return roster


def require_accepted(decision: Decision) -> None:
    """Go on only after a favourable verdict of the guardian.

    Raises:
        PolicyRefusalError: with the rule that fired.
    """
    if not decision.accepted:
        raise PolicyRefusalError(
            rule=decision.rule, public_reason=decision.public_reason, detail=decision.detail
        )


def require_next(ledger: Ledger, task: RoundTask, plan: Plan, head: AdapterRecord) -> None:
    """Go on only with a task of the step that follows the adopted head.

    Raises:
        SessionError: it starts from another adapter, plan, round or step.
        PolicyRefusalError: survivors of an attempt of that step were signed before.
    """
    if head.adapter_sha256 != task.adapter_sha256:
        raise SessionError("the task starts from another adapter", check=Check.MODEL)
    if (task.round, task.step) != next_place(head.place, plan.sums_per_round):
        raise SessionError("the task's step does not follow the head of the published chain")
    if task.plan_sha256 != head.plan_sha256:
        raise SessionError("the task names another plan than the run's")
    if ledger.has_agreed(task.run_id, task.round, task.step, 0):
        raise PolicyRefusalError(
            rule=SURVIVORS_ALREADY_SIGNED,
            public_reason=SURVIVORS_ALREADY_SIGNED,
            detail="this silo signed survivors of an earlier attempt of this step",
        )


def require_head(descriptor: Descriptor, plan: Plan, head: AdapterRecord) -> None:
    """Go on only with a descriptor of the step that follows the adopted head.

    Raises:
        SessionError: it starts from another adapter, plan, round or step.
    """
    identity = descriptor.identity
    if descriptor.adapter_sha256 != head.adapter_sha256:
        raise SessionError(
            "the descriptor starts from another adapter than the chain's head",
            check=Check.MODEL,
        )
    if descriptor.plan_sha256 != head.plan_sha256:
        raise SessionError("the descriptor names another plan than the run's")
    follows = (identity.round, identity.step) == next_place(head.place, plan.sums_per_round)
    if identity.run_id != head.run_id or not follows:
        raise SessionError(
            "the descriptor's step does not follow the adopted head", check=Check.IDENTITY
        )


def require_budget(ledger: Ledger, plan: Plan, limits: LimitsSection, task: RoundTask) -> None:
    """Refuse before any work what could not be charged, or not today.

    Before a round's first step all of its releases must fit, the local training included; before a
    later one the release at hand. Of the day, room for this step is enough: for its upload, and for
    its training if none of this round was charged.

    Raises:
        PolicyRefusalError: epsilon would pass a cap, or the attempts of the run or of the day are
            used up.
    """
    spec, step = plan.spec, task.step
    local = spec.mode is Mode.RECORD_LOCAL
    trains = local and step == 0 and not ledger.has_trained(task.run_id, task.round)
    _require_room_in_run(ledger, plan, task.run_id, step=step, trains=trains)
    _require_room_today(ledger, limits, 2 if trains else 1)
    charges = charges_of_round(spec) if step == 0 else attempt_charges(spec, step=step)
    _require_affordable(ledger, charges)


def require_attempt_budget(
    ledger: Ledger, plan: Plan, limits: LimitsSection, identity: AggregationId
) -> None:
    """Refuse before any key is made an attempt that could not be charged, or not today.

    Raises:
        PolicyRefusalError: epsilon would pass a cap, or the attempts of the run or of the day are
            used up.
    """
    _require_room_in_run(ledger, plan, identity.run_id, step=identity.step)
    _require_room_today(ledger, limits, 1)
    _require_affordable(ledger, attempt_charges(plan.spec, step=identity.step))


def _require_room_in_run(
    ledger: Ledger, plan: Plan, run_id: str, *, step: int, trains: bool = False
) -> None:
    """The guardian judged a plan by the charges it states; here it is held to them."""
    done = ledger.debits_of_run(run_id)
    counts = [("attempts", done.releases, plan.charged_releases)]
    if step == 0:
        counts.append(("attempts at a round's first step", done.first_steps, plan.first_steps))
    if trains:
        counts.append(("trainings", done.trainings, plan.charged_releases))
    for what, charged, stated in counts:
        if charged >= stated:
            raise run_used_up(
                f"run {run_id} was charged for {charged} {what}, its plan states epsilon for "
                f"{stated}"
            )


def _require_room_today(ledger: Ledger, limits: LimitsSection, debits: int) -> None:
    done, most = ledger.debits_today(), limits.max_attempts_per_day
    if done + debits > most:
        raise too_many_today(
            f"{done} attempts and trainings were charged today, {debits} more would pass "
            f"limits.max_attempts_per_day {most} (days are UTC; setting the clock back begins none)"
        )


def _require_affordable(ledger: Ledger, charges: tuple[Charge, ...]) -> None:
    projected, caps = ledger.projected_epsilons(charges), ledger.caps
    for unit in sorted({charge.unit for charge in charges}):
        cap = caps.get(unit, 0.0)
        # epsilon may round to zero, and a cap of zero still allows nothing.
        if not (projected[unit] <= cap and cap > 0.0):
            raise over_budget(
                BudgetExceededError(unit=unit, projected_epsilon=projected[unit], epsilon_cap=cap)
            )
