"""What must hold before this silo works or shows a key: roster, verdict, budget, adopted head.

Invariants: a roster is believed only under the pinned root key, never at an older epoch, and only
as the one that the message at hand names; no work begins that the ledger could not charge; no
attempt is joined but of the round after the adopted head.

Covered: the checks around the guardian's rules. Not covered: the rules (``policy.py``).
"""

from __future__ import annotations

from dp.ledger import Ledger
from federation.plan import Plan
from federation.record import AdapterRecord
from federation.task import SURVIVORS_ALREADY_SIGNED, RoundTask
from secagg.bounds import UINT32_MAX
from secagg.descriptor import AggregationId, Descriptor
from secagg.errors import Check
from secagg.roster import SignedRoster, verify_roster
from silo_agent.errors import PolicyRefusalError, SessionError
from silo_agent.identity import Identity
from silo_agent.local_store import LocalStore
from silo_agent.policy import Decision
from silo_agent.session import round_entry
from silo_agent.transport import Coordinator

__all__ = ["fetch_roster", "require_accepted", "require_budget", "require_head", "require_next"]


def fetch_roster(
    coordinator: Coordinator, *, identity: Identity, store: LocalStore, roster_sha256: bytes
) -> SignedRoster:
    """The roster with this digest, verified under the pinned root and not older than known.

    Raises:
        VerificationError: the signature or the epoch.
        SessionError: another roster is published, or it is another federation's.
    """
    roster = coordinator.roster()
    verify_roster(
        roster,
        identity.root_key,
        last_epoch=store.newest_roster_epoch(),
        last_sha256=store.newest_roster_sha256(),
    )
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


def require_next(ledger: Ledger, task: RoundTask, head: AdapterRecord) -> None:
    """Go on only with a task of the round that follows the adopted head.

    Raises:
        SessionError: it starts from another adapter, plan or round.
        PolicyRefusalError: survivors of an attempt of that round were signed before.
    """
    if head.adapter_sha256 != task.adapter_sha256:
        raise SessionError("the task starts from another adapter", check=Check.MODEL)
    if task.round != head.round + 1:
        raise SessionError("the task's round does not follow the head of the published chain")
    if task.plan_sha256 != head.plan_sha256:
        raise SessionError("the task names another plan than the run's")
    if ledger.has_agreed(task.run_id, task.round, 0, 0):
        raise PolicyRefusalError(
            rule=SURVIVORS_ALREADY_SIGNED,
            public_reason=SURVIVORS_ALREADY_SIGNED,
            detail="this silo signed survivors of an earlier attempt of this round",
        )


def require_head(descriptor: Descriptor, head: AdapterRecord) -> None:
    """Go on only with a descriptor of the round that follows the adopted head.

    Raises:
        SessionError: it starts from another adapter, plan or round.
    """
    identity = descriptor.identity
    if descriptor.adapter_sha256 != head.adapter_sha256:
        raise SessionError(
            "the descriptor starts from another adapter than the chain's head",
            check=Check.MODEL,
        )
    if descriptor.plan_sha256 != head.plan_sha256:
        raise SessionError("the descriptor names another plan than the run's")
    if (identity.run_id, identity.round) != (head.run_id, head.round + 1):
        raise SessionError(
            "the descriptor's round does not follow the adopted head", check=Check.IDENTITY
        )


def require_budget(ledger: Ledger, task: RoundTask, plan: Plan) -> None:
    """Refuse before any work when this round could not be charged.

    Raises:
        PolicyRefusalError: epsilon would pass the cap.
    """
    entry = round_entry(
        plan.privacy_spec(),
        identity=AggregationId(
            run_id=task.run_id, round=task.round, step=0, part=0, attempt=UINT32_MAX
        ),
        dimension=1,
        descriptor_sha256=bytes(32),
    )
    projected = ledger.projected_epsilon(entry)
    if projected > ledger.epsilon_cap:
        raise PolicyRefusalError(
            rule="epsilon_cap",
            public_reason="budget",
            detail=f"this round would raise epsilon to {projected:.4g}, past the cap of "
            f"{ledger.epsilon_cap:.4g} in policy.toml",
        )
