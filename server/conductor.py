"""Starts, resumes and stops runs, and answers what each silo is to do now.

Invariants:

1. One run is active at a time; a second start is refused with the name of the first.
2. A submit token starts a run once: the same token answers with the same run.
3. After a restart every run that was active goes on from its last signed record, and in the attempt
   that was open, before the first silo is answered.

Covered: start, resume, abort, instructions, status. Not covered: several runs at once, pausing.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator

import structlog

from chorale.v1 import admin_pb2, round_pb2
from dp.errors import PrivacyError
from federation.adapter import decode_adapter
from federation.errors import FederationError, PlanError
from federation.forecast import forecast_plan, shared_dimension
from federation.layout import Layout
from federation.plan import Plan
from federation.record import AdapterRecord
from secagg.descriptor import AggregationId
from secagg.errors import SecAggError
from secagg.messages import KeyBundle
from secagg.roster import SignedRoster
from server.accumulator import clear_scratch
from server.attempts import end_unfinished
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import (
    CoordinatorError,
    LedgerBehindError,
    LedgerForkedError,
    RunError,
    UnknownRunError,
)
from server.figures import RoundFigures
from server.instructions import Instructions
from server.ledger_heads import require_newer_head
from server.round import Attempt
from server.run import RunDriver
from server.status import watch_response
from server.storage_faults import over_storage_faults
from server.store.aggregations import AggregationRow
from server.store.runs import RunState

__all__ = ["Conductor"]

log = structlog.get_logger(__name__)

MAX_ADAPTER_BYTES = 1 << 30
STATUS_EVERY_S = 2.0
FINISHED_PER_STATUS = 64
"""With a cohort and survivors of 200 silos, all in 4 MiB."""


class Conductor:
    """The runs of one coordinator."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.driver: RunDriver | None = None
        self._task: asyncio.Task[None] | None = None
        self.instructions = Instructions(context)
        self._rolled_back: set[tuple[AggregationId, str]] = set()
        """Whose old ledger was noted in which aggregation: a silo that asks again adds nothing."""

    # Lifecycle ------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with the run that was active when the coordinator stopped.

        Without one the newest finished run is shown again, so that a silo which was away at its
        end still adopts the last adapter.
        """
        rows = self.context.store.runs.list()
        for row in rows:
            if row.state is RunState.RUNNING:
                self.context.audit.append(AuditEvent.RUN_RESUMED, run=row.run_id)
                driver = self._load(row.run_id)
                self._reopen(driver)
                self._launch(driver)
                return
        self._clear(keep=None)
        finished = [row for row in rows if row.state is RunState.FINISHED]
        if finished:
            try:
                self.driver = self._load(finished[-1].run_id)
            except (CoordinatorError, FederationError) as error:
                # What is over must not keep the coordinator from starting.
                log.warning("finished_run_not_shown", reason=str(error))

    async def close(self) -> None:
        """Stop driving; the run stays active in the store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def start_run(self, plan_toml: bytes, adapter: bytes, submit_token: str) -> str:
        """Start a run; returns its id.

        Raises:
            FederationError: the plan or the adapter is refused, with the reason.
            RunError: another run is active, or there is no roster yet.
        """
        store = self.context.store
        known = store.runs.by_submit_token(submit_token)
        if known is not None:
            return known.run_id
        plan = Plan.parse(plan_toml)
        active = [row for row in store.runs.list() if row.state is RunState.RUNNING]
        if active:
            raise RunError(f"run {active[0].run_id} is active: wait for it, or abort it")
        roster = store.rosters.current()
        if roster is None:
            raise RunError("no roster is published: chorale roster propose, sign and publish")
        self._require_feasible(plan, adapter, roster)
        plan_sha256 = hashlib.sha256(plan_toml).digest()
        run_id = f"{plan.name}-{secrets.token_hex(4)}"
        record = AdapterRecord(
            run_id=run_id,
            round=0,
            parent_sha256=b"",
            adapter_sha256=self.context.blobs.put(adapter),
            plan_sha256=plan_sha256,
            base_model_sha256=bytes.fromhex(plan.model.base_sha256),
            descriptor_sha256=b"",
            sum_sha256=b"",
            survivors=(),
            kind="initial",
            record_parent_sha256=b"",
        ).sign(self.context.signing_key)
        # A run without its first record could not be resumed.
        with store.transaction():
            store.runs.create(
                run_id=run_id,
                name=plan.name,
                plan=plan_toml,
                plan_sha256=plan_sha256,
                submit_token=submit_token,
                state=RunState.RUNNING,
            )
            store.records.append(record)
        self.context.audit.append(
            AuditEvent.RUN_STARTED,
            run=run_id,
            plan=plan_sha256.hex(),
            adapter=record.adapter_sha256.hex(),
        )
        self._launch(self._load(run_id))
        return run_id

    @staticmethod
    def _require_feasible(plan: Plan, adapter: bytes, roster: SignedRoster) -> None:
        """Refuse what ``chorale run plan`` refuses: a start must not be a way around the gate."""
        members = roster.roster
        plan.require_cohort(len(members.entries), members.colluding)
        layout = Layout.from_tensors(decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES))
        expected = forecast_plan(
            plan,
            silos=len(members.entries),
            colluding=members.colluding,
            dimension=shared_dimension(plan, layout),
            adapter_dimension=layout.dimension,
        )
        if expected.refusals:
            raise PlanError(list(expected.refusals))

    async def abort_run(self, run_id: str) -> None:
        """Stop a run for good; its adapters stay."""
        driver = self.driver
        if driver is None or driver.row.run_id != run_id or self._task is None:
            raise UnknownRunError(f"no active run {run_id!r}")
        if self.context.store.runs.get(run_id).state is not RunState.RUNNING:
            raise RunError(f"run {run_id} is over: there is nothing to abort")
        await self.close()
        self.context.store.runs.set_state(run_id, RunState.ABORTED, "aborted by the admin")
        self.context.audit.append(AuditEvent.RUN_ABORTED, run=run_id)
        self.driver = None
        self._clear(keep=None)
        self.context.changed.notify()

    def _launch(self, driver: RunDriver) -> None:
        self.driver = driver
        self._task = asyncio.create_task(self._drive(driver))

    def _reopen(self, driver: RunDriver) -> None:
        """Let a run go on with the attempt that was open, and clear away all others."""
        unfinished = self.context.store.aggregations.unfinished()
        place = (driver.row.run_id, *driver.next_place)
        mine = [
            row
            for row in unfinished
            if (row.identity.run_id, row.identity.round, row.identity.step) == place
        ]
        keep = mine[-1] if mine else None
        self._clear(keep=keep)
        if keep is not None:
            driver.reopen(keep)

    def _clear(self, keep: AggregationRow | None) -> None:
        """End what nobody continues, and delete its secrets and files."""
        end_unfinished(self.context, keep=None if keep is None else keep.identity)
        if keep is None:
            clear_scratch(self.context.scratch, keep=None)

    def _load(self, run_id: str) -> RunDriver:
        store = self.context.store
        row = store.runs.get(run_id)
        roster = store.rosters.current()
        if roster is None:
            raise RunError("no roster is published")
        driver = RunDriver(row=row, plan=Plan.parse(row.plan), roster=roster, context=self.context)
        driver.finished = [
            RoundFigures.from_json(done.figures_json) for done in store.rounds.finished(run_id)
        ]
        return driver

    async def _drive(self, driver: RunDriver) -> None:
        run_id = driver.row.run_id
        try:
            await over_storage_faults(driver.drive, run_id=run_id, metrics=self.context.metrics)
        except (CoordinatorError, FederationError, PrivacyError, SecAggError) as error:
            # A stop with a known reason is one line; only defects get a traceback.
            log.error("run_stopped", run=run_id, reason=str(error))  # noqa: TRY400
            await self._stop(driver, str(error))
        except Exception:
            # The daemon must outlive a defect in one run, and the admin must see that it stopped.
            log.exception("run_crashed", run=run_id)
            await self._stop(driver, "internal error: see log")
        finally:
            self.context.changed.notify()

    async def _stop(self, driver: RunDriver, reason: str) -> None:
        """Show that a run stopped, and why; nothing of its attempt is kept."""
        run_id = driver.row.run_id
        driver.halt()

        async def note() -> None:
            self.context.store.runs.set_state(run_id, RunState.FAILED, reason)
            self.context.audit.append(AuditEvent.RUN_FAILED, run=run_id, reason=reason)

        await over_storage_faults(note, run_id=run_id, metrics=self.context.metrics)
        try:
            self._clear(keep=None)
        except (CoordinatorError, OSError) as error:
            # The next start clears it.
            log.warning("attempt_not_cleared", run=run_id, reason=str(error))

    # What a silo is told --------------------------------------------------------------------------

    def attempt(self) -> Attempt:
        """The aggregation that is open now."""
        return self._require_driver().active_attempt()

    def receive_bundle(self, identity: AggregationId, bundle: KeyBundle) -> None:
        """R0: take a bundle, unless its silo's ledger went back in time.

        Raises:
            LedgerBehindError: the ledger's head is behind the newest one that the silo signed.
            LedgerForkedError: it has that one's height and is another.
            RoundError: the message does not fit.
            SecAggError: the message fails a check.
        """
        attempt = self.attempt()
        # A late repeat for another attempt says nothing about the ledger.
        if identity == attempt.identity:
            try:
                roster = self._require_driver().roster.roster
                require_newer_head(self.context.store, roster, bundle)
            except (LedgerBehindError, LedgerForkedError) as error:
                self._note_rollback(identity, bundle.silo_id, str(error))
                raise
        attempt.receive_bundle(identity, bundle)

    def _note_rollback(self, identity: AggregationId, silo_id: str, reason: str) -> None:
        if (identity, silo_id) in self._rolled_back:
            return
        self._rolled_back.add((identity, silo_id))
        self.context.metrics.ledger_rollbacks.inc()
        self.context.audit.append(
            AuditEvent.LEDGER_ROLLED_BACK,
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            silo=silo_id,
            reason=reason,
        )

    def released(self, identity: AggregationId) -> bool:
        """Whether the sum of this aggregation is out, so that nothing more is needed for it."""
        rows = self.context.store.aggregations.released(identity.run_id, identity.round)
        return identity in {row.identity for row in rows}

    def require_run(self, run_id: str) -> RunDriver:
        """The active run, which must be this one."""
        driver = self._require_driver()
        if driver.row.run_id != run_id:
            raise UnknownRunError(f"the active run is {driver.row.run_id!r}")
        return driver

    def _require_driver(self) -> RunDriver:
        if self.driver is None:
            raise UnknownRunError("no run is active")
        return self.driver

    async def poll(self, silo_id: str, last_instruction_id: str, wait_s: float) -> bytes:
        """The instruction for this silo, as soon as it differs from the last one it saw.

        Returns:
            A serialised ``PollResponse``; only its id is set when nothing changed in ``wait_s``.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        while True:
            answer = self.instructions.current(self.driver, silo_id)
            if answer.instruction_id != last_instruction_id:
                return await self.instructions.serialised(answer)
            left = give_up_at - loop.time()
            if left <= 0:
                unchanged = round_pb2.PollResponse(instruction_id=answer.instruction_id)
                return unchanged.SerializeToString()
            await self.context.changed.wait(left)

    # What the admin sees --------------------------------------------------------------------------

    async def watch(self, run_id: str) -> AsyncIterator[admin_pb2.WatchRunResponse]:
        """A status at every change, and every few seconds; ends with the run.

        What finished before the stream began comes in several statuses, without a pause.
        """
        sent = 0
        while True:
            row = self.context.store.runs.get(run_id)
            driver = self.driver
            if driver is not None and driver.row.run_id == run_id:
                finished = driver.finished
            else:
                driver = None
                finished = [
                    RoundFigures.from_json(done.figures_json)
                    for done in self.context.store.rounds.finished(run_id)
                ]
            # The driver's list may grow while the caller holds this response.
            unsent = tuple(finished[sent : sent + FINISHED_PER_STATUS])
            sent += len(unsent)
            yield watch_response(row=row, driver=driver, finished=unsent, context=self.context)
            if sent < len(finished):
                continue
            if row.state is not RunState.RUNNING:
                return
            await self.context.changed.wait(STATUS_EVERY_S)
