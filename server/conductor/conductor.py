"""Drives one run at a time, the next when one is over, and answers what each silo is to do now.

Invariants:

1. One run is driven; the others wait in the queue (``server/conductor/queue.py``) and begin by
   themselves when the one before is finished, failed, aborted or paused.
2. A run is paused between two releases. Before survivors were declared its open attempt is aborted
   for that, what was charged stays charged, and its number is never used again; afterwards the
   attempt is first finished or skipped (``pausing``).
3. After a restart the run that was active goes on from its last signed record, and in the attempt
   that was open, before the first silo is answered; queue and paused runs are as before. Of an
   attempt that nobody drives any more, secrets and files are deleted.
4. A change of an admin that cannot be noted has not happened: the run that was driven goes on. One
   that was noted has happened, even if the answer of the database or the admin's call was lost.

Covered: start, queue, pause, resume, abort, instructions, defects. Not covered: two runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from chorale.v1 import admin_pb2, round_pb2
from dp.errors import PrivacyError
from federation.errors import FederationError
from federation.plan.read import read_plan
from federation.version import NEWEST_PROTOCOL
from federation.wire import preflight_to_proto
from ops.logs.logger import get_logger
from secagg import hybrid
from secagg.descriptor import AggregationId
from secagg.errors import SecAggError
from secagg.messages import KeyBundle
from server.attempt.attempt import Attempt
from server.audit import AuditEvent
from server.conductor.instructions import Handover, Instructions
from server.conductor.negotiation import negotiated
from server.conductor.preflight import Preflights
from server.conductor.queue import RunQueue, places_behind
from server.conductor.status import watch_run
from server.conductor.storage_faults import STORAGE_FAULTS, over_defects, over_storage_faults
from server.context import RunContext
from server.errors import CoordinatorError, RunError, UnknownRunError
from server.figures import RoundFigures
from server.members.ledger_heads import LedgerRollbacks
from server.run.attempts import end_unfinished
from server.run.driver import RunDriver
from server.states import ACTIVE, OVER, RunState
from server.store.runs import RunRow

__all__ = ["Conductor"]

log = get_logger(__name__)


class Conductor:
    """The runs of one coordinator."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.driver: RunDriver | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue = RunQueue(context)
        self._changing = asyncio.Lock()
        """Held by whoever changes which run is driven."""
        self.instructions = Instructions(context)
        self._handover = Handover(context, self.instructions)
        self._rollbacks = LedgerRollbacks(context)
        self.preflights = Preflights(context)

    # Lifecycle ------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with the run that was active when the coordinator stopped, then with the queue.

        Without one the newest finished run is shown again, so that a silo which was away at its
        end still adopts the last adapter.
        """
        active = self.context.store.runs.active()
        if active is not None:
            self.context.audit.append(AuditEvent.RUN_RESUMED, run=active.run_id)
            with self._queue.turning_away(active):
                driver = self._load(active.run_id)
                self._reopen(driver)
                self._launch(driver)
                return
        end_unfinished(self.context)
        rows = self.context.store.runs.list()
        finished = [row for row in rows if row.state is RunState.FINISHED]
        if finished:
            try:
                self.driver = self._load(finished[-1].run_id)
            except (CoordinatorError, FederationError) as error:
                # What is over must not keep the coordinator from starting.
                log.warning("finished_run_not_shown", reason=error)
        self._wake()

    async def close(self) -> None:
        """Stop driving; the run stays active in the store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def start_run(
        self,
        plan_toml: bytes,
        adapter: bytes,
        submit_token: str,
        *,
        suite: int = hybrid.SUITE,
        admin: str = "",
    ) -> str:
        """Start a run, or queue it behind those before it; returns its id.

        Raises:
            FederationError: the plan or the adapter is refused, with the reason.
            RunError: there is no roster yet, or the token names another request.
            VersionMismatchError: a silo of the roster is known not to speak the suite.
        """
        async with self._change():
            # It stores the adapter, maybe over a network.
            submit, at_once = self._queue.submit, self._idle
            submitting = asyncio.create_task(
                asyncio.to_thread(
                    submit,
                    plan_toml,
                    adapter,
                    submit_token,
                    suite=suite,
                    admin=admin,
                    at_once=at_once,
                )
            )
            try:
                row, new = await asyncio.shield(submitting)
            except asyncio.CancelledError:
                # The thread commits, whether or not the caller still waits.
                await asyncio.wait({submitting})
                raise
            if new and row.state is RunState.RUNNING:
                self._launch(self._load(row.run_id))
            return row.run_id

    async def pause_run(self, run_id: str, *, admin: str = "") -> RunState:
        """Let a run rest, and the next one begin; paused or, for a moment, pausing.

        What silos may have agreed on is first finished or skipped: it is not asked for twice.
        """
        async with self._change():
            row = self._not_over(run_id, "there is nothing to pause")
            if row.state is RunState.QUEUED:
                self._queue.pause(row, admin=admin)
            elif row.state in ACTIVE:
                driver = self.require_run(run_id)
                if driver.must_finish:
                    if row.state is RunState.RUNNING:
                        self._note(run_id, RunState.PAUSING, AuditEvent.RUN_PAUSING, admin)
                    driver.pausing = True
                else:
                    await self._give_up(driver, RunState.PAUSED, AuditEvent.RUN_PAUSED, admin)
                    driver.halt()
            return self.context.store.runs.get(run_id).state

    async def resume_run(self, run_id: str, *, admin: str = "") -> str:
        """Put a paused run before all that wait; returns the run that it waits behind.

        Raises:
            FederationError: it does not fit the roster of now; it stays paused.
            RunError: it is over.
        """
        async with self._change():
            row = self._not_over(run_id, "start a new one from its adapter")
            if row.state in ACTIVE:
                if row.state is RunState.PAUSING:
                    self._note(run_id, RunState.RUNNING, AuditEvent.RUN_UNPAUSED, admin)
                self.require_run(run_id).pausing = False
            elif row.state is RunState.PAUSED:
                await asyncio.to_thread(self._queue.require_feasible_now, row)
                self._queue.unpause(row, admin=admin)
            return places_behind(self.context.store).get(run_id, "")

    async def abort_run(self, run_id: str, *, admin: str = "") -> None:
        """Stop a run for good; its adapters stay."""
        async with self._change():
            row = self._not_over(run_id, "there is nothing to abort")
            if row.state in ACTIVE:
                driver = self.require_run(run_id)
                await self._give_up(driver, RunState.ABORTED, AuditEvent.RUN_ABORTED, admin)
                self.driver = None
            else:
                self._queue.abort(row, admin=admin)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Change which run is driven; whatever became of it, what is to be driven then is."""
        async with self._changing:
            try:
                yield
            finally:
                self._wake()
                self.context.changed.notify()

    def _not_over(self, run_id: str, hint: str) -> RunRow:
        row = self.context.store.runs.get(run_id)
        if row.state in OVER:
            raise RunError(f"run {run_id} is over: {hint}")
        return row

    async def _give_up(
        self, driver: RunDriver, state: RunState, event: AuditEvent, admin: str
    ) -> None:
        """Stop driving a run, and end the attempt that it had open."""
        try:
            await self.close()
            # An upload that is being folded still writes to the files that go now.
            async with driver.attempt.lock if driver.attempt else nullcontext():
                self._note(driver.row.run_id, state, event, admin)
        except BaseException:
            # If it could not be noted, it is not so: the run goes on where it was.
            self._launch(driver)
            raise
        self._clear_if_possible(driver.row.run_id)

    def _note(self, run_id: str, state: RunState, event: AuditEvent, admin: str) -> None:
        context = self.context
        error = "aborted by the admin" if state is RunState.ABORTED else ""
        with context.store.transaction():
            context.store.runs.set_state(run_id, state, error, at_unix_s=context.clock())
            context.audit.append(event, run=run_id, admin=admin)

    @property
    def driving(self) -> bool:
        """Whether somebody drives a run, or sees to which is next."""
        return not self._idle

    @property
    def _idle(self) -> bool:
        return self._task is None or self._task.done()

    def _launch(self, driver: RunDriver) -> None:
        self.driver = driver
        self._task = asyncio.create_task(self._serve(driver))

    def _wake(self) -> None:
        """See to what is to be driven, unless a run is: then its end does."""
        if not self._idle:
            return
        try:
            waits = bool(self.context.store.runs.active() or self._queue.head())
        except STORAGE_FAULTS:
            # Whoever serves it asks until there is an answer.
            waits = True
        if waits:
            self._task = asyncio.create_task(self._serve(None))

    def _load(self, run_id: str) -> RunDriver:
        store = self.context.store
        row = store.runs.get(run_id)
        driver = RunDriver(
            row=row, plan=read_plan(row.plan), roster=self._queue.roster(), context=self.context
        )
        driver.pausing = row.state is RunState.PAUSING
        driver.finished = [
            RoundFigures.from_json(done.figures_json) for done in store.rounds.finished(run_id)
        ]
        return driver

    def _reopen(self, driver: RunDriver) -> None:
        """Let a run go on with the attempt of its release that was open, and end all others."""
        place = (driver.row.run_id, *driver.next_place)
        mine = [
            row
            for row in self.context.store.aggregations.unfinished()
            if (row.identity.run_id, row.identity.round, row.identity.step) == place
        ]
        keep = mine[-1] if mine else None
        end_unfinished(self.context, keep=keep)
        if keep is not None:
            driver.reopen(keep)

    def _clear_if_possible(self, run_id: str) -> None:
        """End the attempts of a run that stopped; what fails is left to the next start."""
        try:
            end_unfinished(self.context)
        except (CoordinatorError, FederationError, OSError) as error:
            log.warning("attempt_not_cleared", run=run_id, reason=error)

    # Driving --------------------------------------------------------------------------------------

    async def _serve(self, driver: RunDriver | None) -> None:
        """Drive a run to its end, then whatever waits, one after the other."""
        found = [driver]
        while found:
            found[:] = await over_defects(partial(self._turn, found[0]), self.context.metrics)

    async def _turn(self, driver: RunDriver | None) -> list[RunDriver]:
        """Drive a run to its end, unless it is over; returns the next, empty when none waits."""
        if driver is not None:
            await self._drive(driver)
        found = await over_storage_faults(self._next, run_id="", metrics=self.context.metrics)
        if found:
            self.driver = found[0]
            self.context.changed.notify()
        return found

    async def _next(self) -> list[RunDriver]:
        """The first of the queue that can begin; empty when none waits."""
        begun = self.context.store.runs.active()
        if begun is not None:
            # Its beginning was noted, and only the answer of the database was lost.
            with self._queue.turning_away(begun):
                driver = self._load(begun.run_id)
                driver.carries_over = False
                return [driver]
        while (head := self._queue.head()) is not None:
            if self.driver is not None and self.driver.row.run_id != head.run_id:
                await self._handover.wait(self.driver)
            async with self._changing:
                # Meanwhile an admin may have changed the queue.
                row = self._queue.head()
                found = [] if row is None else await self._begin(row)
            if found:
                return found
        return []

    async def _begin(self, row: RunRow) -> list[RunDriver]:
        """Take a run out of the queue; empty if it cannot begin."""
        begun: list[RunDriver] = []
        with self._queue.turning_away(row):
            await asyncio.to_thread(self._queue.require_feasible_now, row)
            driver = self._load(row.run_id)
            driver.carries_over = False
            self._queue.begin(row)
            begun.append(driver)
        return begun

    async def _drive(self, driver: RunDriver) -> None:
        run_id = driver.row.run_id

        async def go_on() -> None:
            if self.context.store.runs.get(run_id).state in ACTIVE:
                await driver.drive()
            else:
                # Its end was noted, and only the answer of the database was lost.
                driver.halt()
                self._clear_if_possible(run_id)

        try:
            await over_storage_faults(go_on, run_id=run_id, metrics=self.context.metrics)
        except (CoordinatorError, FederationError, PrivacyError, SecAggError) as error:
            # A stop with a known reason is one line; only defects get a traceback.
            log.error("run_stopped", run=run_id, reason=error)  # noqa: TRY400
            await self._stop(driver, str(error))
        except Exception:
            # The daemon must outlive a defect in one run, and the admin must see that it stopped.
            log.exception("run_crashed", run=run_id)
            await self._stop(driver, "internal error: see log")
        finally:
            driver.spans.end()
            self.context.changed.notify()

    async def _stop(self, driver: RunDriver, reason: str) -> None:
        """Show that a run stopped, and why; nothing of its attempt is kept."""
        run_id = driver.row.run_id
        driver.halt()

        async def note() -> None:
            context = self.context
            if context.store.runs.get(run_id).state in OVER:
                return
            with context.store.transaction():
                now = context.clock()
                context.store.runs.set_state(run_id, RunState.FAILED, reason, at_unix_s=now)
                context.audit.append(AuditEvent.RUN_FAILED, run=run_id, reason=reason)

        await over_storage_faults(note, run_id=run_id, metrics=self.context.metrics)
        self._clear_if_possible(run_id)

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
            roster = self._require_driver().roster.roster
            self._rollbacks.require_none(identity, roster, bundle)
        attempt.receive_bundle(identity, bundle)

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

    async def poll(
        self,
        silo_id: str,
        last_instruction_id: str,
        wait_s: float,
        *,
        protocol: int = NEWEST_PROTOCOL,
    ) -> bytes:
        """The instruction for this silo, as soon as it differs from the last one it saw.

        It is a serialised ``PollResponse``; without an instruction when nothing changed in
        ``wait_s``. A pre-flight is said beside either, as soon as there is one. ``protocol`` is the
        newest that the silo speaks.
        """
        self._handover.note(silo_id, last_instruction_id)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        while True:
            answer = self.instructions.current(self.driver, silo_id)
            asked = self.preflights.question(silo_id, protocol)
            left = give_up_at - loop.time()
            if answer.instruction_id != last_instruction_id:
                told = await self.instructions.serialised(answer)
            elif asked is not None or left <= 0:
                unchanged = round_pb2.PollResponse(instruction_id=answer.instruction_id)
                told = unchanged.SerializeToString()
            else:
                await self.context.changed.wait(left)
                continue
            if asked is not None:
                # Protobuf merges the parts, as it does those of an instruction.
                beside = round_pb2.PollResponse(preflight=preflight_to_proto(asked))
                told += beside.SerializeToString()
            return told + self.instructions.over(self.driver)

    def ask_silos(
        self, plan_toml: bytes, submit_token: str, *, admin: str = "", negotiate: bool = False
    ) -> AsyncGenerator[admin_pb2.AskSilosResponse]:
        """What the roster's silos say to a plan, at every change; the last one is complete.

        With ``negotiate`` they may be asked once more, about the plan that their offers make of it.
        """
        if negotiate:
            return negotiated(self.context, self.preflights, plan_toml, submit_token, admin=admin)
        return self.preflights.ask(plan_toml, submit_token, admin=admin)

    # What the admin sees --------------------------------------------------------------------------

    def watch(self, run_id: str) -> AsyncIterator[admin_pb2.WatchRunResponse]:
        """A status at every change, and every few seconds; ends with the run."""
        return watch_run(self.context, run_id, lambda: self.driver)
