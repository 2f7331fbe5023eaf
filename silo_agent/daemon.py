"""The silo daemon: polls the coordinator, works, takes part in sums, follows the chain.

Ordered invariants for each instruction:

1. The roster is verified under the pinned root key before anything the coordinator signed is
   believed, and an epoch older than the newest one seen is refused.
2. A task or descriptor is acted on only after the guardian (``policy.py``) accepted it; a refusal
   is a counted, explained, normal event.
3. Local work runs on its own thread while the daemon goes on polling, so a silo at work is never
   mistaken for a dead one.
4. Whatever a check finds wrong ends the session it concerns, is counted by the check's name, logged
   in one line with that name and the aggregation, and the daemon keeps running: it takes part again
   as soon as what the coordinator says is right.
5. What the coordinator repeats word for word is answered again by the session itself.

Covered: restarts at any point (the silo finishes an upload it had spooled, and takes part again
from the next round), lost connections, a coordinator that restarts in the middle of an attempt,
hostile messages. Not covered: two runs at once.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

import structlog

from dp.errors import LedgerCorruptError, PrivacyError
from federation.errors import ChainError, FederationError, UpdateError
from federation.plan import Plan
from federation.task import SURVIVORS_ALREADY_SIGNED, RoundTask
from secagg.descriptor import STEPS, AggregationId, SignedDescriptor, verify_descriptor
from secagg.errors import Check, SecAggError
from secagg.messages import BoxDelivery, ConsistencySignatures, KeyBundles, Survivors
from secagg.roster import SignedRoster
from silo_agent.admission import fetch_roster, require_accepted, require_budget
from silo_agent.chain import ChainFollower, Head
from silo_agent.config import SiloConfig
from silo_agent.errors import (
    ChainMismatchError,
    PolicyRefusalError,
    SessionError,
    SiloError,
    TransportError,
)
from silo_agent.failure import check_of, describe
from silo_agent.identity import Identity
from silo_agent.ledger_file import open_ledger
from silo_agent.local_store import LocalStore
from silo_agent.metrics import SiloMetrics
from silo_agent.policy import Decision, Policy, check_descriptor, check_plan, check_task
from silo_agent.probes import Probes
from silo_agent.session import Session, identity_name, ledger_identity
from silo_agent.transport import Coordinator, Idle, Instruction, RoundAborted, RoundClosed
from silo_agent.unfinished import UnfinishedUploads
from silo_agent.work import LocalWork

__all__ = ["Daemon", "run"]

_STEP_OF = dict(
    zip((KeyBundles, BoxDelivery, Survivors, ConsistencySignatures), STEPS[1:], strict=True)
)
"""The step whose answer each message asks for."""

log = structlog.get_logger(__name__)

POLL_WAIT_S = 8
MAX_PAUSE_S = 30.0
SURVIVABLE = (SecAggError, PrivacyError, FederationError, SiloError, OSError)
"""What may go wrong with one instruction; anything else is a defect and ends the daemon."""


class Daemon:
    """One silo of one federation."""

    def __init__(self, config: SiloConfig) -> None:
        self.config = config
        self.stopping = threading.Event()
        self.identity = Identity.load(config.data_dir)
        self.policy = Policy.load(config.policy_file)
        self.store = LocalStore(config.data_dir)
        self.metrics = SiloMetrics()
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
        self.chain = ChainFollower(coordinator=self.coordinator, store=self.store)
        self.work = LocalWork(
            config=config,
            coordinator=self.coordinator,
            store=self.store,
            metrics=self.metrics,
            seed_of=self.identity.work_seed,
        )
        self._roster: SignedRoster | None = None
        self._plan: tuple[bytes, Plan] | None = None
        self._session: Session | None = None
        self._head: Head | None = None
        self._task: RoundTask | None = None

    def serve(self) -> None:
        """Poll until told to stop."""
        last_id = ""
        failures = 0
        log.info("silo_started", silo=self.identity.silo_id)
        while not self.stopping.is_set():
            instruction: Instruction | None = None
            try:
                instruction = self.coordinator.poll(last_id, wait_s=POLL_WAIT_S)
                if instruction is not None:
                    self._obey(instruction)
                failures = 0
            except PolicyRefusalError as refusal:
                self._refuse(refusal)
            except SURVIVABLE as error:
                failures += 1
                self._survive(error, instruction, pause_s=min(2.0 ** (failures - 1), MAX_PAUSE_S))
                if instruction is None or isinstance(instruction.payload, RoundTask | RoundClosed):
                    # Asked for again: a passing fault must not cost this silo the whole round.
                    continue
            if instruction is not None:
                last_id = instruction.instruction_id
            self.metrics.observe_ledger(self.ledger)

    def close(self) -> None:
        """Stop work, wipe secrets, release the ledger."""
        self.stopping.set()
        # The next process finishes what this one had begun to upload.
        self._end_session(keep_spool=True)
        self.work.close()
        self.coordinator.close()
        self.ledger.close()

    # Instructions ---------------------------------------------------------------------------------

    def _obey(self, instruction: Instruction) -> None:
        message = instruction.payload
        match message:
            case Idle():
                self._end_aggregations()
            case RoundTask():
                self._end_aggregations()
                self._take_task(message)
            case SignedDescriptor():
                self._take_descriptor(message)
            case KeyBundles() | BoxDelivery() | Survivors() | ConsistencySignatures():
                self._take_message(message, instruction.identity)
            case RoundClosed():
                self._end_aggregations()
                self._close_round(message)
            case RoundAborted():
                log.warning("round_aborted", reason=message.reason)
                self.metrics.rounds.labels(outcome="aborted").inc()
                self._end_aggregations()

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
            self._open_session(signed)
        finally:
            self.store.set_ledger_head(*self.ledger.head())

    def _take_message(
        self,
        message: KeyBundles | BoxDelivery | Survivors | ConsistencySignatures,
        identity: AggregationId | None,
    ) -> None:
        session = self._session
        if session is None or session.identity != identity:
            if (
                identity is not None
                and isinstance(message, BoxDelivery)
                and self.unfinished.finish(identity, self.coordinator)
            ):
                return
            # A restarted silo sees the middle of a round it is no longer part of.
            name = "" if identity is None else identity_name(identity)
            log.info("not_in_this_aggregation", identity=name)
            return
        started = time.monotonic()
        finished = session.finished
        try:
            session.handle(message)
        finally:
            self.store.set_ledger_head(*self.ledger.head())
        self.metrics.observe_phase(_STEP_OF[type(message)], time.monotonic() - started)
        if session.finished and not finished:
            self.metrics.rounds.labels(outcome="contributed").inc()

    def _take_task(self, task: RoundTask) -> None:
        roster = self._trusted_roster(task.roster_sha256)
        task.verify(roster.roster.coordinator_key)
        plan = self._fetch_plan(task.plan_sha256)
        self._task = task
        decision = check_task(
            self.policy,
            task=task,
            plan=plan,
            base_sha256=self.work.base_sha256,
            now_unix_s=int(time.time()),
        )
        self._admit(decision)
        require_budget(self.ledger, task, plan)
        head = self._follow(task.run_id)
        if head.record.adapter_sha256 != task.adapter_sha256:
            raise SessionError("the task starts from another adapter", check=Check.MODEL)
        if task.round != head.record.round + 1:
            raise SessionError("the task's round does not follow the head of the published chain")
        if task.plan_sha256 != head.record.plan_sha256:
            raise SessionError("the task names another plan than the run's")
        if self.ledger.has_agreed(task.run_id, task.round, 0, 0):
            raise PolicyRefusalError(
                rule=SURVIVORS_ALREADY_SIGNED,
                public_reason=SURVIVORS_ALREADY_SIGNED,
                detail="this silo signed survivors of an earlier attempt of this round",
            )
        self.work.start(task=task, plan=plan, head=head)

    def _close_round(self, closed: RoundClosed) -> None:
        """Follow a run to its end, if it is one that this site allows."""
        plan = self._fetch_plan(closed.record.plan_sha256)
        decision = check_plan(self.policy, plan=plan, base_sha256=self.work.base_sha256)
        if not decision.accepted:
            log.info("not_followed", run=closed.record.run_id, rule=decision.rule)
            return
        self._follow(closed.record.run_id)

    def _open_session(self, signed: SignedDescriptor) -> None:
        descriptor = signed.descriptor
        identity = descriptor.identity
        roster = self._trusted_roster(descriptor.roster_sha256)
        verify_descriptor(signed, roster.roster)
        head = self._head
        finished = self.work.finished(identity.run_id, identity.round)
        if finished is None or head is None:
            raise SessionError("a descriptor for a round whose local work this silo has not done")
        if descriptor.adapter_sha256 != head.record.adapter_sha256:
            raise SessionError(
                "the descriptor starts from another adapter than the chain's head",
                check=Check.MODEL,
            )
        if descriptor.plan_sha256 != head.record.plan_sha256:
            raise SessionError("the descriptor names another plan than the run's")
        plan = self._fetch_plan(descriptor.plan_sha256)
        decision = check_descriptor(
            self.policy,
            descriptor=descriptor,
            silo_id=self.identity.silo_id,
            plan=plan,
            base_sha256=self.work.base_sha256,
            layout=finished.layout,
            now_unix_s=int(time.time()),
        )
        self._admit(decision)
        self._session = Session(
            silo_id=self.identity.silo_id,
            signing_key=self.identity.signing_key,
            roster=roster,
            descriptor=signed,
            base_model_sha256=self.work.base_sha256,
            adapter_sha256=head.record.adapter_sha256,
            families=self.config.families(),
            spec=plan.privacy_spec(),
            contribution=finished.contribution(descriptor.metrics),
            ledger=self.ledger,
            spool_directory=self.config.data_dir / "spool",
            coordinator=self.coordinator,
            metrics=self.metrics,
        )
        log.info("session_opened", identity=identity_name(identity), cohort=len(descriptor.cohort))

    def _end_session(self, *, keep_spool: bool = False) -> None:
        if self._session is not None:
            self._session.close(keep_spool=keep_spool)
            self._session = None

    def _end_aggregations(self) -> None:
        """No attempt is open: nothing of one is of use any more."""
        self._end_session()
        self.unfinished.keep_only(None)

    # Trust ----------------------------------------------------------------------------------------

    def _trusted_roster(self, roster_sha256: bytes) -> SignedRoster:
        """The roster with this digest, verified; fetched if it is not the one at hand."""
        roster = self._roster
        if roster is None or roster.roster.sha256 != roster_sha256:
            roster = self._roster = fetch_roster(
                self.coordinator,
                identity=self.identity,
                store=self.store,
                roster_sha256=roster_sha256,
            )
        return roster

    def _fetch_plan(self, plan_sha256: bytes) -> Plan:
        if self._plan is None or self._plan[0] != plan_sha256:
            self._plan = (plan_sha256, Plan.parse(self.coordinator.plan(plan_sha256)))
        return self._plan[1]

    def _follow(self, run_id: str) -> Head:
        roster = self._roster or self._trusted_roster(self.coordinator.roster().roster.sha256)
        self._head = self.chain.sync(run_id, self._fetch_plan, roster.roster.coordinator_key)
        self.work.adopted(self._head, self._fetch_plan(self._head.record.plan_sha256))
        return self._head

    # Refusals and errors --------------------------------------------------------------------------

    def _admit(self, decision: Decision) -> None:
        """Count a favourable verdict of the guardian; any other is counted by ``_refuse``."""
        require_accepted(decision)
        self.metrics.count_decision(accepted=True, rule=decision.rule)

    def _refuse(self, refusal: PolicyRefusalError) -> None:
        self._end_session()
        self.metrics.count_decision(accepted=False, rule=refusal.rule)
        log.warning("refused", rule=refusal.rule, detail=refusal.detail)
        self.metrics.rounds.labels(outcome="refused").inc()
        self._tell_refusal(refusal.public_reason)

    def _tell_refusal(self, public_reason: str) -> None:
        task = self._task
        if task is None:
            return
        try:
            self.coordinator.refuse(
                run_id=task.run_id, round_number=task.round, reason=public_reason
            )
        except TransportError as error:
            self.metrics.count_error(type(error).__name__)
            log.warning("refusal_not_delivered", detail=str(error))

    def _survive(
        self, error: Exception, instruction: Instruction | None, *, pause_s: float = 0.0
    ) -> None:
        """Count and log an error in one line, drop the session, go on after a pause.

        Raises:
            PrivacyError: the ledger failed and cannot be opened again; without it nothing may go.
        """
        said = describe(error, instruction)
        self.metrics.count_error(said["kind"])
        check = check_of(error)
        if check is not None:
            self.metrics.count_check(check)
        if not self.stopping.is_set():
            log.error("instruction_failed", **said)
        if instruction is not None or not isinstance(error, TransportError):
            # A coordinator that cannot be reached may come back and go on with the attempt.
            self._end_session(keep_spool=self.stopping.is_set())
        if isinstance(error, ChainMismatchError | ChainError | UpdateError):
            self._tell_refusal("chain")
        if isinstance(error, LedgerCorruptError):
            self.ledger.close()
            self.ledger = open_ledger(self.config, self.policy, self.store)
        self.stopping.wait(pause_s)


def run(config: SiloConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT."""
    daemon = Daemon(config)
    probes = Probes(
        listen=config.probes_listen, registry=daemon.metrics.registry, data_dir=config.data_dir
    )

    def stop(_signal: int, _frame: FrameType | None) -> None:
        daemon.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    probes.start()
    try:
        daemon.serve()
    finally:
        daemon.close()
        probes.stop()
