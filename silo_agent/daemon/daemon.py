"""The silo daemon: polls the coordinator, works, takes part in sums, follows the chain.

Ordered invariants for each instruction:

1. The roster is verified under the pinned root key before anything the coordinator signed is
   believed, and an epoch older than the newest one seen is refused.
2. A task of suite v2 that invites others is noted, durably, and nothing is done for it. What is
   remembered as a round's task follows the head of a chain whose plan this site allows.
   A task or descriptor is acted on only after the guardian (``policy.py``) accepted it, the ledger
   contains the head that the coordinator echoes, and the budget allows it; a refusal is a counted,
   explained, normal event.
3. Local work runs on its own thread while the daemon goes on polling, so a silo at work is never
   mistaken for a dead one. That is so too while a sum of unit gradients is computed that an
   attempt waits for: what cannot be answered yet is asked for again.
4. Whatever a check finds wrong ends the session it concerns, is counted by the check's name, logged
   in one line with that name and the aggregation, and the daemon keeps running: it takes part again
   as soon as what the coordinator says is right. A defect of ours ends no more than that either.
5. Local work, results and attempts of a run end when the coordinator says that the run is over;
   nothing is charged for it after that word. Each answer of a step is given to the newest poll, so
   the debit of R2 needs no other look. This saves work and budget where the coordinator is honest;
   one that lies about it is met by the checks above alone.
6. What the coordinator repeats word for word is answered again by the session itself. So an
   answer that did not get through ends nothing: the same instruction is asked for and handled
   again. Only an answer that the coordinator refused ends the session.

A round of several steps goes on without a task for each: a descriptor of a later step is acted on
if this process accepted a task of its round, after the chain was followed to the step before.

Covered: restarts at any point (the silo finishes an upload it had spooled, and takes part again
from the next task), lost connections, a coordinator that restarts in the middle of an attempt,
hostile messages, runs that rest while others go on. Not covered: two rounds at once.
"""

from __future__ import annotations

import threading
import time

