"""One run, driven release by release until its plan is fulfilled.

A round has one release, or in `record_distributed` one for each of its steps.

Ordered invariants of a release:

1. The silos of its first attempt are the survivors of the step before, or those that are ready for
   its signed RoundTask (``server/run/cohorts.py``); of each later attempt, the latter.
2. An attempt that fails before survivors were declared is followed by another with new keys, while
   the plan's charged releases still leave one for each release to come; one that fails later ends
   the release as skipped, the adapter unchanged, and the round goes on with its next step.
3. Each phase change is one durable transaction; each release ends with one signed record, in the
   transaction that ends its attempt.
4. What is in memory follows what is durable. A fault of the storage leaves ``drive`` with nothing
   ended and nothing counted twice, and ``drive`` may be called again: it goes on in the same phase.
5. A run is paused between two releases; from declared survivors on (``must_finish``) the open one
   is first finished or skipped.
6. A sum that honest silos cannot have made ends its release as quarantined, which in the chain is
   skipped. Several in a row end the run (``server/run/aggregation.py``).
7. A rollback that an admin asked for takes the next round of which nothing is open, all its steps;
   its first record and the end of the request are one transaction, and the rest follows from that
   record.
8. A bisection that an admin asked for takes such a round as well, of which nothing is chosen yet
   (``server/run/selection.py``): two halves are summed and judged
   (``server/conductor/bisection.py``), and its record is skipped. After it, and after a round with
   many vetoes or where the advisor says so (``server/run/resting.py``), the run is paused in the
   transaction that closes it.

Covered: silos that die, lag, refuse or come back at any point; a coordinator that restarts at any
point: an open attempt goes on (``server/run/attempts.py``); sums of groups, one after the other
(``server/run/groups.py``). Not covered: a restart between the groups of a release, which skips it,
and between halves, whose verdicts are lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from federation.chain.record import AdapterRecord, Place, RecordPart
from federation.chain.task import RoundTask
from federation.errors import UpdateError
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId
from secagg.errors import SecAggError
from secagg.roster import SignedRoster
from server.attempt.attempt import Attempt
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import LostAttemptError, QuarantinedSumError, TooFewSilosError, WrongRoundError
from server.figures import BISECTED, STEPS, HalfSum, HalfVerdict, Phase, RoundFigures
from server.run import resting
from server.run.aggregation import Aggregated, AggregatedGroups, norm_ratio, require_usable
from server.run.attempts import Attempts
from server.run.budget import show_epsilon
from server.run.chain import Chain
from server.run.cohorts import Cohorts, Training
from server.run.groups import OpenGroups, Summed
from server.run.optimiser import RunOptimiser
from server.run.progress import Progress
from server.states import RunState
from server.store.aggregations import AggregationOutcome, AggregationRow
from server.store.bisections import BisectionRow
from server.store.runs import RunRow

__all__ = ["RunDriver"]

log = get_logger(__name__)


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
        self.finished: list[RoundFigures] = []
        self._context = context
        self._chain = Chain(row.run_id, context, sums_per_round=plan.sums_per_round)
        self._progress = Progress(row.run_id, context)
        self.spans = self._progress.spans
        self._optimiser = RunOptimiser(plan, self._chain, context.blobs)
        self._attempts = Attempts(
            row=row,
            plan=plan,
            roster=roster,
            context=context,
            progress=self._progress,
            optimiser=self._optimiser,
        )
        self.cohorts = Cohorts(
            row=row,
            plan=plan,
            roster=roster,
            context=context,
            chain=self._chain,
            progress=self._progress,
        )
        self.pausing = False
        self.carries_over = True
        """Whether survivors of a step need no task; after a pause they worked for another run."""
        self._lost: AggregationId | None = None
        """An attempt that a restart found beyond retry and beyond finishing."""
        self._reopened = False
        self._groups: OpenGroups | None = None
        """The open attempt of a release of groups."""
        self._bisection: BisectionRow | None = None
        """What the open round is bisected for; None if it is none."""
        self._aborted_bytes = 0
        """Uploads of this release's attempts that were aborted, and of groups that are over."""
        self._begin(0)

    @property
    def head(self) -> AdapterRecord:
        """The newest record of the chain."""
        return self._chain.head

    @property
    def current(self) -> RoundFigures:
        """The release's figures so far."""
        return self._progress.figures

    @property
    def next_place(self) -> Place:
        """The release that the next record closes; rounds count from 1, steps from 0."""
        return self._chain.next_place

    @property
    def training(self) -> Training | None:
        """The task that is out, with its answers; None while none is."""
        return self.cohorts.training

    def task_for(self, silo_id: str) -> RoundTask | None:
        """The task that a silo is shown: the one that is out, or until its group's sum is open."""
        if self.training is not None:
            return self.training.task if self.cohorts.is_told(silo_id) else None
        groups = self._groups
        return groups.task if groups is not None and groups.is_waiting(silo_id) else None

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Silos the current phase waits for."""
        if self.attempt is not None:
            return tuple(sorted(self.attempt.waiting_for))
        return self.cohorts.unanswered

    @property
    def must_finish(self) -> bool:
        """Whether silos may have agreed on survivors, so that the release has to be closed."""
        lost = bool(self.current.outcome) and self.current.phase is not Phase.FINISHED
        if self._groups is not None and not self._groups.may_retry:
            return True
        return lost or (self.attempt is not None and not self.attempt.may_retry)

    def active_attempt(self) -> Attempt:
        """The attempt that messages of R0 to R4 are for."""
        if self.attempt is None:
            raise WrongRoundError("no aggregation is open")
        return self.attempt

    # Driving ------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Run the remaining releases, or pause; after a fault of the storage it is called again.

        Raises:
            RunError: the run cannot go on; the reason says why and what to do.
            StoreError: the database failed.
            StorageFullError: the disk is full.
        """
        if self._chain.reload():
            # The commit that closed the release was made, and only its answer was lost.
            row = self._context.store.rounds.finished(self.row.run_id)[-1]
            self._progress.close(RoundFigures.from_json(row.figures_json))
            self._closed()
        show_epsilon(self.plan, self.row.run_id, self._context)
        self._context.metrics.update_norm_ratio.set(norm_ratio(self.finished, self.plan))
        require_usable(self.finished, self.plan)
        while self.next_place.round <= self.plan.rounds.count:
            if self.pausing and not self.must_finish:
                records = self._chain.between(0, self._chain.next_position)
                why = resting.reason(
                    self.row.run_id, records, self.finished, self.plan, self._context.store
                )
                self._set_run(RunState.PAUSED, AuditEvent.RUN_PAUSED, error=why)
                return
            restored = self._restored_round()
            if restored is None:
                await self._release()
            else:
                self._roll_back(restored)
            require_usable(self.finished, self.plan)
        self._set_run(RunState.FINISHED, AuditEvent.RUN_FINISHED)

    def reopen(self, row: AggregationRow) -> None:
        """Go on with the attempt that was open when the coordinator stopped.

        Called before any silo is answered: a silo that saw no attempt would leave it.
        """
        identity = row.identity
        self._reopened = True
        self._begin(identity.attempt)
        self._bisection = self._context.store.bisections.of_round(self.row.run_id, identity.round)
        if self._is_parted:
            self._give_up_groups(row)
            return
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

    def halt(self) -> None:
        """Show no task and no attempt any more: the run has failed or is paused."""
        self.attempt = self.cohorts.training = self._groups = None

    def _begin(self, attempt: int) -> None:
        self._aborted_bytes = 0
        self._progress.begin(
            self.next_place, attempt=attempt, adapter_sha256=self.head.adapter_sha256
        )

    async def _release(self) -> None:
        aggregated: Aggregated | AggregatedGroups | None = None
        self._bisection = self._bisection_of_round()
        self.cohorts.halve(() if self._bisection is None else self._bisection.suspects)
        reopened, self._reopened = self._reopened, False
        if self._groups is not None:
            if not self.current.outcome:
                aggregated = await self._drive_groups(self._groups)
        elif self.attempt is not None:
            if not self.current.outcome:
                aggregated = await self._drive(self.attempt)
        elif not reopened and self._lost is None:
            newest = self._context.store.aggregations.newest_attempt(
                self.row.run_id, *self.next_place
            )
            self._begin(newest)
        if aggregated is None and not self.current.outcome:
            aggregated = await self._new_attempts()
        if aggregated is None:
            self._skip()
        else:
            await self._close(aggregated)

    async def _new_attempts(self) -> Aggregated | AggregatedGroups | None:
        """Open attempts until one yields a sum, or the release is over without."""
        tasks_left = 1 + self.plan.charged_releases - self.plan.releases
        number = self.current.attempt
        ready = None if number or not self.carries_over else self.cohorts.carried_over()
        self.carries_over = True
        while tasks_left and self._affordable():
            number += 1
            self.current.attempt = number
            self.attempt = None
            if ready is None:
                tasks_left -= 1
                ready = await self.cohorts.gather(number)
                if ready is None:
                    break
            aggregated: Aggregated | AggregatedGroups | None
            task = self.cohorts.task
            if self._is_parted and task is not None:
                waiting = self.cohorts.by_group(ready)
                self._groups = OpenGroups(number=number, task=task, waiting=waiting)
                aggregated = await self._drive_groups(self._groups)
            else:
                attempt = await self._attempts.open(
                    number, ready, adapter_sha256=self.head.adapter_sha256, task=task
                )
                aggregated = await self._drive(attempt)
            if aggregated is not None or self.current.outcome:
                return aggregated
            ready = None
        return None

    def _affordable(self) -> bool:
        """Whether this release may be charged once more: ε is stated for so many and no more."""
        charged = self._context.store.rounds.charged(self.row.run_id)
        left = self.plan.releases + 1 - self._chain.next_position
        if self.next_place.step == 0:
            # Figures go up with a round's first step, and ε is stated for so many of those.
            rounds_left = self.plan.rounds.count + 1 - self.next_place.round
            if charged.first_steps + rounds_left > self.plan.first_steps:
                return False
        return charged.releases + left <= self.plan.charged_releases

    async def _drive(self, attempt: Attempt) -> Aggregated | None:
        """Drive an attempt to its end; None when it failed."""
        self._adopt(attempt)
        try:
            aggregated = await self._attempts.drive(attempt)
        except (TooFewSilosError, QuarantinedSumError, SecAggError, UpdateError) as error:
            self._progress.leave()
            self._attempts.note_failure(attempt.identity, attempt.phase, error)
            if attempt.may_retry:
                self._attempts.end(attempt.identity, AggregationOutcome.ABORTED, attempt)
                self.cohorts.note_rejected(attempt.rejected_pairs)
                self._aborted_bytes += attempt.received_bytes
                self._leave_attempt()
            elif isinstance(error, QuarantinedSumError):
                self.current.outcome = "quarantined"
                self.current.survivors = attempt.survivors
            else:
                self.current.outcome = "skipped"
            return None
        self.current.survivors = attempt.survivors
        return aggregated

    async def _drive_groups(self, groups: OpenGroups) -> AggregatedGroups | None:
        """Drive the groups of an attempt in turn; None when too few of them yield sums.

        Of halves none is used, so each is driven, and there is never a result.
        """
        bisected = self._bisection is not None
        least, figures = 0 if bisected else self.plan.least_groups, self.current
        self.cohorts.training = None
        while (groups.open is not None or groups.waiting) and groups.can_reach(least):
            if groups.open is None:
                part, members = next(iter(groups.waiting.items()))
                # First: a group whose opening fails is left out, its identity may be used up.
                del groups.waiting[part]
                groups.open = self.attempt = await self._attempts.open(
                    groups.number,
                    members,
                    adapter_sha256=self.head.adapter_sha256,
                    task=groups.task,
                    part=part,
                )
                figures.cohort = tuple(sorted({*figures.cohort, *members}))
            await self._drive_group(groups, groups.open)
            groups.open = None
        if len(groups.summed) >= least and not bisected:
            try:
                aggregated = await self._attempts.combine([each.found for each in groups.summed])
            except UpdateError as error:
                self._attempts.note_failure(
                    groups.summed[-1].attempt.identity, Phase.AGGREGATE, error, parted=True
                )
            else:
                silos = {silo for each in groups.summed for silo in each.attempt.survivors}
                figures.survivors = tuple(sorted(silos))
                return aggregated
        if groups.may_retry:
            self._groups = self.attempt = None
            figures.cohort = figures.halves = ()
        elif bisected:
            figures.outcome = BISECTED
            silos = {silo for half in figures.halves for silo in half.survivors}
            figures.survivors = tuple(sorted(silos))
        else:
            figures.outcome = "quarantined" if groups.quarantined else "skipped"
        return None

    async def _drive_group(self, groups: OpenGroups, attempt: Attempt) -> None:
        """Drive one group to its sum, or leave it out."""
        try:
            found = await self._attempts.drive_group(attempt)
        except (TooFewSilosError, QuarantinedSumError, SecAggError) as error:
            self._progress.leave()
            self._attempts.note_failure(attempt.identity, attempt.phase, error, parted=True)
            gross = isinstance(error, QuarantinedSumError)
            self._judge(attempt, HalfVerdict.GROSS if gross else HalfVerdict.LOST)
            retry = attempt.may_retry
            outcome = AggregationOutcome.ABORTED if retry else AggregationOutcome.SKIPPED
            self._attempts.end(attempt.identity, outcome, attempt)
            if retry:
                self.cohorts.note_rejected(attempt.rejected_pairs)
            groups.signed |= not retry
            groups.quarantined |= gross
            self._aborted_bytes += attempt.received_bytes
            self._leave_attempt()
            return
        self._judge(attempt, HalfVerdict.POSSIBLE)
        groups.summed.append(Summed(attempt, found))

    def _judge(self, attempt: Attempt, verdict: HalfVerdict) -> None:
        """Note what became of a half, if it is one; after a fault of the storage once more."""
        if self._bisection is None:
            return
        survivors = () if attempt.may_retry else attempt.survivors
        suspects = tuple(s for s in survivors if s in self._bisection.suspects)
        part = attempt.identity.part
        half = HalfSum(part=part, verdict=verdict, survivors=survivors, suspects=suspects)
        before = (known for known in self.current.halves if known.part != part)
        self.current.halves = (*before, half)

    def _give_up_groups(self, row: AggregationRow) -> None:
        """End an attempt of groups that a restart found open: the other groups' sums are lost."""
        identity = row.identity
        error = LostAttemptError("the coordinator restarted between the groups of a release")
        phase = STEPS[min(row.phases_closed, len(STEPS) - 1)]
        self._attempts.note_failure(identity, phase, error, parted=True)
        place = (identity.round, identity.step, identity.attempt)
        if any(
            other.survivors_declared
            for other in self._context.store.aggregations.list(identity.run_id)
            if (other.identity.round, other.identity.step, other.identity.attempt) == place
        ):
            self.current.outcome = "skipped"
        skipped = row.survivors_declared
        self._attempts.end(
            identity, AggregationOutcome.SKIPPED if skipped else AggregationOutcome.ABORTED
        )

    def _adopt(self, attempt: Attempt) -> None:
        self.current.cohort = tuple(sorted(attempt.cohort))
        self.current.attempt = attempt.identity.attempt
        self.cohorts.training = None
        self.attempt = attempt

    def _leave_attempt(self) -> None:
        """What is left to do once the end of an attempt is durable."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._attempts.clear(attempt)
        show_epsilon(self.plan, self.row.run_id, self._context)

    # Closing a release ----------------------------------------------------------------------------

    async def _close(self, result: Aggregated | AggregatedGroups) -> None:
        blobs = self._context.blobs
        adapter_sha256 = await asyncio.to_thread(blobs.put, result.adapter)
        if isinstance(result, AggregatedGroups):
            over, summed = None, [each.attempt for each in self._summed()]
            sums = result.sums
        else:
            over, summed = self.active_attempt().identity, [self.active_attempt()]
            sums = (result.sum_bytes,)
        result.note_in(self.current)
        parts = []
        for attempt, content in zip(summed, sums, strict=True):
            parts.append(
                RecordPart(
                    part=attempt.identity.part,
                    descriptor_sha256=attempt.descriptor.descriptor.sha256,
                    sum_sha256=await asyncio.to_thread(blobs.put, content),
                    survivors=attempt.survivors,
                )
            )
        record = self._chain.link(
            kind="aggregated", adapter_sha256=adapter_sha256, parts=tuple(parts)
        )
        self._finish(record, over, AggregationOutcome.RELEASED)

    def _summed(self) -> tuple[Summed, ...]:
        """The groups of this release whose sums are there."""
        return () if self._groups is None else tuple(self._groups.summed)

    @property
    def _is_parted(self) -> bool:
        """Whether the open release has several sums."""
        return self.plan.groups > 1 or self._bisection is not None

    def _bisection_of_round(self) -> BisectionRow | None:
        """What this round is bisected for; the request that waits if nothing of it is open."""
        bisections, number = self._context.store.bisections, self.next_place.round
        known = bisections.of_round(self.row.run_id, number)
        if known is not None or self.attempt is not None or self._lost is not None:
            return known
        if self.cohorts.chosen(number):
            # Its tasks can invite nobody else, and a suspect must be in the round.
            return None
        return bisections.begin(self.row.run_id, number)

    def _restored_round(self) -> int | None:
        """The round that the next release goes back to; None where it is a release."""
        if self.next_place.step:
            return self.head.restored_round
        if self.attempt is not None or self._lost is not None:
            return None
        if self._context.store.bisections.of_round(self.row.run_id, self.next_place.round):
            return None
        asked = self._context.store.rollbacks.waiting(self.row.run_id)
        return None if asked is None else asked.to_round

    def _roll_back(self, to_round: int) -> None:
        """Close a release with the adapter that an earlier round ended with."""
        self._reopened = False
        self._begin(
            self._context.store.aggregations.newest_attempt(self.row.run_id, *self.next_place)
        )
        self.current.restored_round = to_round
        adapter_sha256 = self._chain.ending(to_round).adapter_sha256
        record = self._chain.link(
            kind="rollback", adapter_sha256=adapter_sha256, restored_round=to_round
        )
        self._finish(record, None, AggregationOutcome.SKIPPED)

    def _skip(self) -> None:
        over = self._lost if self.attempt is None else self.attempt.identity
        if self._groups is not None:
            over = None
        record = self._chain.link(kind="skipped", adapter_sha256=self.head.adapter_sha256)
        self._finish(record, over, AggregationOutcome.SKIPPED)

    def _finish(
        self, record: AdapterRecord, over: AggregationId | None, outcome: AggregationOutcome
    ) -> None:
        """Close the release in one transaction; what is in memory follows."""
        store, figures = self._context.store, self.current
        if self._groups is None:
            received = 0 if self.attempt is None else self.attempt.received_bytes
        else:
            received = sum(each.attempt.received_bytes for each in self._summed())
        closed = replace(
            figures,
            outcome=BISECTED if self._bisection else figures.outcome or record.kind,
            phase=Phase.FINISHED,
            adapter_sha256=record.adapter_sha256,
            upload_bytes=self._aborted_bytes + received,
        )
        back = closed.restored_round
        restored = {} if back is None else {"restored_round": back}
        with store.transaction():
            if over is not None:
                self._attempts.end(over, outcome, self.attempt)
            for each in self._summed():
                self._attempts.end(each.attempt.identity, outcome, each.attempt)
            store.records.append(record)
            if record.kind == "rollback" and record.step == 0:
                store.rollbacks.done(self.row.run_id, record.round)
            store.rounds.finish(self._progress.at, closed.outcome, closed.to_json())
            # Inside: a release without its line in the audit log is not closed.
            self._context.audit.append(
                AuditEvent.ROUND_FINISHED,
                run=self.row.run_id,
                round=closed.round,
                step=closed.step,
                outcome=closed.outcome,
                adapter=record.adapter_sha256.hex(),
                survivors=list(closed.survivors),
                **restored,
                **self._told_of_halves(closed),
            )
            if self._rests_after(closed):
                # What follows is the admin's to say: another bisection, or a roster without a silo;
                # or, after vetoes, an adapter to go back to.
                store.runs.set_state(
                    self.row.run_id, RunState.PAUSING, at_unix_s=self._context.clock()
                )
                self._context.audit.append(AuditEvent.RUN_PAUSING, run=self.row.run_id)
        self._chain.append(record)
        self._progress.close(closed)
        self._closed()

    @staticmethod
    def _told_of_halves(closed: RoundFigures) -> dict[str, list[str]]:
        """Whose sum was gross, for the audit log."""
        gross = [half for half in closed.halves if half.verdict is HalfVerdict.GROSS]
        return {"gross": [s for half in gross for s in half.survivors]} if gross else {}

    def _closed(self) -> None:
        """Show what the store says: the release is over, and with its last one the round."""
        figures = self.current
        self._lost = self.cohorts.training = self._bisection = None
        self.pausing |= self._rests_after(figures)
        self._context.metrics.observe_step(figures)
        if figures.outcome != "aggregated":
            self._optimiser.forget()
        if self.plan.is_last_step(figures.step):
            kinds = {record.kind for record in self._chain.of_round(figures.round)}
            # A rollback is of one kind throughout.
            ended = "aggregated" if "aggregated" in kinds else figures.outcome
            spent = (sum(f.timings_s.values()) for f in self.finished if f.round == figures.round)
            self._context.metrics.observe_round(ended, sum(spent, sum(figures.timings_s.values())))
        self.finished.append(figures)
        self._context.metrics.update_norm_ratio.set(norm_ratio(self.finished, self.plan))
        log.info("round_finished", round=figures.round, step=figures.step, outcome=figures.outcome)
        if self._groups is not None:
            for each in self._summed():
                self._attempts.clear(each.attempt)
            self._groups = self.attempt = None
        self._leave_attempt()
        self._context.changed.notify()

    def _rests_after(self, closed: RoundFigures) -> bool:
        return resting.rests_after(closed, self.plan, self._context.store, self.row.run_id)

    def _set_run(self, state: RunState, event: AuditEvent, *, error: str = "") -> None:
        store, run_id = self._context.store, self.row.run_id
        with store.transaction():
            store.runs.set_state(run_id, state, error, at_unix_s=self._context.clock())
            self._context.audit.append(event, run=run_id)
        self._context.changed.notify()
