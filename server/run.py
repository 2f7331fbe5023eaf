"""One run, driven round by round until its plan is fulfilled.

Ordered invariants of a round:

1. The signed RoundTask opens training; the round goes on when every silo that is alive has said
   ready or refused, or at the deadline with at least a quorum.
2. An attempt that fails before survivors were declared is followed by another with new keys, while
   the plan's charged attempts still leave one for each round to come; one that fails later ends the
   round as skipped, the adapter unchanged.
3. Each phase change is one durable transaction; each round ends with one signed record, in the
   transaction that ends its attempt.
4. What is in memory follows what is durable. A fault of the storage leaves ``drive`` with nothing
   ended and nothing counted twice, and ``drive`` may be called again: it goes on in the same step.

Covered: silos that die, lag, refuse or come back at any point; a coordinator that restarts between
rounds, or in the middle of one: the attempt that was open goes on (``server/attempts.py``). Not
covered: several aggregations in one round.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from federation.errors import UpdateError
from federation.plan import Plan
from federation.record import AdapterRecord
from federation.task import SURVIVORS_ALREADY_SIGNED
from secagg.descriptor import AggregationId
from secagg.errors import SecAggError
from secagg.roster import SignedRoster
from server.aggregation import Aggregated
from server.attempts import Attempts
from server.audit import AuditEvent
from server.chain import Chain
from server.context import RunContext
from server.epsilon import epsilon_spent
from server.errors import (
    LostAttemptError,
    QuarantinedSumError,
    RunError,
    TooFewSilosError,
    WrongRoundError,
)
from server.figures import RoundFigures
from server.phase import STEPS, Phase
from server.progress import Progress
from server.round import Attempt
from server.store.aggregations import AggregationOutcome, AggregationRow
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
        self.members = frozenset(roster.roster.silo_ids)
        self.attempt: Attempt | None = None
        self.training: Training | None = None
        self.finished: list[RoundFigures] = []
        self._context = context
        self._chain = Chain(row.run_id, context)
        self._progress = Progress(row.run_id, context)
        self._attempts = Attempts(
            row=row, plan=plan, roster=roster, context=context, progress=self._progress
        )
        self._lost: AggregationId | None = None
        """An attempt that a restart found beyond retry and beyond finishing."""
        self._reopened = False
        self._aborted_bytes = 0
        """Uploads of this round's attempts that were aborted."""
        self._begin_round(0)
        self._silos = tuple(entry.silo_id for entry in roster.roster.entries)

    @property
    def head(self) -> AdapterRecord:
        """The newest record of the chain."""
        return self._chain.head

    @property
    def current(self) -> RoundFigures:
        """The round's figures so far."""
        return self._progress.figures

    @property
    def next_round(self) -> int:
        """Rounds count from 1; record k closes round k."""
        return self._chain.next_round

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
        """Run the remaining rounds; after a fault of the storage this may be called again.

        Raises:
            RunError: the run cannot go on; the reason says why and what to do.
            StoreError: the database failed.
            StorageFullError: the disk is full.
        """
        self._set_run(RunState.RUNNING)
        if self._chain.reload():
            # The commit that closed the round was made, and only its answer was lost.
            row = self._context.store.rounds.finished(self.row.run_id)[-1]
            self._progress.figures = RoundFigures.from_json(row.figures_json)
            self._round_closed()
        self._show_epsilon()
        while self.next_round <= self.plan.rounds.count:
            await self._round()
        self._set_run(RunState.FINISHED)
        self._context.audit.append(AuditEvent.RUN_FINISHED, run=self.row.run_id)
        self._context.changed.notify()

    def reopen(self, row: AggregationRow) -> None:
        """Go on with the attempt that was open when the coordinator stopped.

        Called before any silo is answered: a silo that saw no attempt would leave it.
        """
        identity = row.identity
        self._reopened = True
        self._begin_round(identity.attempt)
        try:
            attempt = self._attempts.reopen(row)
        except LostAttemptError as error:
            phase = STEPS[min(row.phases_closed, len(STEPS) - 1)]
            self._attempts.note_failure(identity, phase, error)
            if row.survivors_declared:
                self.current.outcome = "skipped"
                self._lost = identity
            else:
                self._attempts.end(identity, AggregationOutcome.ABORTED)
            return
        self._adopt(attempt)
        self._progress.recall(attempt.phase)

    def _begin_round(self, attempt: int) -> None:
        self._aborted_bytes = 0
        self._progress.begin_round(
            self.next_round, attempt=attempt, adapter_sha256=self.head.adapter_sha256
        )

    async def _round(self) -> None:
        aggregated = None
        reopened, self._reopened = self._reopened, False
        if self.attempt is not None:
            if self.current.outcome != "skipped":
                aggregated = await self._drive(self.attempt)
        elif not reopened and self._lost is None:
            newest = self._context.store.aggregations.newest_attempt(
                self.row.run_id, self.next_round
            )
            self._begin_round(newest)
        if aggregated is None and self.current.outcome != "skipped":
            aggregated = await self._new_attempts()
        if aggregated is None:
            self._skip_round()
        else:
            await self._close_round(aggregated)

    async def _new_attempts(self) -> Aggregated | None:
        """Open attempts until one yields a sum, or the round is over without."""
        spare = self.plan.rounds.charged_attempts - self.plan.rounds.count
        first = self.current.attempt + 1
        for number in range(first, first + 1 + spare):
            if not self._affordable():
                break
            self.current.attempt = number
            ready = await self._await_ready(number)
            if ready is None:
                break
            attempt = self._attempts.open(number, ready, adapter_sha256=self.head.adapter_sha256)
            aggregated = await self._drive(attempt)
            if aggregated is not None or self.current.outcome == "skipped":
                return aggregated
        return None

    def _affordable(self) -> bool:
        """Whether this round may be charged once more: ε is stated for so many and no more."""
        releases = self._context.store.rounds.releases(self.row.run_id)
        rounds_left = self.plan.rounds.count - self.next_round + 1
        return releases + rounds_left <= self.plan.rounds.charged_attempts

    async def _await_ready(self, attempt_number: int) -> dict[str, tuple[str, ...]] | None:
        """Wait for the silos; None when so many refused for good that the round is skipped."""
        quorum = self.plan.rounds.ready_quorum(self.plan.secure_aggregation.n_min)
        self.attempt = None
        while True:
            now = self._context.clock()
            deadline = int(now) + self.plan.rounds.ready_deadline_s
            self.training = Training(task=self._chain.sign_task(self.roster, deadline))
            self._progress.enter(Phase.TRAINING, deadline, attempt_number)
            while self._context.clock() < deadline:
                waiting = [s for s in self.waiting_for if self._context.liveness.alive(s)]
                if not waiting and len(self.training.ready) >= quorum:
                    break
                if self.training.out_of_reach(self._silos, quorum):
                    break
                await self._context.changed.wait(1.0)
            self._progress.leave()
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

    async def _drive(self, attempt: Attempt) -> Aggregated | None:
        """Drive an attempt to its end; None when it failed."""
        self._adopt(attempt)
        try:
            aggregated = await self._attempts.drive(attempt)
        except (TooFewSilosError, QuarantinedSumError, SecAggError, UpdateError) as error:
            self._progress.leave()
            self._attempts.note_failure(attempt.identity, attempt.phase, error)
            if attempt.may_retry:
                self._attempts.end(attempt.identity, AggregationOutcome.ABORTED)
                self._aborted_bytes += attempt.received_bytes
                self._leave_attempt()
            else:
                self.current.outcome = "skipped"
            return None
        self.current.survivors = attempt.survivors
        return aggregated

    def _adopt(self, attempt: Attempt) -> None:
        self.current.cohort = tuple(sorted(attempt.cohort))
        self.current.attempt = attempt.identity.attempt
        self.training = None
        self.attempt = attempt

    def _leave_attempt(self) -> None:
        """What is left to do once the end of an attempt is durable."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._attempts.clear(attempt)
        self._show_epsilon()

    # Closing a round ------------------------------------------------------------------------------

    async def _close_round(self, result: Aggregated) -> None:
        blobs = self._context.blobs
        figures = self.current
        attempt = self.active_attempt()
        adapter_sha256 = await asyncio.to_thread(blobs.put, result.adapter)
        sum_sha256 = await asyncio.to_thread(blobs.put, result.sum_bytes)
        figures.take(result)
        record = self._chain.link(
            kind="aggregated",
            adapter_sha256=adapter_sha256,
            descriptor_sha256=result.descriptor_sha256,
            sum_sha256=sum_sha256,
            survivors=figures.survivors,
        )
        self._finish(record, attempt.identity, AggregationOutcome.RELEASED)

    def _skip_round(self) -> None:
        over = self._lost if self.attempt is None else self.attempt.identity
        record = self._chain.link(kind="skipped", adapter_sha256=self.head.adapter_sha256)
        self._finish(record, over, AggregationOutcome.SKIPPED)

    def _finish(
        self, record: AdapterRecord, over: AggregationId | None, outcome: AggregationOutcome
    ) -> None:
        """Close the round in one transaction; what is in memory follows."""
        store, figures = self._context.store, self.current
        received = 0 if self.attempt is None else self.attempt.received_bytes
        closed = replace(
            figures,
            outcome=record.kind,
            phase=Phase.FINISHED,
            adapter_sha256=record.adapter_sha256,
            upload_bytes=self._aborted_bytes + received,
        )
        with store.transaction():
            if over is not None:
                self._attempts.end(over, outcome)
            store.records.append(record)
            store.rounds.finish(
                self.row.run_id, closed.round, closed.attempt, closed.outcome, closed.to_json()
            )
            # Inside: a round without its line in the audit log is not closed.
            self._context.audit.append(
                AuditEvent.ROUND_FINISHED,
                run=self.row.run_id,
                round=closed.round,
                outcome=closed.outcome,
                adapter=record.adapter_sha256.hex(),
                survivors=list(closed.survivors),
            )
        self._chain.append(record)
        self._progress.figures = closed
        self._round_closed()

    def _round_closed(self) -> None:
        """Show what the store says: the round is over."""
        figures = self.current
        self._lost = None
        self.training = None
        self._context.metrics.observe_round(figures)
        self.finished.append(figures)
        log.info("round_finished", round=figures.round, outcome=figures.outcome)
        self._leave_attempt()
        self._context.changed.notify()

    # Durable steps --------------------------------------------------------------------------------

    def _show_epsilon(self) -> None:
        spent = epsilon_spent(self.plan, self._context.store.rounds.releases(self.row.run_id))
        self._context.metrics.set_epsilon(spent=spent, cap=self.plan.privacy.epsilon_cap)

    def _set_run(self, state: RunState, error: str = "") -> None:
        self._context.store.runs.set_state(self.row.run_id, state, error)