from dp.config import Mode
from dp.errors import LedgerCorruptError
from federation.chain.record import AdapterRecord, Place
from federation.chain.task import RoundTask
from federation.errors import ChainError, UpdateError
from federation.plan.families import families_of
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.descriptor import STEPS, AggregationId, SignedDescriptor, verify_descriptor
from secagg.messages import (
    BoxDelivery,
    ConsistencySignatures,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from silo_agent.attempt.session import Session
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.ledger import (
    identity_name,
    ledger_identity,
    open_ledger,
    require_unsigned,
)
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.books.round_tasks import RoundTasks
from silo_agent.config import SiloConfig
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.facts import FactsDesk
from silo_agent.daemon.gate import Gate
from silo_agent.daemon.polling import Polling, check_of, report
from silo_agent.daemon.preflight import PreflightDesk
from silo_agent.errors import (
    ChainMismatchError,
    LocalStoreError,
    PolicyRefusalError,
    SessionError,
    SpoolError,
    TransportError,
)
from silo_agent.follow.chain import Head
from silo_agent.follow.published import Published, fetch_roster, require_head, require_next
from silo_agent.guard.guard import Guard, panel_families
from silo_agent.identity.identity import Identity
from silo_agent.identity.renewal import Renewal
from silo_agent.line.instruction import Idle, Instruction, LedgerEcho, RoundAborted, RoundClosed
from silo_agent.line.transport import Coordinator
from silo_agent.local_work.work import LocalWork
from silo_agent.machine.limits import restrict_gpus
from silo_agent.metrics import IDLE, TRAINING, SiloMetrics
from silo_agent.policy.document import Policy

__all__ = ["Daemon"]

_STEP_OF = {
    KeyBundles: STEPS[1],
    BoxDelivery: STEPS[2],
    LeafDelivery: STEPS[2],
    Survivors: STEPS[3],
    ConsistencySignatures: STEPS[4],
}
"""The step whose answer each message asks for."""
_OF_AN_ATTEMPT = (SignedDescriptor, *_STEP_OF)

log = get_logger(__name__)


class Daemon:
    """One silo of one federation."""

    def __init__(self, config: SiloConfig) -> None:
        self.config = config
        self.stopping = threading.Event()
        self.identity = Identity.load(config.data_dir)
        self.policy = Policy.load(config.policy_file)
        restrict_gpus(self.policy.limits)
        self.store = LocalStore(config.data_dir)
        self.metrics = SiloMetrics(families=(*config.families(), *panel_families(config)))
        self.gate = Gate(config.data_dir, self.policy, self.metrics)
        self.audit = open_audit(config.data_dir, lambda: self.identity, self.metrics)
        self.ledger = open_ledger(config, self.policy, self.store)
        self.unfinished = UnfinishedUploads(
            config.data_dir / "spool",
            silo_id=self.identity.silo_id,
            ledger=self.ledger,
            metrics=self.metrics,
        )
        self.coordinator = Coordinator(
            address=self.identity.coordinator_address,
            credentials=self.identity.channel_credentials(),
            stopping=self.stopping,
        )
        self.renewal = Renewal(
            identity=self.identity,
            data_dir=config.data_dir,
            coordinator=self.coordinator,
            metrics=self.metrics,
            stopping=self.stopping,
            renewed=self.audit.renewed,
        )
        self.coordinator.watch_sent(self.metrics.sent_bytes.inc)
        self.coordinator.watch_trust(self.renewal.hear)
        self.coordinator.watch_version(self.renewal.hear_version)
        self.peers = PeerHeads(self.store)
        self.tasks = RoundTasks(config.data_dir)
        self.work = LocalWork(
            config=config,
            coordinator=self.coordinator,
            store=self.store,
            metrics=self.metrics,
            audit=self.audit.log,
            ledger_of=lambda: self.ledger,
            seed_of=self.identity.work_seed,
            limits=self.policy.limits,
            allow=self.gate.require_standing,
            refuse=self._refuse_work,
            guard=Guard.of(
                config,
                store=self.store,
                metrics=self.metrics,
                federation=self.identity.federation,
                # It may be opened anew.
                debits_of=lambda run_id: self.ledger.debits_of_run(run_id),  # noqa: PLW0108
            ),
        )
        self.published = Published(
            coordinator=self.coordinator,
            identity=self.identity,
            store=self.store,
            max_dimension=self.policy.limits.max_dimension,
            adopted=self.work.adopted,
            admit=self.gate.judge_record,
            adopting=self._adopting,
        )
        self.coordinator.watch_over_runs(self._hear_over)
        self.preflights = PreflightDesk(
            data_dir=config.data_dir,
            identity=self.identity,
            coordinator=self.coordinator,
            audit=self.audit,
            metrics=self.metrics,
            stopping=self.stopping,
            most_per_day=self.policy.limits.max_preflights_per_day,
            roster_of=lambda sha256: fetch_roster(
                self.coordinator, identity=self.identity, store=self.store, roster_sha256=sha256
            ),
            judge=lambda asked, plan: self.gate.judge_preflight(
                asked, plan, site=self.work.site, ledger=self.ledger
            ),
        )
        self.coordinator.watch_preflights(self.preflights.hear)
        self.facts = FactsDesk(
            data_dir=config.data_dir,
            identity=self.identity,
            policy=self.policy,
            ledger_of=lambda: self.ledger,
            coordinator=self.coordinator,
            metrics=self.metrics,
        )
        self._session: Session | None = None
        self._task: RoundTask | None = None
        self._asked: tuple[str, Place] | None = None
        self._contributed: AggregationId | None = None

    def serve(self) -> None:
        """Poll until told to stop."""
        log.info("silo_started", silo=self.identity.silo_id)
        self.audit.started(self.config.policy_file)
        self.facts.take_budget()
        Polling(
            self.coordinator,
            stopping=self.stopping,
            obey=self._obey,
            refuse=self._refuse,
            survive=self._survive,
            settle=self._settle,
        ).serve()

    def close(self) -> None:
        """Stop work, wipe secrets, release the ledger."""
        self.stopping.set()
        # The next process finishes what this one had begun to upload.
        self._end_session(keep_spool=True)
        self.work.close()
        self.preflights.close()
        self.coordinator.close()
        self.ledger.close()
        self.audit.stopped()

    @property
    def attempt_open(self) -> bool:
        """Whether there is an attempt that this silo has not finished."""
        return self._session is not None and not self._session.finished

    def _hear_over(self, run_ids: frozenset[str]) -> None:
        """Some runs are over; what came with that word is dealt with afterwards."""
        if self._session is not None and self._session.identity.run_id in run_ids:
            self._give_up_session()
        self.work.runs_over(run_ids)
        try:
            self.gate.runs_over(run_ids)
        except LocalStoreError as error:
            # It is for people; what came with that word must not be lost for it.
            self._survive(error, None)

    # Instructions ---------------------------------------------------------------------------------

    def _obey(self, instruction: Instruction) -> bool:
        """Act on an instruction; whether there was anything to do that this silo had not done."""
        message = instruction.payload
        self.gate.stop_waiting()
        match message:
            case Idle():
                self._end_aggregations()
                self.metrics.show_phase(IDLE)
                self.work.call_off()
            case RoundTask():
                self._end_aggregations()
                repeated = message == self._task
                self._take_task(message, instruction.ledger_echo)
                self.audit.exchange(self.coordinator, self.published)
                return not repeated
            case SignedDescriptor():
                self._take_descriptor(message)
            case (
                KeyBundles()
                | BoxDelivery()
                | LeafDelivery()
                | Survivors()
                | ConsistencySignatures()
            ):
                self._take_message(message, instruction.identity)
            case RoundClosed():
                self._end_aggregations()
                self.metrics.show_phase(IDLE)
                self.work.call_off()
                moved = self._close_round(message)
                self.audit.exchange(self.coordinator, self.published)
                return moved
            case RoundAborted():
                log.warning("round_aborted", said=message.reason)
                self.metrics.rounds.labels(outcome="aborted").inc()
                self._end_aggregations()
                self.metrics.show_phase(IDLE)
        return isinstance(message, _OF_AN_ATTEMPT)

    def _take_descriptor(self, signed: SignedDescriptor) -> None:
        identity = signed.descriptor.identity
        session = self._session
        if session is not None and session.identity == identity:
            # The very same descriptor is answered with the same keys; another one is refused.
            session.handle(signed)
            return
        self._end_session()
        if self.ledger.has_joined(ledger_identity(identity), signed.descriptor.sha256):
            # Its keys died with the session that joined it, and there will be no others.
            log.info("not_in_this_aggregation", identity=identity_name(identity))
            return
        self.unfinished.keep_only(identity)
        try:
            session = self._session = self._open_session(signed)
        finally:
            self.store.set_ledger_head(*self.ledger.head())
        # Held by now: if the keys do not get through, the descriptor again sends the same ones.
        session.handle(signed)
        self.metrics.show_phase(STEPS[0])

    def _take_message(
        self,
        message: KeyBundles | BoxDelivery | LeafDelivery | Survivors | ConsistencySignatures,
        identity: AggregationId | None,
    ) -> None:
        session = self._session
        if session is None or session.identity != identity:
            if (
                identity is not None
                and isinstance(message, BoxDelivery | LeafDelivery)
                and self.unfinished.finish(identity, self.coordinator)
            ):
                self.audit.uploaded(identity)
                return
            # A restarted silo sees the middle of a round it is no longer part of.
            name = "" if identity is None else identity_name(identity)
            log.info("not_in_this_aggregation", identity=name)
            return
        step, started = _STEP_OF[type(message)], time.monotonic()
        self.metrics.show_phase(step)
        try:
            session.handle(message)
        finally:
            self.store.set_ledger_head(*self.ledger.head())
        self.metrics.observe_phase(step, time.monotonic() - started)
        if session.finished and self._contributed != identity:
            self._contributed = identity
            self.gate.took_part(identity)
            self.metrics.rounds.labels(outcome="contributed").inc()

    def _take_task(self, task: RoundTask, echo: LedgerEcho | None) -> None:
        task.verify(self.published.roster(task.roster_sha256).roster.coordinator_key)
        plan = self.published.plan(task.plan_sha256)
        self._task, self._asked = task, (task.run_id, Place(task.round, task.step))
        self.metrics.show_phase(IDLE)
        if task.invited and self.identity.silo_id not in task.invited:
            # Public: others are asked. Nothing is explored or paid for, and nothing refused.
            self.work.call_off()
            self.gate.not_invited(task, self.coordinator.plan)
            if self.gate.follows(task, plan, site=self.work.site):
                self._follow_to(task, plan)
            return
        self.gate.judge_task(
            task,
            plan,
            work=self.work,
            ledger=self.ledger,
            identity=self.identity,
            echo=echo,
            fetch=self.coordinator.plan,
        )
        head = self._follow_to(task, plan)
        require_unsigned(self.ledger, task)
        self.work.start(task=task, plan=plan, head=head)
        self.metrics.show_phase(TRAINING)
        self.audit.accepted(task)

    def _follow_to(self, task: RoundTask, plan: Plan) -> Head:
        """The head that a task follows, which alone is remembered as one of its round."""
        head = self.published.follow(task.run_id, task.plan_sha256)
        require_next(task, plan, head.record)
        self.tasks.hear(task)
        return head

    def _close_round(self, closed: RoundClosed) -> bool:
        """Follow a run to its end, if it is one that this site allows; whether it moved the head.

        A coordinator may say the same record any number of times.
        """
        plan = self.published.plan(closed.record.plan_sha256)
        decision = self.gate.judge_closed(closed.record, plan, site=self.work.site)
        if not decision.accepted:
            log.info("not_followed", run=closed.record.run_id, rule=decision.rule)
            return False
        self._asked = closed.record.run_id, closed.record.place
        before = self.published.head
        after = self.published.follow(closed.record.run_id, closed.record.plan_sha256)
        return before is None or before.record != after.record

    def _adopting(self, record: AdapterRecord) -> None:
        """A verified record is about to become the head of its run's chain."""
        self.audit.adopting(record)
        self.facts.take_budget()

    def _open_session(self, signed: SignedDescriptor) -> Session:
        descriptor = signed.descriptor
        identity = descriptor.identity
        roster = self.published.roster(descriptor.roster_sha256)
        verify_descriptor(signed, roster.roster)
        finished = self.work.finished(identity.run_id, identity.round)
        if finished is None:
            raise SessionError("a descriptor for a round whose local work this silo has not done")
        self._asked = identity.run_id, Place(identity.round, identity.step)
        head = self.published.head_before(descriptor, finished.plan)
        require_head(descriptor, finished.plan, head.record)
        plan = self.published.plan(descriptor.plan_sha256)
        me, layout = self.identity.silo_id, finished.layout
        task = self.tasks.named(identity.run_id, identity.round, descriptor.task_sha256)
        self.gate.judge_descriptor(
            signed, plan, silo_id=me, work=self.work, ledger=self.ledger, layout=layout, task=task
        )
        spec = plan.spec
        stepped = spec.mode is Mode.RECORD_DISTRIBUTED
        contribution = finished.for_attempt(
            descriptor.metrics,
            step=identity.step,
            # Begun before the first key is shown, so that it is done when the boxes arrive.
            unit_sum=self.work.unit_sum(descriptor, plan, head) if stepped else None,
        )
        try:
            session = Session(
                silo_id=self.identity.silo_id,
                signing_key=self.identity.signing_key,
                roster=roster,
                descriptor=signed,
                base_model_sha256=self.work.site.base_sha256,
                adapter_sha256=head.record.adapter_sha256,
                families=self.config.families(plan),
                spec=spec,
                suites=self.policy.secure_aggregation.accepted,
                plan_families=families_of(plan),
                task_sha256=b"" if task is None else task.sha256,
                cohort_may_vary=self.gate.cohort_may_vary(identity.run_id, descriptor.plan_sha256),
                contribution=contribution,
                ledger=self.ledger,
                peers=self.peers,
                spool_directory=self.config.data_dir / "spool",
                coordinator=self.coordinator,
                metrics=self.metrics,
                audit=self.audit.log,
                advertise=False,
            )
        except Exception:
            contribution.drop()
            raise
        log.info("session_opened", identity=identity_name(identity), cohort=len(descriptor.cohort))
        return session

    def _end_session(self, *, keep_spool: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(keep_spool=keep_spool)

    def _give_up_session(self, *, keep_spool: bool = False) -> None:
        """End the session where another failure is being dealt with already."""
        try:
            self._end_session(keep_spool=keep_spool)
        except SpoolError as error:
            # Its secrets are wiped. The file holds a masked vector; the next process deletes it.
            self.metrics.count_error(type(error).__name__)
            log.warning("spool_not_deleted", detail=error)

    def _end_aggregations(self) -> None:
        """No attempt is open: nothing of one is of use any more."""
        self._end_session()
        self.unfinished.keep_only(None)

    def _settle(self) -> None:
        """Show the budget and publish facts, and hear what the operator has said meanwhile."""
        self.metrics.observe_ledger(self.ledger)
        self.facts.publish(attempt_open=self.attempt_open)
        self.gate.take_up(self._take_task, refuse=self._refuse, survive=self._survive)
        if self.gate.over(attempt_open=self.attempt_open):
            self.stopping.set()

    # Refusals and errors --------------------------------------------------------------------------

    def _refuse(self, refusal: PolicyRefusalError) -> None:
        self._give_up_session()
        self.metrics.show_phase(IDLE)
        self.gate.refuse(refusal, self._asked, audit=self.audit, coordinator=self.coordinator)

    def _refuse_work(self, task: RoundTask, refusal: PolicyRefusalError) -> None:
        """What local work came to; called on its thread, while other instructions go on."""
        asked = task.run_id, Place(task.round, task.step)
        self.gate.refuse(refusal, asked, audit=self.audit, coordinator=self.coordinator)

    def _survive(self, error: Exception, instruction: Instruction | None) -> None:
        """Count and log an error in one line, and drop the session unless the error may pass.

        Raises:
            PrivacyError: the ledger failed and cannot be opened again; without it nothing may go.
        """
        self.metrics.count_error(type(error).__name__)
        if (check := check_of(error)) is not None:
            self.metrics.count_check(check)
        if not self.stopping.is_set():
            report(error, instruction)
        lost = isinstance(error, TransportError) and not (instruction and error.refused)
        if not lost:
            # A coordinator that cannot be reached may come back and go on with the attempt.
            self._give_up_session(keep_spool=self.stopping.is_set())
            self.metrics.show_phase(IDLE)
        if isinstance(error, ChainMismatchError | ChainError | UpdateError):
            self.gate.tell("chain", self._asked, coordinator=self.coordinator)
        if isinstance(error, LedgerCorruptError):
            self.ledger.close()
            self.ledger = open_ledger(self.config, self.policy, self.store)
