"""The guardian as the daemon asks it: every reason to refuse, and the one place that acts on one.

A task passes, in this order: the coordinator's echo of this silo's ledger, the operator's word and
the rules of the policy (``silo_agent/policy/policy.py``), the machine, the budget
(``silo_agent/books/ledger.py``). Whatever refuses raises a ``PolicyRefusalError``. The daemon's
loop hands it to ``refuse``, and so does local work, which may be refused its charge. That alone
counts it, logs it, writes it into the audit log and the list of runs, and tells the coordinator its
public reason.

Invariants:

1. What the operator says holds from the next question on: nothing of it is remembered here.
2. A task that waits for an approval is taken up again when it was decided, unless the coordinator
   has said something else meanwhile; its signature was checked, and everything else is checked
   again.
3. A silo that leaves begins nothing, and its daemon ends: with ``drain`` after the open attempt.

Covered: verdicts, approval, refusal, departure, the notes about runs, two threads. Not covered:
the rules themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from dp.ledger.ledger import Ledger
from federation.adapter.layout import Layout
from federation.aggregate.rounds import FIRST_ROUND
from federation.chain.preflight import Preflight
from federation.chain.record import AdapterRecord, Place
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId, SignedDescriptor
from silo_agent.books.departure import Departure
from silo_agent.books.heard_runs import NOT_INVITED, HeardRuns
from silo_agent.books.ledger import (
    require_after_none,
    require_attempt_budget,
    require_budget,
    require_echoed,
    require_shrinking,
)
from silo_agent.daemon.audited import DaemonAudit
from silo_agent.errors import PolicyRefusalError, TransportError
from silo_agent.identity.identity import Identity
from silo_agent.line.instruction import LedgerEcho
from silo_agent.local_work.work import LocalWork
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.approvals import Approvals, Standing
from silo_agent.policy.document import Policy
from silo_agent.policy.offers import offer_of
from silo_agent.policy.passed_time import PassedTime
from silo_agent.policy.policy import (
    ACCEPTED,
    APPROVAL_RULE,
    Decision,
    check_descriptor,
    check_followed,
    check_rollback,
    check_standing,
    check_task,
)
from silo_agent.policy.rule import Site

__all__ = ["Gate"]

_OF_A_QUESTION: Final = ("preflight",)
"""Whom the task of a pre-flight invites: nobody has this name there."""
WATCH_S: Final = 0.5
"""How often the mark of a departure is looked for beside the polls."""

log = get_logger(__name__)


class Tells(Protocol):
    """What a refusal needs of the coordinator."""

    def refuse(self, *, run_id: str, round_number: int, step: int, reason: str) -> None:
        """This silo takes no part, for a public reason."""


class Gate:
    """One data directory's."""

    def __init__(self, data_dir: Path, policy: Policy, metrics: SiloMetrics) -> None:
        self._approvals = Approvals(data_dir)
        self._passed = PassedTime(data_dir)
        self._departure = Departure(data_dir)
        self._runs = HeardRuns(data_dir)
        self._policy = policy
        self._metrics = metrics
        self._waiting: tuple[RoundTask, LedgerEcho | None] | None = None
        self._over: frozenset[str] = frozenset()

    def standing(self, run_id: str, plan_sha256: bytes) -> Standing:
        """How a run with this plan stands with the operator.

        Raises:
            LocalStoreError: The approvals cannot be read; nothing goes on without them.
        """
        if self._departure.mark() is not None:
            return Standing.LEAVING
        return self._approvals.standing(
            run_id, plan_sha256, manual=self._policy.policy.approval == "manual"
        )

    def judge_task(
        self,
        task: RoundTask,
        plan: Plan,
        *,
        work: LocalWork,
        ledger: Ledger,
        identity: Identity,
        echo: LedgerEcho | None,
        fetch: Callable[[bytes], bytes],
    ) -> None:
        """Go on only with a verified task that is allowed; its run is noted, and waits if it must.

        The coordinator signed the task, which names the plan by digest; ``echo`` came beside it.
        ``work`` knows what this silo has, and how the plan's work fits this machine. ``fetch``
        gives a plan's bytes by digest, and is called where they are not noted yet.

        Raises:
            PolicyRefusalError: With the rule that fired.
            VerificationError: The echo is not of this silo's making.
            LocalStoreError: The disk refused, or the approvals cannot be read.
        """
        require_echoed(ledger, echo, silo_id=identity.silo_id, signing_key=identity.signing_key)
        self._runs.hear(task, lambda: fetch(task.plan_sha256))
        judged = partial(
            check_task,
            self._policy,
            task=task,
            plan=plan,
            site=work.site,
            now_unix_s=int(time.time()),
            standing=self.standing(task.run_id, task.plan_sha256),
            passed=self._passed.read(),
            cohort_may_vary=self.cohort_may_vary(task.run_id, task.plan_sha256),
        )
        notes: tuple[str, ...] = ()
        decision = judged()
        if decision.rule in {ACCEPTED, APPROVAL_RULE}:
            # Looking at the machine loads the learning framework, seconds in which others work for
            # a plan that would be refused.
            fitted = work.fitting.choice(plan)
            decision, notes = judged(unfit=fitted.unfit), fitted.notes
        self._runs.judged(task.run_id, decision.rule, hardware=notes)
        if decision.rule == APPROVAL_RULE:
            self._waiting = (task, echo)
            self._metrics.approvals_waiting.set(1)
        self._admit(decision)
        require_after_none(ledger, plan, self._policy.privacy)
        require_budget(ledger, plan, self._policy.limits, task)

    def judge_preflight(
        self, preflight: Preflight, plan: Plan, *, site: Site, ledger: Ledger
    ) -> Decision:
        """The verdict on a verified question: what a run's first task would meet if it came now.

        Nothing is noted, counted or taken up by it, and no machine is looked at: how much memory is
        free is no public fact, and looking takes seconds. Nor is it asked whether work here was
        late before, for that is data. A run that cannot be paid for is refused before anybody is
        asked to approve it.

        A refused plan that lets sites move it is judged anew with what this site may offer
        (``silo_agent/policy/offers.py``), by the same rules.

        Raises:
            LocalStoreError: The approvals cannot be read.
        """
        now_unix_s = int(time.time())
        # No run has this name, so no word of the operator and no debit is about it.
        standing = self.standing(preflight.sha256.hex(), preflight.plan_sha256)

        def judged(moved: Plan) -> Decision:
            return self._first_task(
                preflight, moved, site=site, ledger=ledger, standing=standing, now_unix_s=now_unix_s
            )

        decision = judged(plan)
        if decision.rule in {ACCEPTED, APPROVAL_RULE}:
            return decision
        offer = offer_of(
            self._policy, plan, now_unix_s=now_unix_s, verdict=lambda moved: judged(moved).rule
        )
        return decision if offer is None else replace(decision, offer=offer)

    def _first_task(
        self,
        preflight: Preflight,
        plan: Plan,
        *,
        site: Site,
        ledger: Ledger,
        standing: Standing,
        now_unix_s: int,
    ) -> Decision:
        """The verdict on the first task of a run of a plan, at the time from which it may start."""
        now_unix_s = max(now_unix_s, plan.rounds.start_after_unix_s or 0)
        task = RoundTask(
            run_id=preflight.sha256.hex(),
            round=FIRST_ROUND,
            plan_sha256=preflight.plan_sha256,
            roster_sha256=preflight.roster_sha256,
            roster_epoch=1,
            base_model_sha256=bytes.fromhex(plan.model.base_sha256),
            adapter_sha256=preflight.plan_sha256,
            ready_deadline_unix_s=now_unix_s + plan.rounds.ready_deadline_s,
            # A question is about a plan, which runs in either suite.
            invited=_OF_A_QUESTION,
        )
        decision = check_task(
            self._policy,
            task=task,
            plan=plan,
            site=site,
            now_unix_s=now_unix_s,
            standing=standing,
        )
        if decision.rule not in {ACCEPTED, APPROVAL_RULE}:
            return decision
        try:
            require_after_none(ledger, plan, self._policy.privacy)
            require_budget(ledger, plan, self._policy.limits, task)
        except PolicyRefusalError as refusal:
            return Decision(
                accepted=False,
                rule=refusal.rule,
                public_reason=refusal.public_reason,
                detail=refusal.detail,
            )
        return decision

    def require_standing(self, task: RoundTask, plan: Plan) -> None:
        """Go on only with an accepted task that the operator has not taken back since.

        Raises:
            PolicyRefusalError: With the rule that fired.
            LocalStoreError: The approvals cannot be read.
        """
        standing = self.standing(task.run_id, task.plan_sha256)
        _require_accepted(check_standing(self._policy, task=task, plan=plan, standing=standing))

    def not_invited(self, task: RoundTask, fetch: Callable[[bytes], bytes]) -> None:
        """Note a verified task that does not invite this silo: it waits, and refuses nothing.

        Raises:
            LocalStoreError: The disk refused.
        """
        self._runs.hear(task, lambda: fetch(task.plan_sha256))
        self._runs.judged(task.run_id, NOT_INVITED)
        log.info("not_invited", run=task.run_id, round=task.round, step=task.step)

    def cohort_may_vary(self, run_id: str, plan_sha256: bytes) -> bool:
        """Whether this site, or who approved the run, lets its cohorts vary without noise.

        Raises:
            LocalStoreError: The approvals cannot be read.
        """
        return self._policy.privacy.cohort_may_vary or self._approvals.cohort_may_vary(
            run_id, plan_sha256
        )

    def follows(self, task: RoundTask, plan: Plan, *, site: Site) -> bool:
        """Whether this site follows the chain of a run that asks others.

        Raises:
            LocalStoreError: The approvals cannot be read.
        """
        return self._followed(plan, site, task.run_id, task.plan_sha256).accepted

    def judge_closed(self, record: AdapterRecord, plan: Plan, *, site: Site) -> Decision:
        """The verdict on a plan whose round has closed.

        Raises:
            LocalStoreError: The approvals cannot be read.
        """
        return self._followed(plan, site, record.run_id, record.plan_sha256)

    def _followed(self, plan: Plan, site: Site, run_id: str, plan_sha256: bytes) -> Decision:
        return check_followed(
            self._policy,
            plan=plan,
            site=site,
            standing=self.standing(run_id, plan_sha256),
            cohort_may_vary=self.cohort_may_vary(run_id, plan_sha256),
        )

    def judge_record(self, record: AdapterRecord) -> None:
        """Go on only with a verified record that this site follows; a rollback is counted.

        Raises:
            PolicyRefusalError: With the rule that fired.
        """
        if record.kind == "rollback":
            self._admit(check_rollback(self._policy, record))

    def judge_descriptor(
        self,
        signed: SignedDescriptor,
        plan: Plan,
        *,
        silo_id: str,
        work: LocalWork,
        ledger: Ledger,
        layout: Layout,
        task: RoundTask | None = None,
    ) -> None:
        """Go on only with a verified descriptor that is allowed; it is kept for the preview.

        ``layout`` is that of the vector that this silo trained, ``task`` the verified one that the
        descriptor belongs to.

        Raises:
            PolicyRefusalError: With the rule that fired.
            LocalStoreError: The disk refused, or the approvals cannot be read.
        """
        descriptor = signed.descriptor
        run_id, plan_sha256 = descriptor.identity.run_id, descriptor.plan_sha256
        may_vary = self.cohort_may_vary(run_id, plan_sha256)
        decision = check_descriptor(
            self._policy,
            descriptor=descriptor,
            silo_id=silo_id,
            plan=plan,
            site=work.site,
            layout=layout,
            now_unix_s=int(time.time()),
            task=task,
            cohort_may_vary=may_vary,
            standing=self.standing(run_id, plan_sha256),
            passed=self._passed.read(),
        )
        self._admit(decision)
        require_shrinking(ledger, plan, descriptor.cohort, may_vary=may_vary)
        self._runs.describe(signed)
        require_after_none(ledger, plan, self._policy.privacy)
        require_attempt_budget(ledger, plan, self._policy.limits, descriptor.identity)

    def _admit(self, decision: Decision) -> None:
        """Count a favourable verdict; ``refuse`` counts any other."""
        _require_accepted(decision)
        self._metrics.count_decision(accepted=True, rule=decision.rule)

    def refuse(
        self,
        refusal: PolicyRefusalError,
        asked: tuple[str, Place] | None,
        *,
        audit: DaemonAudit,
        coordinator: Tells,
    ) -> None:
        """Let a refusal have its effects, here and outside.

        ``asked`` is the run and the step that the coordinator asked for; None if it asked for none.
        The coordinator is told the public reason, and nothing else.

        Raises:
            LocalStoreError: The disk refused the note about the run.
        """
        self._metrics.count_decision(accepted=False, rule=refusal.rule)
        log.warning("refused", rule=refusal.rule, detail=refusal)
        audit.refused(asked, refusal.rule)
        self._metrics.rounds.labels(outcome="refused").inc()
        self.tell(refusal.public_reason, asked, coordinator=coordinator)
        # Last, for it may fail, and that must not keep the coordinator waiting.
        if asked is not None:
            self._runs.judged(asked[0], refusal.rule)

    def tell(
        self, public_reason: str, asked: tuple[str, Place] | None, *, coordinator: Tells
    ) -> None:
        """Tell the coordinator that this silo takes no part; one that is away is not told."""
        if asked is None:
            return
        run_id, place = asked
        try:
            coordinator.refuse(
                run_id=run_id, round_number=place.round, step=place.step, reason=public_reason
            )
        except TransportError as error:
            self._metrics.count_error(type(error).__name__)
            log.warning("refusal_not_delivered", detail=error)

    def runs_over(self, run_ids: frozenset[str]) -> None:
        """Note which runs are over, each word once.

        Raises:
            LocalStoreError: The disk refused; it is tried again at the next word.
        """
        self._runs.ended(run_ids - self._over)
        self._over = run_ids

    def took_part(self, identity: AggregationId) -> None:
        """Count a round that this silo's shares are part of.

        Raises:
            LocalStoreError: The disk refused.
        """
        self._runs.took_part(identity)

    def stop_waiting(self) -> None:
        """The coordinator has said something else."""
        self._waiting = None
        self._metrics.approvals_waiting.set(0)

    def take_up(
        self,
        take: Callable[[RoundTask, LedgerEcho | None], None],
        *,
        refuse: Callable[[PolicyRefusalError], None],
        survive: Callable[[Exception, None], None],
    ) -> None:
        """Act on the task that waited, once, if somebody has decided about it.

        ``take`` acts on it as if it had come now; ``refuse`` hears of a refusal, ``survive`` of
        every other failure.
        """
        try:
            if self._waiting is not None:
                task, echo = self._waiting
                if self.standing(task.run_id, task.plan_sha256) is not Standing.PENDING:
                    self.stop_waiting()
                    take(task, echo)
        except PolicyRefusalError as refusal:
            refuse(refusal)
        except Exception as error:  # noqa: BLE001 - as in the loop that calls this (``polling.py``)
            survive(error, None)

    def over(self, *, attempt_open: bool) -> bool:
        """Whether this silo leaves, and nothing is left that it wanted to finish."""
        leaving = self._departure.mark()
        return leaving is not None and not (leaving.drain and attempt_open)

    def watch(self, stopping: threading.Event, attempt_open: Callable[[], bool]) -> None:
        """Stop the daemon when the silo leaves, also where the coordinator never answers.

        Once ``stopping`` is set the watch ends. ``drain`` waits for an open attempt.
        """

        def look() -> None:
            while not stopping.wait(WATCH_S):
                if self.over(attempt_open=attempt_open()):
                    log.info("left")
                    stopping.set()

        threading.Thread(target=look, name="departure", daemon=True).start()


def _require_accepted(decision: Decision) -> None:
    if not decision.accepted:
        raise PolicyRefusalError(
            rule=decision.rule, public_reason=decision.public_reason, detail=decision.detail
        )
