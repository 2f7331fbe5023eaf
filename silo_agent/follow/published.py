"""What the coordinator publishes, as far as this silo has checked it: roster, plan, chain.

Invariants: a roster is one that the pinned root signed, never older than the newest known; a plan
has the digest that it is asked for by; a head was followed to, link by link, under the plan that
the caller judged and no other.

Covered: fetching once what is needed often. Not covered: whether this silo takes part.
"""

from __future__ import annotations

from collections.abc import Callable

from federation.chain.record import AdapterRecord, next_place
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg.descriptor import Descriptor
from secagg.roster import SignedRoster
from silo_agent.books.local_store import LocalStore
from silo_agent.daemon.admission import fetch_roster
from silo_agent.errors import ChainMismatchError
from silo_agent.follow.chain import ChainFollower, Head
from silo_agent.identity.identity import Identity
from silo_agent.line.transport import Coordinator

__all__ = ["Published"]


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

        Args:
            coordinator: Publishes.
            identity: This silo, which pins the root.
            store: Remembers epochs and heads.
            max_dimension: The longest vector that this site uploads.
            adopted: Told of the head each time a chain was followed to its end.
            admit: Raises for a verified record that the site does not follow.
            adopting: Told of each record before it becomes its run's head.
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

        Args:
            run_id: The run.
            plan_sha256: Of the plan that was judged. Nothing is adopted of a chain under another.

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
