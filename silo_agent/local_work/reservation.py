"""The durable charge of one local training, made before its first step.

Ordered invariants:

1. The ledger is charged once for each round of work, whatever the work comes to: also where it
   failed before it asked, for the ledger's length is public and must not tell why.
2. The charge, the ledger's head in the silo's own memory, and a record in its audit log are
   durable before the training may begin. A crash after that costs the charge: the round is trained
   again and charged again, so what was trained is never more than what was charged.
3. What the ledger refuses is kept for the one who answers for the round. Nothing is trained then,
   and nothing released.
4. Nothing is begun, and nothing charged, that the operator has refused by then.

Covered: mode ``record_local``. Not covered: the steps, which the receipt counts
(``dp.ledger.receipt.TrainingReceipt``).
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
from silo_agent.errors import LocalStoreError, PolicyRefusalError

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
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._audit = audit
        self._task = task
        self._plan = plan
        self._allow = allow
        self._asked = False
        self.failure: PrivacyError | LocalStoreError | PolicyRefusalError | None = None
        """Why the ledger was not charged; None if it was, or was not asked yet."""

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
        """
        if self._asked:
            raise ReceiptError("the training of this round was already charged")
        self._asked = True
        self.require_allowed()
        try:
            receipt = self._ledger.reserve_training(
                run=self._task.run_id,
                round=self._task.round,
                spec=self._plan.spec,
                adapter_sha256=self._task.adapter_sha256,
                max_in_run=self._plan.charged_releases,
            )
            self._store.set_ledger_head(*self._ledger.head())
            self._audit.append(
                SiloEvent.TRAINING_CHARGED, run=self._task.run_id, round=self._task.round
            )
        except (PrivacyError, LocalStoreError) as error:
            self.failure = error
            raise
        return receipt

    def settle(self) -> None:
        """Charge what the work did not ask for; the failure, if any, is in ``failure``."""
        if self._asked or self.failure is not None:
            return
        try:
            self()
        except (PrivacyError, LocalStoreError, PolicyRefusalError) as error:
            self.failure = error
