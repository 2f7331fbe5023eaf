"""The attempts of one run: opened, continued after a restart, driven through R0 to R4, ended.

Ordered invariants:

1. The descriptor is built from the plan, the roster and the ready silos alone, and is in the store,
   signed, before any silo sees it.
2. A coordinator that restarts goes on with the attempt that was open, with the same descriptor and
   whatever its journal holds; each step that is left has a phase's time again, up to the end of
   the descriptor's last one. What cannot be continued is aborted, or skipped once survivors were
   declared.
3. An attempt ends once, in the same transaction as what follows from its end; its secrets are
   deleted in it and its files after it.

Covered: a coordinator that stops at any instant. Not covered: a scratch directory that is lost; the
attempt is then keyed anew, or its round is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from federation.chain.record import Place
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId, SignedDescriptor, sign_descriptor
from secagg.errors import SecAggError
from secagg.prg import Vector
from secagg.roster import SignedRoster
from server.attempt.accumulator import Accumulator, clear_scratch
from server.attempt.attempt import Attempt
from server.attempt.journal import StoreJournal, read_history
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import (
    LostAttemptError,
    QuarantinedSumError,
    StorageFullError,
    StoreError,
    TooFewSilosError,
    UploadError,
)
from server.figures import STEPS, Phase
from server.run.aggregation import (
    Aggregated,
    AggregatedGroups,
    GroupSum,
    aggregate,
    aggregate_groups,
    require_possible,
)
from server.run.descriptor import build_descriptor
from server.run.dropouts import Dropouts
from server.run.kept_cohort import KeptCohort
from server.run.optimiser import RunOptimiser
from server.run.progress import Progress
from server.store import Store
from server.store.aggregations import AggregationOutcome, AggregationRow
from server.store.runs import RunRow

__all__ = ["Attempts", "end_unfinished"]

log = get_logger(__name__)

AGGREGATE_S = 60
"""Shown as the deadline of the step that waits for no silo."""


class Attempts:
    """Opens, reopens, drives and ends the attempts of one run."""

    def __init__(
        self,
        *,
        row: RunRow,
        plan: Plan,
        roster: SignedRoster,
        context: RunContext,
        progress: Progress,
        optimiser: RunOptimiser,
    ) -> None:
        self._row = row
        self._plan = plan
        self._roster = roster
        self._context = context
        self._progress = progress
        self._optimiser = optimiser
        self._dropouts = Dropouts(row.run_id, plan, context)
        self._kept = KeptCohort(row.run_id, plan, context.store)

    # Opening --------------------------------------------------------------------------------------

    async def open(
        self,
        number: int,
        ready: dict[str, tuple[str, ...]],
        *,
        adapter_sha256: bytes,
        task: RoundTask | None = None,
        part: int = 0,
    ) -> Attempt:
        """Open R0 for the silos that are ready; in suite v2 for the task that invited them.

        With groups they are those of one group, whose number is the part.
        """
        context, figures = self._context, self._progress.figures
        adapter = await asyncio.to_thread(context.blobs.get, adapter_sha256)
        descriptor = sign_descriptor(
            build_descriptor(
                identity=AggregationId(
                    run_id=self._row.run_id,
                    round=figures.round,
                    step=figures.step,
                    part=part,
                    attempt=number,
                ),
                plan=self._plan,
                plan_sha256=self._row.plan_sha256,
                roster=self._roster,
                ready=ready,
                adapter=adapter,
                adapter_sha256=adapter_sha256,
                now_unix_s=int(context.clock()),
                task=task,
            ),
            context.signing_key,
        )
        attempt = self._attempt(
            descriptor,
            self._roster,
            ready,
            Accumulator(self._directory(descriptor), length=descriptor.descriptor.words),
        )
        context.store.aggregations.open(descriptor, ready)
        return attempt

    def reopen(self, row: AggregationRow) -> Attempt:
        """Continue an open attempt from what its journal holds.

        Raises:
            LostAttemptError: it cannot be continued; the reason says why.
        """
        context, identity = self._context, row.identity
        roster = context.store.rosters.get(row.descriptor.descriptor.roster_sha256)
        if roster is None:
            raise LostAttemptError(f"the roster of {identity} is not in the store")
        if not row.families or len(row.members) != row.phases_closed:
            raise LostAttemptError(f"{identity} was opened by an earlier version")
        clear_scratch(context.scratch, keep=self._directory(row.descriptor))
        try:
            attempt = self._attempt(
                row.descriptor,
                roster,
                row.families,
                Accumulator.reopen(
                    self._directory(row.descriptor),
                    length=row.descriptor.descriptor.words,
                    generation=len(row.folded),
                ),
            )
            attempt.replay(read_history(context.store, row))
        except (SecAggError, UploadError, StorageFullError) as error:
            # A disk without room for files that are gone must not keep the coordinator down.
            raise LostAttemptError(f"{identity} cannot be continued: {error}") from error
        context.audit.append(
            AuditEvent.ATTEMPT_RESUMED,
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            phase=attempt.phase.value,
        )
        context.metrics.attempts_resumed.inc()
        log.info(
            "attempt_resumed",
            phase=attempt.phase.value,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            waiting_for=len(attempt.waiting_for),
        )
        return attempt

    def _attempt(
        self,
        descriptor: SignedDescriptor,
        roster: SignedRoster,
        families: Mapping[str, tuple[str, ...]],
        accumulator: Accumulator,
    ) -> Attempt:
        return Attempt(
            descriptor=descriptor,
            roster=roster,
            families=families,
            accumulator=accumulator,
            journal=StoreJournal(
                self._context.store, descriptor.descriptor.identity, descriptor.descriptor.sha256
            ),
        )

    def _directory(self, descriptor: SignedDescriptor) -> Path:
        identity = descriptor.descriptor.identity
        name = ".".join(
            str(part) for part in (identity.round, identity.step, identity.part, identity.attempt)
        )
        return self._context.scratch / identity.run_id / name

    # Driving --------------------------------------------------------------------------------------

    async def drive(self, attempt: Attempt) -> Aggregated:
        """Relay what is left of R0 to R4 and turn the sum into the next adapter.

        Raises:
            TooFewSilosError: a phase lost too many.
            SecAggError: the masks cannot be removed.
            QuarantinedSumError: honest silos cannot have made this sum.
            UpdateError: the update is not finite.
        """
        context, descriptor = self._context, attempt.descriptor.descriptor
        total = await self._unmasked(attempt)
        previous = await asyncio.to_thread(context.blobs.get, descriptor.adapter_sha256)
        place = Place(attempt.identity.round, attempt.identity.step)
        optimiser = await asyncio.to_thread(
            self._optimiser.ready_for, place, dimension=descriptor.dimension
        )
        aggregated = await asyncio.to_thread(
            aggregate,
            plan=self._plan,
            previous=previous,
            total=total,
            descriptor=descriptor,
            survivors=attempt.survivors,
            optimiser=optimiser,
        )
        self._progress.leave()
        return aggregated

    async def drive_group(self, attempt: Attempt) -> GroupSum:
        """Relay what is left of R0 to R4 of one group; its sum is one that can be.

        Raises:
            TooFewSilosError: a phase lost too many.
            SecAggError: the masks cannot be removed.
            QuarantinedSumError: honest silos cannot have made this sum.
        """
        total = await self._unmasked(attempt)
        found = await asyncio.to_thread(
            require_possible, total, attempt.descriptor.descriptor, attempt.survivors
        )
        self._progress.leave()
        return found

    async def combine(self, sums: Sequence[GroupSum]) -> AggregatedGroups:
        """Turn the sums of a release's groups into the next adapter.

        Raises:
            UpdateError: the update is not finite.
        """
        context, descriptor = self._context, sums[0].descriptor
        previous = await asyncio.to_thread(context.blobs.get, descriptor.adapter_sha256)
        optimiser = await asyncio.to_thread(
            self._optimiser.ready_for,
            Place(descriptor.identity.round, descriptor.identity.step),
            dimension=descriptor.dimension,
        )
        return await asyncio.to_thread(
            aggregate_groups, plan=self._plan, previous=previous, sums=sums, optimiser=optimiser
        )

    async def _unmasked(self, attempt: Attempt) -> Vector:
        await self._fold_whole(attempt)
        for step in STEPS[STEPS.index(attempt.phase) :]:
            await self._step(attempt, step)
        now = self._context.clock()
        self._progress.enter(Phase.AGGREGATE, now + AGGREGATE_S, attempt.identity.attempt)
        total = await asyncio.to_thread(attempt.unmask)
        self._note_at_fault(attempt)
        return total

    def _note_at_fault(self, attempt: Attempt) -> None:
        """Say whom a check caught whose failure the protocol makes up for; an admin decides."""
        caught, identity = attempt.at_fault, attempt.identity
        if not caught:
            return
        self._context.audit.append(
            AuditEvent.SILOS_AT_FAULT,
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            part=identity.part,
            attempt=identity.attempt,
            **{check: ", ".join(silos) for check, silos in caught.items()},
        )
        log.warning(
            "silos_at_fault",
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            names=[f"{check}: {', '.join(silos)}" for check, silos in caught.items()],
        )

    async def _fold_whole(self, attempt: Attempt) -> None:
        """Fold what arrived in full before a restart: its silo may never come back."""
        whole = dict(sorted(attempt.whole_uploads().items()))
        for upload in whole.values():
            # Before anybody can ask for its offset, which would cut it.
            upload.queued = True
        for silo_id, upload in whole.items():
            try:
                async with attempt.lock:
                    await asyncio.to_thread(attempt.fold_upload, attempt.identity, silo_id)
            except UploadError as error:
                log.warning("upload_discarded", silo=silo_id, reason=error)
            finally:
                upload.queued = False

    async def _step(self, attempt: Attempt, step: Phase) -> None:
        clock, phase_s = self._context.clock, self._plan.rounds.phase_deadline_s
        entered = clock()
        deadline = Progress.deadline(
            entered, phase_s, attempt.descriptor.descriptor.deadlines_unix_s
        )
        self._progress.enter(step, deadline, attempt.identity.attempt)
        barred = self._context.liveness.barred
        # Who was suspended or revoked meanwhile can answer no more.
        while clock() < deadline and not all(barred(s) for s in attempt.waiting_for):
            await self._context.changed.wait(min(1.0, deadline - clock()))
        async with attempt.lock:
            earlier = {s: phase for s, phase in attempt.lost.items() if phase is not step}
            # Of a phase that a restart left less than half its time nobody is blamed. Seconds go
            # to phases that others kept open to their ends.
            fair = deadline - entered >= phase_s / 2
            late = attempt.waiting_for if fair else ()
            attempt.lost = earlier | dict.fromkeys(late, step)
            if step is Phase.ADVERTISE_KEYS:
                self._kept.require(attempt.bundles)
            if step is STEPS[-1]:
                attempt.stop_collecting()
            else:
                attempt.close_phase()
        self._progress.leave()
        self._context.changed.notify()

    # Ending ---------------------------------------------------------------------------------------

    def note_failure(
        self, identity: AggregationId, phase: Phase, error: Exception, *, parted: bool = False
    ) -> None:
        """Count, log and audit why an attempt, or one of its several parts, yields no sum."""
        match error:
            case TooFewSilosError():
                reason = f"too_few_{phase.value}"
            case QuarantinedSumError():
                reason = "quarantined"
            case _:
                reason = f"refused_{phase.value}"
        self._context.metrics.aborts.labels(reason=reason).inc()
        self._context.audit.append(
            AuditEvent.ATTEMPT_ABORTED,
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            reason=str(error),
            **({"part": identity.part} if parted else {}),
        )
        log.warning(
            "attempt_aborted",
            round=identity.round,
            step=identity.step,
            phase=phase.value,
            reason=error,
        )

    def end(
        self, identity: AggregationId, outcome: AggregationOutcome, attempt: Attempt | None = None
    ) -> None:
        """Note in the store how an attempt ended and whom it lost, and delete its secrets there.

        ``attempt`` is None if a restart could not continue it, so that nobody was waited for.
        """
        with self._context.store.transaction():
            if not _end(self._context.store, identity, outcome) or attempt is None:
                return
            place = Place(identity.round, identity.step)
            self._dropouts.count(place, identity.attempt, self._lost(attempt))
            if outcome is AggregationOutcome.RELEASED and self._plan.is_last_step(identity.step):
                stayed = frozenset(attempt.survivors) - frozenset(attempt.dropped)
                self._dropouts.took_part(identity.round, stayed)

    def _lost(self, attempt: Attempt) -> dict[str, Phase]:
        """Whom phases waited for in vain; not who may not answer, which a restart does not know."""
        barred = self._context.liveness.barred
        return {silo: phase for silo, phase in attempt.lost.items() if not barred(silo)}

    def clear(self, attempt: Attempt) -> None:
        """Count what an ended attempt lost, and delete its files."""
        for phase in attempt.dropped.values():
            self._context.metrics.dropouts.labels(stage=phase.value).inc()
        self._dropouts.show(self._lost(attempt))
        self._context.metrics.upload_bytes.inc(attempt.received_bytes)
        try:
            attempt.close()
        except UploadError as error:
            # The next start deletes them.
            log.warning("scratch_not_deleted", reason=error)
        _scrub(self._context.store)


def end_unfinished(context: RunContext, *, keep: AggregationRow | None = None) -> None:
    """End every attempt but the one that goes on, and delete its secrets and files.

    It is skipped where survivors had been declared, aborted otherwise. Files beside those of the
    one that goes on are deleted when that is reopened.
    """
    store = context.store
    for row in store.aggregations.unfinished():
        if keep is not None and row.identity == keep.identity:
            continue
        _end(
            store,
            row.identity,
            AggregationOutcome.SKIPPED if row.survivors_declared else AggregationOutcome.ABORTED,
        )
    # Also what an earlier process deleted and had no time to overwrite.
    _scrub(store)
    if keep is None:
        clear_scratch(context.scratch, keep=None)


def _scrub(store: Store) -> None:
    """Overwrite deleted secrets; what a busy database keeps goes at the next end or start.

    Until then they are in the write-ahead log: the warning says so.
    """
    try:
        store.scrub()
    except StoreError as error:
        log.warning("secrets_not_scrubbed", reason=error)


def _end(store: Store, identity: AggregationId, outcome: AggregationOutcome) -> bool:
    """End an aggregation; whether it ended now, and not before."""
    with store.transaction():
        ended = store.aggregations.end(identity, outcome)
        store.messages.forget_secrets(identity)
        return ended
