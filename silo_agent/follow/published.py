"""What the coordinator publishes, as far as this silo has checked it: roster, plan, chain.

Invariants: a roster is believed only under the pinned root key or by the approvals of members of
one that was, never at an older epoch, and only as the one that the message at hand names; a plan
has the digest that it is asked for by; a head was followed to, link by link, under the plan that
the caller judged and no other; no task and no descriptor is taken up but of the step after it and
of its run's suite.

Covered: fetching once what is needed often. Not covered: whether this silo takes part.
"""

from __future__ import annotations

from collections.abc import Callable

from federation.chain.record import AdapterRecord, next_place
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg import hybrid
from secagg.descriptor import Descriptor
from secagg.errors import Check
from secagg.roster import SignedRoster, follow_rosters
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import ChainMismatchError, SessionError
from silo_agent.follow.chain import ChainFollower, Head
from silo_agent.identity.identity import Identity
from silo_agent.line.transport import Coordinator

__all__ = ["Published", "fetch_roster", "require_head", "require_next"]


class Published:
    """The newest roster, plan and head at hand."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        identity: Identity,
        store: LocalStore,
        max_dimension: int,
        adopted: Callable[[Head, Plan], None],
        admit: Callable[[AdapterRecord], None],
        adopting: Callable[[AdapterRecord], None],
    ) -> None:
        """Begin with nothing at hand.

        The identity pins the root, and the store remembers epochs and heads. ``max_dimension`` is
        the longest vector that this site uploads. ``adopted`` is told of the head each time a chain
        was followed to its end. ``admit`` raises for a verified record that the site does not
        follow; ``adopting`` is told of each record before it becomes its run's head.
        """
        self._coordinator = coordinator
        self._identity = identity
        self._store = store
        self._adopted = adopted
        self._chain = ChainFollower(
            coordinator=coordinator,
            store=store,
            max_dimension=max_dimension,
            admit=admit,
            adopting=adopting,
        )
        self._roster: SignedRoster | None = None
        self._plan: tuple[bytes, Plan] | None = None
        self.head: Head | None = None
        """The head of the chain that was followed last."""

    @property
    def coordinator_key(self) -> bytes | None:
        """The key that the roster at hand names; None before the first."""
        return None if self._roster is None else self._roster.roster.coordinator_key

    def roster(self, roster_sha256: bytes) -> SignedRoster:
        """The roster with this digest, verified; fetched if it is not the one at hand.

        Raises:
            VerificationError: Its signature or epoch is wrong.
            SessionError: Another roster is published.
        """
        roster = self._roster
        if roster is None or roster.roster.sha256 != roster_sha256:
            roster = self._roster = fetch_roster(
                self._coordinator,
                identity=self._identity,
                store=self._store,
                roster_sha256=roster_sha256,
            )
        return roster

    def plan(self, plan_sha256: bytes) -> Plan:
        """The plan with this digest.

        Raises:
            TransportError: It is not what was asked for.
            PlanError: It is no plan.
        """
        if self._plan is None or self._plan[0] != plan_sha256:
            self._plan = (plan_sha256, read_plan(self._coordinator.plan(plan_sha256)))
        return self._plan[1]

    def follow(self, run_id: str, plan_sha256: bytes) -> Head:
        """Follow a run's chain to its end.

        Nothing is adopted of a chain under another plan than this one, which was judged.

        Raises:
            ChainMismatchError: It is of another plan, or contradicts what this silo adopted.
            FederationError: A signature, a link, an adapter or an update is wrong.
            PolicyRefusalError: The site does not follow a record.
        """
        roster = self._roster or self.roster(self._coordinator.roster().roster.sha256)

        def judged(named_sha256: bytes) -> Plan:
            if named_sha256 != plan_sha256:
                raise ChainMismatchError(
                    f"the chain of run {run_id} is of plan {named_sha256.hex()[:12]}, and this "
                    f"silo was asked about plan {plan_sha256.hex()[:12]}"
                )
            return self.plan(named_sha256)

        head = self.head = self._chain.sync(run_id, judged, roster.roster.coordinator_key)
        self._adopted(head, judged(head.record.plan_sha256))
        return head

    def head_before(self, descriptor: Descriptor, plan: Plan) -> Head:
        """The adopted head; followed first where a round went on to its next step.

        Raises:
            ChainMismatchError: As ``follow``.
            FederationError: As ``follow``.
        """
        head, identity = self.head, descriptor.identity
        if head is not None and head.record.run_id == identity.run_id:
            following = next_place(head.record.place, plan.sums_per_round)
            if identity.step == 0 or following >= (identity.round, identity.step):
                return head
        return self.follow(identity.run_id, descriptor.plan_sha256)


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


def require_next(task: RoundTask, plan: Plan, head: AdapterRecord) -> None:
    """Go on only with a task of the step that follows the adopted head.

    A task invites silos where its run is of suite v2, and there alone: no round of a run is of the
    other suite.

    Raises:
        SessionError: it starts from another adapter, plan, round or step, or is of another suite.
    """
    if head.adapter_sha256 != task.adapter_sha256:
        raise SessionError("the task starts from another adapter", check=Check.MODEL)
    if (task.round, task.step) != next_place(head.place, plan.sums_per_round):
        raise SessionError("the task's step does not follow the head of the published chain")
    if task.plan_sha256 != head.plan_sha256:
        raise SessionError("the task names another plan than the run's")
    if bool(task.invited) != (head.suite == hybrid.SUITE):
        raise SessionError("the task is of another suite than its run", check=Check.SUITE)


def require_head(descriptor: Descriptor, plan: Plan, head: AdapterRecord) -> None:
    """Go on only with a descriptor of the step that follows the adopted head.

    Raises:
        SessionError: it starts from another adapter, plan, round or step, or is of another suite.
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
    if descriptor.suite != head.suite:
        raise SessionError("the descriptor is of another suite than its run", check=Check.SUITE)
