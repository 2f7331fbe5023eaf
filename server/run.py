"""One run, driven round by round until its plan is fulfilled.

Ordered invariants of a round:

1. The signed RoundTask opens training; the round goes on when every silo that is alive has said
   ready or refused, or at the deadline with at least a quorum.
2. The descriptor is built from the plan, the roster and the ready silos alone; c comes from the
   roster and t from c and n.
3. An attempt that fails before survivors were declared is followed by another with new keys, while
   the plan's charged attempts still leave one for each round to come; one that fails later ends the
   round as skipped, the adapter unchanged.
4. Each phase change is one durable transaction; each round ends with one signed record.

Covered: silos that die, lag, refuse or come back at any point; a coordinator that restarts between
rounds, or in the middle of one (the attempt is keyed anew). Not covered: continuing the same
attempt after a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from federation.errors import UpdateError
from federation.plan import Plan
from federation.record import AdapterRecord, RecordKind
from federation.task import SURVIVORS_ALREADY_SIGNED, RoundTask
from secagg.descriptor import AggregationId, sign_descriptor
from secagg.errors import SecAggError
from secagg.roster import SignedRoster
from server.accumulator import Accumulator
from server.aggregation import Aggregated, aggregate
from server.audit import AuditEvent
from server.context import RunContext
from server.descriptor import build_descriptor
from server.epsilon import epsilon_spent
from server.errors import QuarantinedSumError, RunError, TooFewSilosError, WrongRoundError
from server.figures import RoundFigures
from server.round import STEPS, Attempt, Phase
from server.store.runs import RunRow, RunState
from server.training import Training

__all__ = ["RunDriver"]

log = structlog.get_logger(__name__)


class RunDriver:
    """Drives one run; the service posts the silos' messages to it."""

    def __init__(
        self, *, row: RunRow, plan: Plan, roster: SignedRoster, context: RunContext
    ) -> None:
        self.row = row
        self.plan = plan
        self.roster = roster
        self.records: list[AdapterRecord] = list(context.store.records.list(row.run_id))
        self.attempt: Attempt | None = None
        self.training: Training | None = None
        self.current = RoundFigures(round=self.next_round)
        self.finished: list[RoundFigures] = []
        self._context = context
        self._silos = tuple(entry.silo_id for entry in roster.roster.entries)

    @property
    def head(self) -> AdapterRecord:
        """The newest record of the chain."""
        return self.records[-1]

    @property
    def next_round(self) -> int:
        """Rounds count from 1; record k closes round k."""
        return len(self.records)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Silos the current phase waits for."""
        if self.attempt is not None:
            return tuple(sorted(self.attempt.waiting_for))
        return () if self.training is None else self.training.unanswered(self._silos)

    # Messages of silos --------------------------------------------------------------------------

    def report_ready(
        self, silo_id: str, *, round_number: int, adapter_sha256: bytes, families: tuple[str, ...]
    ) -> None:
        """A silo's local work is done."""
        self._require_member(silo_id)
        self._training(round_number).report_ready(
            silo_id, adapter_sha256=adapter_sha256, families=families
        )
        self._context.changed.notify()

    def refuse(self, silo_id: str, *, round_number: int, reason: str) -> None:
        """A silo takes no part."""
        self._require_member(silo_id)
        training = self._training(round_number)
        if training.refused.get(silo_id) == reason:
            return
        training.refuse(silo_id, reason)
        self._context.audit.append(
            AuditEvent.SILO_REFUSED,
            run=self.row.run_id,
            round=round_number,
            silo=silo_id,
            reason=reason,
        )
        self._context.changed.notify()

    def _require_member(self, silo_id: str) -> None:
        """Enrolled silos outside the roster have no say in a round."""
        if silo_id not in self._silos:
            raise WrongRoundError(f"{silo_id} is not in the roster of this run")

    def active_attempt(self) -> Attempt:
        """The attempt that messages of R0 to R4 are for."""
        if self.attempt is None:
            raise WrongRoundError("no aggregation is open")
        return self.attempt

    def _training(self, round_number: int) -> Training:
        if self.training is None or round_number != self.current.round:
            raise WrongRoundError(f"round {round_number} is not in training")
        return self.training

    # Driving ------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Run the remaining rounds.

        Raises:
            RunError: the run cannot go on; the reason says why and what to do.
        """
        self._set_run(RunState.RUNNING)
        self._show_epsilon()
        while self.next_round <= self.plan.rounds.count:
            await self._round()
        self._set_run(RunState.FINISHED)
        self._context.audit.append(AuditEvent.RUN_FINISHED, run=self.row.run_id)
        self._context.changed.notify()

    async def _round(self) -> None:
        attempt_number = self._context.store.rounds.attempts(self.row.run_id, self.next_round)
        self.current = RoundFigures(round=self.next_round, attempt=attempt_number)
        self.current.adapter_sha256 = self.head.adapter_sha256
        spare = self.plan.rounds.charged_attempts - self.plan.rounds.count
        for number in range(attempt_number + 1, attempt_number + 2 + spare):
            if not self._affordable():
                break
            self.current.attempt = number
            cohort = await self._await_ready(number)
            if cohort is None:
                break
            aggregated = await self._attempt(number, cohort)
            if aggregated is not None:
                with self._context.store.transaction():
                    self._close_round(aggregated)
                return
            if self.current.outcome == "skipped":
                break
        with self._context.store.transaction():
            self._skip_round()

    def _affordable(self) -> bool:
        """Whether this round may be charged once more: ε is stated for so many and no more."""
        releases = self._context.store.rounds.releases(self.row.run_id)
        rounds_left = self.plan.rounds.count - len(self.records) + 1
        return releases + rounds_left <= self.plan.rounds.charged_attempts

    async def _await_ready(self, attempt_number: int) -> dict[str, tuple[str, ...]] | None:
        """Wait for the silos; None when so many refused for good that the round is skipped."""
        quorum = self.plan.rounds.ready_quorum(self.plan.secure_aggregation.n_min)
        self.attempt = None
        while True:
            now = self._context.clock()
            deadline = int(now) + self.plan.rounds.ready_deadline_s
            self.training = Training(task=self._sign_task(deadline))
            self._enter(Phase.TRAINING, deadline, attempt_number)
            while self._context.clock() < deadline:
                waiting = [s for s in self.waiting_for if self._context.liveness.alive(s)]
                if not waiting and len(self.training.ready) >= quorum:
                    break
                if self.training.out_of_reach(self._silos, quorum):
                    break
                await self._context.changed.wait(1.0)
            self._leave()
            if len(self.training.ready) >= quorum:
                return dict(sorted(self.training.ready.items()))
            if self.training.out_of_reach(self._silos, quorum):
                if SURVIVORS_ALREADY_SIGNED in self.training.refused.values():
                    return None
                reasons = ", ".join(f"{s}: {r}" for s, r in sorted(self.training.refused.items()))
                raise RunError(
                    f"round {self.current.round} cannot reach its quorum of {quorum}: {reasons}"
                )
            self._context.audit.append(
                AuditEvent.ROUND_STALLED, run=self.row.run_id, round=self.current.round
            )

    async def _attempt(self, number: int, ready: dict[str, tuple[str, ...]]) -> Aggregated | None:
        context = self._context
        descriptor = sign_descriptor(
            build_descriptor(
                identity=AggregationId(
                    run_id=self.row.run_id,
                    round=self.current.round,
                    step=0,
                    part=0,
                    attempt=number,
                ),
                plan=self.plan,
                plan_sha256=self.row.plan_sha256,
                roster=self.roster,
                ready=ready,
                adapter=context.blobs.get(self.head.adapter_sha256),
                adapter_sha256=self.head.adapter_sha256,
                now_unix_s=int(context.clock()),
            ),
            context.signing_key,
        )
        accumulator = Accumulator(
            context.scratch / self.row.run_id,
            length=descriptor.descriptor.dimension + len(descriptor.descriptor.metrics.names),
        )
        context.store.rounds.set_descriptor(
            self.row.run_id, self.current.round, number, descriptor.descriptor.signed_bytes()
        )
        attempt = Attempt(descriptor=descriptor, roster=self.roster, accumulator=accumulator)
        self.current.cohort = tuple(sorted(attempt.cohort))
        self.training = None
        self.attempt = attempt
        try:
            await self._steps(attempt)
            self._enter(Phase.AGGREGATE, context.clock() + 60, number)
            total = await asyncio.to_thread(attempt.unmask)
            aggregated = await asyncio.to_thread(
                aggregate,
                plan=self.plan,
                previous=context.blobs.get(self.head.adapter_sha256),
                total=total,
                descriptor=descriptor.descriptor,
                survivors=attempt.survivors,
            )
        except (TooFewSilosError, QuarantinedSumError, SecAggError, UpdateError) as error:
            self._note_abort(attempt, error)
            return None
        finally:
            self._leave()
            for phase in attempt.dropped.values():
                context.metrics.dropouts.labels(stage=phase.value).inc()
            self.current.upload_bytes += attempt.received_bytes
            context.metrics.upload_bytes.inc(attempt.received_bytes)
            attempt.close()
            self.attempt = None
            self._show_epsilon()
        self.current.survivors = attempt.survivors
        return aggregated

    def _note_abort(self, attempt: Attempt, error: Exception) -> None:
        context, phase = self._context, attempt.phase.value
        few = isinstance(error, TooFewSilosError)
        context.metrics.aborts.labels(reason=f"{'too_few' if few else 'refused'}_{phase}").inc()
        context.audit.append(
            AuditEvent.ATTEMPT_ABORTED,
            run=self.row.run_id,
            round=self.current.round,
            attempt=attempt.identity.attempt,
            reason=str(error),
        )
        log.warning("attempt_aborted", round=self.current.round, phase=phase, reason=str(error))
        if not attempt.may_retry:
            self.current.outcome = "skipped"

    async def _steps(self, attempt: Attempt) -> None:
        clock, phase_s = self._context.clock, self.plan.rounds.phase_deadline_s
        for step in STEPS:
            # Phases that closed early must not lengthen the wait for a silo lost in a later one.
            deadline = min(attempt.deadline_unix_s(), clock() + phase_s)
            self._enter(step, deadline, attempt.identity.attempt)
            while attempt.waiting_for and clock() < deadline:
                await self._context.changed.wait(min(1.0, deadline - clock()))
            if step is not STEPS[-1]:
                async with attempt.lock:
                    attempt.close_phase()
            self._leave()
            self._context.changed.notify()

    # Closing a round ------------------------------------------------------------------------------

    def _close_round(self, result: Aggregated) -> None:
        blobs = self._context.blobs
        figures = self.current
        adapter_sha256 = blobs.put(result.adapter)
        self._append(
            kind="aggregated",
            adapter_sha256=adapter_sha256,
            descriptor_sha256=result.descriptor_sha256,
            sum_sha256=blobs.put(result.sum_bytes),
            survivors=figures.survivors,
        )
        figures.success = {
            family: (ratio.mean, ratio.standard_error) for family, ratio in result.success.items()
        }
        figures.update_norm = result.update_norm
        figures.agreement = result.kappa
        figures.heterogeneity = result.zeta_sq
        self._finish("aggregated", adapter_sha256)

    def _skip_round(self) -> None:
        self._append(
            kind="skipped",
            adapter_sha256=self.head.adapter_sha256,
        )
        self._finish("skipped", self.head.adapter_sha256)

    def _finish(self, outcome: str, adapter_sha256: bytes) -> None:
        figures = self.current
        figures.outcome = outcome
        figures.phase = Phase.FINISHED
        figures.adapter_sha256 = adapter_sha256
        self._context.store.rounds.finish(
            self.row.run_id, figures.round, figures.attempt, outcome, figures.to_json()
        )
        self._context.metrics.observe_round(figures)
        self.finished.append(figures)
        self.training = None
        self._context.audit.append(
            AuditEvent.ROUND_FINISHED,
            run=self.row.run_id,
            round=figures.round,
            outcome=outcome,
            adapter=adapter_sha256.hex(),
            survivors=list(figures.survivors),
        )
        log.info("round_finished", round=figures.round, outcome=outcome)
        self._context.changed.notify()

    # Durable steps --------------------------------------------------------------------------------

    def _append(
        self,
        *,
        kind: RecordKind,
        adapter_sha256: bytes,
        descriptor_sha256: bytes = b"",
        sum_sha256: bytes = b"",
        survivors: tuple[str, ...] = (),
    ) -> None:
        record = replace(
            self.head,
            round=self.next_round,
            parent_sha256=self.head.adapter_sha256,
            adapter_sha256=adapter_sha256,
            descriptor_sha256=descriptor_sha256,
            sum_sha256=sum_sha256,
            survivors=survivors,
            kind=kind,
            record_parent_sha256=self.head.sha256,
        ).sign(self._context.signing_key)
        self._context.store.records.append(record)
        self.records.append(record)

    def _sign_task(self, deadline_unix_s: int) -> RoundTask:
        return RoundTask(
            run_id=self.row.run_id,
            round=self.next_round,
            plan_sha256=self.head.plan_sha256,
            roster_sha256=self.roster.roster.sha256,
            roster_epoch=self.roster.roster.epoch,
            base_model_sha256=self.head.base_model_sha256,
            adapter_sha256=self.head.adapter_sha256,
            ready_deadline_unix_s=deadline_unix_s,
        ).sign(self._context.signing_key)

    def _enter(self, phase: Phase, deadline_unix_s: float, attempt: int) -> None:
        figures, now = self.current, self._context.clock()
        figures.phase, figures.phase_since_unix_s = phase, now
        figures.deadline_unix_s, figures.attempt = deadline_unix_s, attempt
        self._context.store.rounds.set_phase(
            self.row.run_id, figures.round, attempt, phase.value, now
        )
        self._context.metrics.set_phase(phase.value)
        self._context.changed.notify()

    def _leave(self) -> None:
        figures = self.current
        spent = self._context.clock() - figures.phase_since_unix_s
        figures.timings_s[figures.phase.value] = (
            figures.timings_s.get(figures.phase.value, 0.0) + spent
        )
        self._context.metrics.phase_duration.labels(phase=figures.phase.value).observe(spent)

    def _show_epsilon(self) -> None:
        spent = epsilon_spent(self.plan, self._context.store.rounds.releases(self.row.run_id))
        self._context.metrics.set_epsilon(spent=spent, cap=self.plan.privacy.epsilon_cap)

    def _set_run(self, state: RunState, error: str = "") -> None:
        self._context.store.runs.set_state(self.row.run_id, state, error)
