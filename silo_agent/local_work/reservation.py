"""The durable charge of one local training, made before its first step.

Ordered invariants:

1. The ledger is charged once for each round of work that is still wanted when it has explored,
   whatever the work comes to: also where it failed before it asked, for the ledger's length is
   public and must not tell why.
2. The charge, the ledger's head in the silo's own memory, and a record in its audit log are
   durable before the training may begin. A crash after that costs the charge: the round is trained
   again and charged again, so what was trained is never more than what was charged.
3. What the ledger refuses is kept for the one who answers for the round. Nothing is trained then,
   and nothing released.
4. Nothing is begun, and nothing charged, that the operator has refused by then.
5. Nothing is charged for a run that is over, as far as the coordinator's newest word goes, nor by
   a silo that is being stopped: neither would come to a release. What was charged stays charged.

The fifth is there so that a silo does not pay for nothing. It protects nobody from a coordinator
that lies: one that says nothing, or calls a dead run alive, has the silo charged as before. And it
tells something: the ledger's length is public, so whether a run that ended while this silo worked
for it was charged tells roughly whether exploring was over by then, which is data. That is one bit
each time that it is said, and a coordinator that lies may say it again of the same run; a plan's
``ready_after_s`` does not hide it. A round that goes on to its end is charged whatever the data
are; when it was charged is not hidden from a coordinator that gets the ledger's or the audit log's
head in the middle of it (``docs/privacy.md``, "Not covered").

Covered: mode ``record_local``; in the others nothing is charged before an attempt. Not covered: the
steps, which the receipt counts (``dp.ledger.receipt.TrainingReceipt``).
"""

from __future__ import annotations

from collections.abc import Callable

from dp.errors import PrivacyError, ReceiptError
from dp.ledger.ledger import Ledger
from dp.ledger.receipt import TrainingReceipt
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from silo_agent.books.audit import AuditLog, SiloEvent
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError, PolicyRefusalError, WorkCalledOffError

__all__ = ["Reservation"]


class Reservation:
    """One round's; called by the method when it has explored."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        store: LocalStore,
        audit: AuditLog,
        task: RoundTask,
        plan: Plan,
        allow: Callable[[RoundTask, Plan], None],
        lives: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        """``lives`` says whether the run does, ``stopping`` whether this silo is being stopped."""
        self._ledger = ledger
        self._store = store
        self._audit = audit
        self._task = task
        self._plan = plan
        self._allow = allow
        self._lives, self._stopping = lives, stopping
        self._asked = self._called_off = False
        self.charged: tuple[int, bytes] | None = None
        """A head of the ledger that holds the charge; None while there is none."""
        self.failure: PrivacyError | LocalStoreError | PolicyRefusalError | None = None
        """Why the ledger was not charged; None if it was, or was not asked yet."""

    def wanted(self) -> bool:
        """Whether the round's work is to go on: what is paid for goes on while a silo stops.

        Once it is not, it never is again: somebody may have been told so already.
        """
        paid = self.charged is not None
        if not (self._lives() and (paid or not self._stopping())):
            self._called_off = True
        return not self._called_off

    def require_wanted(self) -> None:
        """Go on only with work that is wanted.

        Raises:
            WorkCalledOffError: The run is over, or the silo is being stopped.
        """
        if not self.wanted():
            raise WorkCalledOffError("the run is over, or this silo is being stopped")

    def require_allowed(self) -> None:
        """Go on only if the operator still allows it.

        Raises:
            PolicyRefusalError: The run was refused, or the silo leaves.
            LocalStoreError: What the operator said cannot be read.
        """
        try:
            self._allow(self._task, self._plan)
        except (PolicyRefusalError, LocalStoreError) as error:
            self.failure = error
            raise

    def __call__(self) -> TrainingReceipt:
        """Charge the training.

        Raises:
            ReceiptError: It was charged before: a round is trained once.
            TooManyDebitsError: The day's debits, or the trainings that the plan states epsilon for,
                are used up; both are counted here, for tasks may have come faster than work.
            BudgetExceededError: A cap would be passed.
            PrivacyError: The ledger cannot be written.
            LocalStoreError: Its head cannot be remembered, or the charge not be audited.
            PolicyRefusalError: The operator refused the run meanwhile.
            WorkCalledOffError: The run is over, or the silo is being stopped.
        """
        if self._asked:
            raise ReceiptError("the training of this round was already charged")
        self._asked = True
        self.require_allowed()
        self.require_wanted()
        try:
            receipt = self._ledger.reserve_training(
                run=self._task.run_id,
                round=self._task.round,
                spec=self._plan.spec,
                adapter_sha256=self._task.adapter_sha256,
                max_in_run=self._plan.charged_releases,
            )
            self.charged = self._ledger.head()
            self._store.set_ledger_head(*self.charged)
            self._audit.append(
                SiloEvent.TRAINING_CHARGED, run=self._task.run_id, round=self._task.round
            )
        except (PrivacyError, LocalStoreError) as error:
            self.failure = error
            raise
        return receipt

    def settle(self) -> None:
        """Charge what the work did not ask for; the failure, if any, is in ``failure``.

        Raises:
            WorkCalledOffError: The run is over, or the silo is being stopped.
        """
        if self._asked or self.failure is not None:
            return
        try:
            self()
        except (PrivacyError, LocalStoreError, PolicyRefusalError) as error:
            self.failure = error
