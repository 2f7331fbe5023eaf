"""Local work on a thread of its own: judge what was adopted, evolve it, sum unit gradients.

Invariants:

1. One job at a time, in the order it was asked for; the daemon's thread never waits for one.
2. What the silo sends, and when, must not depend on private data. Where units inside the silo are
   protected, a failure that one unit can cause costs that unit alone its part; what else fails is
   counted and logged, and the release is zeros with full noise. ``record_local`` adds its noise in
   the training and none to the release, so there the silo says nothing, as after a crash. What is
   told depends on configuration, ledger and randomness alone
   (``silo_agent/local_work/result.py``).
3. The method (and with it torch) is loaded once per run, by the first job that needs it, and let go
   of, with the memory of its model, when the run is over.
4. Figures go to the silo's own files and metrics, nowhere else.
5. A silo says ready, or refuses, no sooner than the plan's ``ready_after_s`` after the task,
   however short or unlucky its work was; a silo that is stopped before then does not say it. A sum
   of unit gradients is there no sooner than ``step_answer_after_s`` after its descriptor. Under
   record-level privacy these count from when the thread has taken the job up and loaded the model,
   and it takes up nothing else meanwhile: so when an answer goes out depends on no unit.
6. Nobody explores twice in a round, nor trains one (run, round, adapter) twice in a process,
   whatever the order of tasks: a task for a later step is answered at once, and each sum of unit
   gradients is computed anew, for one attempt, from what step 0 stored. Work that another task
   overtook before it began is not begun, and its result never replaces that of a newer task. Of
   a few runs the newest result is kept, for a run may be paused while others go on; what
   is not kept any more, as of a run that was said to be over, is worked on, and charged, again if
   it is asked for.
7. After ``close``, or once the operator refused the run, no queued job explores, trains or charges.
   Nor does one whose round is over when its method is set up. From then on the work goes on until
   its run is over, as far as the coordinator's newest word goes: aborted, failed or finished. Then
   it ends between two of its steps, and nothing is charged that was not charged by then
   (``reservation.py`` says what that tells). A round alone that went on without this silo, a pause
   and silence end nothing: how long exploring takes is data, and in a run that goes on the charge
   must not tell it.
8. What the site limits is ended, or not begun, as failed work (``local_time.py``, ``limits.py``).
   Under record-level privacy the plan's times limit it, and what takes longer is as if the silo had
   crashed: nothing of it leaves, it is counted and noted, and this silo refuses those modes until
   the operator gives them more time (``silo_agent/policy/passed_time.py``).
9. A round's finished work is on disk before the silo says that it is ready, within the plan's time,
   and an equal task takes it from there after a restart: it is not trained nor charged again
   (``result_file.py``). It is ready no sooner than work that is done again, so a restart does not
   tell whether it was finished: the model is loaded for it where the plan's time begins after that.

Covered: slow, failing, repeated and unwanted work. A crash between charge and finished work costs
the charge (``silo_agent/local_work/reservation.py``). Not covered: what judging is
(``silo_agent/local_work/judge.py``), and how long it takes, which the next ready report shows where
its time begins after it; a sum of unit gradients that has begun is worked out though
its run is over; a round that went on without this silo finds its result unused; a crash after the
work is on disk and before its line in ``rounds.jsonl`` costs that line; what another thread of this
process makes of a core that is busy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from dp.errors import BudgetExceededError, PrivacyError, TooManyDebitsError
from dp.ledger.ledger import Ledger
from dp.noise.unit_sum import UnitSum
from evolution.local_time import local_time, while_wanted
from evolution.methods.evolver import Evolver, Work
from federation.adapter.layout import Layout
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from ops.tracing.spans import carry, spanned
from secagg.descriptor import Descriptor
from silo_agent.books.audit import AuditLog
from silo_agent.books.kept_runs import KeptRuns
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import (
    LateWorkError,
    LocalStoreError,
    PolicyRefusalError,
    TransportError,
    WorkCalledOffError,
)
from silo_agent.follow.chain import Head
from silo_agent.guard.guard import Guard
from silo_agent.line.transport import Coordinator
from silo_agent.local_work.held_method import HeldMethod
from silo_agent.local_work.judge import Judge
from silo_agent.local_work.pace import Due, Pace
from silo_agent.local_work.plan_terms import shared_layout_of, step_work_of, work_of
from silo_agent.local_work.reservation import Reservation
from silo_agent.local_work.result import KeptResults, Result, result_of
from silo_agent.local_work.result_file import ResultFiles
from silo_agent.local_work.step_sum import empty_sum, fulfil
from silo_agent.machine.hardware import Fitting
from silo_agent.machine.limits import require_disk
from silo_agent.machine.machine import site_of
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import LimitsSection
from silo_agent.policy.passed_time import Passed, PassedTime
from silo_agent.policy.refusal import refused_charge

__all__ = ["LocalWork"]
_NO_LIMITS = LimitsSection()
_PACE = Pace()
LOOK_S = 0.5
"""How often a silo that waits to be ready looks whether the run still lives."""
_LAWFUL = (BudgetExceededError, TooManyDebitsError, PolicyRefusalError)  # All works: it refuses.
_Judging = Callable[[Callable[[], Evolver], Head, Plan], None]
log = get_logger(__name__)


class LocalWork:
    """The worker thread and what it has done."""

    def __init__(
        self,
        *,
        config: SiloConfig,
        coordinator: Coordinator,
        store: LocalStore,
        metrics: SiloMetrics,
        audit: AuditLog,
        ledger_of: Callable[[], Ledger],
        seed_of: Callable[[str], int],
        allow: Callable[[RoundTask, Plan], None],
        refuse: Callable[[RoundTask, PolicyRefusalError], None],
        limits: LimitsSection = _NO_LIMITS,
        pace: Pace = _PACE,
        guard: Guard | None = None,
    ) -> None:
        """Start the thread.

        The coordinator is told when a round is ready, and the silo's own audit log takes charges.
        Local training is charged to the ledger that ``ledger_of`` says is open now. ``seed_of``
        makes a secret seed for a run id: without it a second run of one plan would make the very
        same deltas, and the difference of two sums would be one silo's. ``allow`` raises where the
        operator has taken an accepted task back, and ``refuse`` acts on a refusal that a round's
        work came to. Of the site's limits those on time and disk are kept here. ``pace`` is the
        clock that answers wait for, and ``guard`` decides what of it this site serves.
        """
        self._config, self._pace = config, pace
        self._passed = PassedTime(config.data_dir)
        self._limits, self._allow, self._tell_refusal = limits, allow, refuse
        self.fitting = Fitting(config)
        self._ledger_of = ledger_of
        self._seed_of = seed_of
        self._coordinator = coordinator
        self._store = store
        self._metrics = metrics
        self._audit = audit
        self.site = site_of(config)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._finished = KeptResults()
        self._files = ResultFiles(config.data_dir, store)
        self._over: frozenset[str] = frozenset()
        self._started: tuple[str, int, bytes] | None = None
        self._begun: set[tuple[str, int, bytes]] = set()
        self._called_off: tuple[str, int, bytes] | None = None
        self._asked: RoundTask | None = None
        self._failure: PrivacyError | LocalStoreError | None = None
        self._stopping = threading.Event()
        self._guard = guard
        self._judge = Judge(config=config, store=store, metrics=metrics)
        self._kept_runs = KeptRuns(
            config.data_dir, store=store, ledger_of=ledger_of, most=limits.max_kept_runs
        )
        self._method = HeldMethod(config, fitting=self.fitting, kept_runs=self._kept_runs)
        self._thread = threading.Thread(target=self._serve, name="local-work", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current job."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join(timeout=30.0)
        self._method.close()

    def finished(self, run_id: str, round_number: int) -> Result | None:
        """The result of a round, if it is done."""
        with self._lock:
            return self._finished.find(run_id, round_number)

    def adopted(self, head: Head, plan: Plan) -> None:
        """Judge the adapter that a round ended with, as the plan and this site's guard ask for.

        What was kept for that round is of no use any more. A chain was followed to its end, and its
        head is remembered: others may be one too many.
        """
        self._files.end_round(head.record.run_id, head.record.round)
        self._kept_runs.limit_heads()
        if self._judge.take(head.record, plan):
            self._jobs.put(carry(lambda: self._evaluate(head, plan, self._judge.judge)))
        if (guard := self._guard) is not None and guard.take(head.record, plan):
            self._jobs.put(carry(lambda: self._evaluate(head, plan, guard.judge)))

    def start(self, *, task: RoundTask, plan: Plan, head: Head) -> None:
        """Do one round of local work and report ready; a repeat of the same task re-reports.

        Raises:
            PrivacyError: the ledger failed when the round was to be charged.
            LocalStoreError: so did the silo's memory of it. The next task begins the work again.
        """
        with self._lock:
            self._asked = task
            # A task for a run is the newest word about it.
            self._over -= {task.run_id}
            if self._called_off is not None and self._called_off[:2] == (task.run_id, task.round):
                self._called_off = None
            failure, self._failure = self._failure, None
            started = self._started
        if failure is not None:
            raise failure
        done = self.finished(task.run_id, task.round)
        exploring = started is not None and started[:2] == (task.run_id, task.round) and not done
        if task.step:
            # What is still being explored is reported when it is done.
            if not exploring:
                self._take_part(task, plan, head)
            return
        key = _key(task)
        with self._lock:
            begun = self._started == key or key in self._begun
            if not begun:
                self._started = key
        if begun:
            if done is not None:
                self._report(task, plan)
            return
        asked_at = self._pace.now()
        self._jobs.put(carry(lambda: self._evolve(task, plan, head, asked_at)))

    def call_off(self) -> None:
        """The coordinator asks for no local work now: what has not begun is not begun."""
        with self._lock:
            self._called_off = self._started

    def runs_over(self, run_ids: frozenset[str]) -> None:
        """The coordinator says that these runs are over: work for them ends, its results go."""
        with self._lock:
            heard, self._over = self._over, run_ids
            for run_id in run_ids:
                self._let_go(self._finished.forget(run_id))
        self._files.end_runs(run_ids)
        if run_ids - heard:
            self._jobs.put(self._release)

    def unit_sum(self, descriptor: Descriptor, plan: Plan, head: Head) -> Future[UnitSum]:
        """Begin the sum of unit gradients for one attempt.

        The future always ends (``silo_agent/local_work/step_sum.py``). Cancelled before its turn,
        it is not computed.
        """
        future: Future[UnitSum] = Future()
        if self._stopping.is_set():
            future.cancel()
        self._jobs.put(carry(lambda: self._sum(future, descriptor, plan, head)))
        return future

    def _take_part(self, task: RoundTask, plan: Plan, head: Head) -> None:
        """Say ready for a later step of a round, whether or not this process explored for it."""
        if self.finished(task.run_id, task.round) is None:
            layout = shared_layout_of(plan, head.tensors, task.round)
            self._finish(Result.of(task, plan, layout, None))
        self._report(task, plan)

    # On the worker thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            # Also what a job made anew for a run that is over: its last adapter is judged then.
            self._do(self._release)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except TransportError as error:  # What was done is kept: the next task asks for it.
            self._metrics.count_error("TransportError")
            log.warning("ready_not_taken", reason=error)
        except Exception:
            # A failed job is data, not a crash; the daemon must stay to be asked again.
            self._metrics.errors.labels(kind="local_work").inc()
            log.exception("local_work_failed")

    @spanned("local_work")
    def _evolve(self, task: RoundTask, plan: Plan, head: Head, asked_at: float) -> None:
        key = _key(task)
        with self._lock:
            if self._stopping.is_set() or self._started != key or key in self._begun:
                return
            self._begun.add(key)
        layout = shared_layout_of(plan, head.tensors, task.round)
        reservation = Reservation(
            ledger=self._ledger_of(),
            store=self._store,
            audit=self._audit,
            task=task,
            plan=plan,
            allow=self._allow,
            lives=lambda: self._lives(task.run_id),
            stopping=self._stopping.is_set,
        )
        started = self._pace.now()
        due = Due(plan, self._pace, asked_at)
        found: Result | None = None
        result: Result | None = None
        refusal: PolicyRefusalError | None = None
        try:
            found = self._found(task, plan, layout, reservation, due)
            result = found or self._worked(task, plan, layout, reservation, head=head, due=due)
        except WorkCalledOffError:
            # Nothing is said of it, and the next task's work need not wait for it.
            self._call_off(key)
            return
        except PolicyRefusalError as error:
            refusal = error
        if found is None and result is not None and not due.passed:
            self._keep(result, task, reservation)
            self._note(result, self._pace.now() - started)
        if due.passed:
            self._files.end_round(task.run_id, task.round)
            self._pass_by(Passed(ready_after_s=plan.rounds.ready_after_s))
            return
        # A short job must not show outside, and a repeat of the task must not report sooner, so the
        # result appears only now.
        if self._may_speak(task.run_id, due.at):
            self._answer(task, refusal or result, reservation.failure)
        else:
            self._call_off(key)

    def _found(
        self, task: RoundTask, plan: Plan, layout: Layout, reservation: Reservation, due: Due
    ) -> Result | None:
        """What an earlier process finished, if it may still be used.

        Where answers count from when the method is set up, it is set up for this one as well; what
        cannot be is worked on again, and comes to what that comes to.
        """
        found = self._files.find(task, plan, layout, self._ledger_of())
        if found is None:
            return None
        try:
            reservation.require_allowed()
        except LocalStoreError as error:
            raise refused_charge(error) from error
        reservation.require_wanted()
        if due.apart:
            try:
                self._method.of(plan, task.run_id)
            except Exception:  # Doing the work again says what becomes of it.
                log.exception("result_not_used", run=task.run_id, round=task.round)
                return None
        self._require_asked(_key(task))
        due.begin()
        log.info("result_found", run=task.run_id, round=task.round)
        return found

    def _worked(
        self,
        task: RoundTask,
        plan: Plan,
        layout: Layout,
        reservation: Reservation,
        *,
        head: Head,
        due: Due,
    ) -> Result | None:
        """Do a round's work."""
        hours = due.hours(self._limits.max_local_hours_per_round)

        def method() -> Evolver:
            reservation.require_allowed()
            reservation.require_wanted()
            require_disk(self._config.data_dir, self._limits)
            evolver = self._method.of(plan, task.run_id)
            self._require_asked(_key(task))
            due.begin()
            return evolver

        def work() -> Work:
            if due.apart:
                begin_anew()
            asked = work_of(
                plan,
                layout,
                task=task,
                adapter=head.tensors,
                seed=self._seed(task.run_id),
                reserve=reservation,
            )
            return self.fitting.work(plan, asked)

        with local_time(hours) as begin_anew, while_wanted(reservation.wanted):
            return result_of(
                method,
                work,
                task=task,
                plan=plan,
                layout=layout,
                reservation=reservation,
                on_failure=self._metrics.errors.labels(kind="local_work").inc,
                vetoes=self._guard is not None and self._guard.vetoes(head.record, plan),
            )

    def _may_speak(self, run_id: str, at: float) -> bool:
        """Wait until a silo may be ready; one that is being stopped would say it too soon."""
        while self._lives(run_id):
            if not self._pace.wait_until(min(at, self._pace.now() + LOOK_S), self._stopping):
                return False
            if self._pace.now() >= at:
                return True
        return False

    @spanned("gradients")
    def _sum(self, future: Future[UnitSum], descriptor: Descriptor, plan: Plan, head: Head) -> None:
        if self._stopping.is_set() or not self._lives(descriptor.identity.run_id):
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        identity = descriptor.identity
        begun = self._pace.now()
        after_s = plan.rounds.step_answer_after_s

        def compute() -> UnitSum:
            nonlocal begun
            method = self._method.of(plan, identity.run_id)
            begun = self._pace.now()
            work = step_work_of(
                plan,
                shared_layout_of(plan, head.tensors, identity.round),
                identity=identity,
                adapter=head.tensors,
                adapter_sha256=head.record.adapter_sha256.hex(),
                seed=self._seed(identity.run_id),
            )
            made = method.unit_sum(work)
            self._metrics.observe_phase("gradients", self._pace.now() - begun)
            return made

        def empty() -> UnitSum:
            layout = shared_layout_of(plan, head.tensors, identity.round)
            return empty_sum(plan.spec, layout.dimension)

        def hold() -> None:
            if self._pace.now() > begun + after_s:
                self._pass_by(Passed(step_answer_after_s=after_s))
                raise LateWorkError("this step's sum took longer than the plan's time for it")
            if not self._pace.wait_until(begun + after_s, self._stopping):
                raise WorkCalledOffError("this silo stops before it may answer")

        fulfil(
            future,
            compute,
            empty=empty,
            on_failure=self._metrics.errors.labels(kind="local_work").inc,
            hold=hold,
        )

    def _pass_by(self, passed: Passed) -> None:
        """Count and note that work took longer than a plan gives it; nothing of it leaves.

        Raises:
            LocalStoreError: The disk refused the note.
        """
        self._metrics.count_error(LateWorkError.__name__)
        log.error("time_passed", contributes="nothing")
        self._passed.note(passed)

    def _answer(
        self,
        task: RoundTask,
        came_to: Result | PolicyRefusalError | None,
        failure: PrivacyError | LocalStoreError | PolicyRefusalError | None,
    ) -> None:
        """Say what a round came to; nothing where the silo is silent about it."""
        if isinstance(came_to, PolicyRefusalError):
            self._refuse(task, came_to, failure)
        elif came_to is not None and self._finish(came_to):
            self._report(self._newest(task), came_to.plan)

    def _refuse(
        self,
        task: RoundTask,
        refusal: PolicyRefusalError,
        failure: PrivacyError | LocalStoreError | PolicyRefusalError | None,
    ) -> None:
        """Say that the round is not worked on; nothing was trained, and a later task asks again."""
        with self._lock:
            self._started = None
            self._begun.discard(_key(task))
            # A ledger that failed is opened again by the daemon's thread.
            self._failure = None if isinstance(failure, _LAWFUL) else failure
        self._tell_refusal(task, refusal)

    def _keep(self, result: Result, task: RoundTask, reservation: Reservation) -> None:
        """Write finished work down; without that a restart does it again, and nothing else."""
        if not result.evolved:
            return
        try:
            self._files.keep(result, task, reservation.charged)
        except LocalStoreError as error:
            self._metrics.count_error(type(error).__name__)
            log.warning("result_not_kept", run=task.run_id, round=task.round, reason=error)
        if not self._lives(task.run_id):
            self._files.end_runs([task.run_id])

    def _lives(self, run_id: str) -> bool:
        """Whether a run goes on, by the coordinator's newest word; silence ends none."""
        with self._lock:
            return run_id not in self._over

    def _require_asked(self, key: tuple[str, int, bytes]) -> None:
        """Go on only with a round that the coordinator still asks for; a later task asks again."""
        with self._lock:
            if self._called_off != key:
                return
            self._forget(key)
        raise WorkCalledOffError("the round was over before this silo began to explore")

    def _call_off(self, key: tuple[str, int, bytes]) -> None:
        """Let a later task begin the work again."""
        log.info("work_called_off", run=key[0], round=key[1])
        with self._lock:
            # Unless it was let go of before, and a task may have begun it again since.
            if key in self._begun:
                self._forget(key)

    def _let_go(self, run_and_round: tuple[str, int] | None) -> None:
        """Let a later task begin a round again whose result is not kept any more."""
        for key in [key for key in self._begun if key[:2] == run_and_round]:
            self._forget(key)

    def _forget(self, key: tuple[str, int, bytes]) -> None:
        if self._started == key:
            self._started = None
        self._begun.discard(key)

    def _finish(self, finished: Result) -> bool:
        """Keep a result, unless its run has gone on; whether it is what is asked for now."""
        with self._lock:
            asked, mine = self._asked, (finished.run_id, finished.round)
            if finished.run_id in self._over:
                self._let_go(mine)
                return False
            wanted = asked is None or (asked.run_id, asked.round) == mine
            if not wanted and self._started and self._started[:2] == mine:
                self._started = None
            if asked is None or asked.run_id != finished.run_id or wanted:
                self._let_go(self._finished.keep(finished))
        return wanted

    def _newest(self, task: RoundTask) -> RoundTask:
        """The newest task of the round: its steps may have gone on meanwhile."""
        with self._lock:
            asked = self._asked
        if asked is not None and (asked.run_id, asked.round) == (task.run_id, task.round):
            return asked
        return task

    def _report(self, task: RoundTask, plan: Plan) -> None:
        self._coordinator.report_ready(
            run_id=task.run_id,
            round_number=task.round,
            step=task.step,
            adapter_sha256=task.adapter_sha256,
            families=self._config.families(plan),
        )

    def _seed(self, run_id: str) -> int:
        return (self._config.seed + self._seed_of(run_id)) % 2**63

    def _note(self, result: Result, duration_s: float) -> None:
        for stage, stage_s in result.duration_s.items():
            self._metrics.observe_phase(stage, stage_s)
        try:
            self._store.append_round(result.report(duration_s=duration_s))
        except LocalStoreError:
            # The silo's own books may fail; that must not show outside.
            self._metrics.errors.labels(kind="local_work").inc()
            log.exception("local_work_failed")
        self._metrics.observe_evolution(
            episodes=result.episodes,
            successes=result.successes,
            figures=result.metrics,
        )

    def _evaluate(self, head: Head, plan: Plan, judge: _Judging) -> None:
        if self._stopping.is_set():
            return
        with local_time(self._limits.max_local_hours_per_round):
            judge(lambda: self._method.of(plan, head.record.run_id), head, plan)

    def _release(self) -> None:
        with self._lock:
            over = self._over
        self._method.release(over)


def _key(task: RoundTask) -> tuple[str, int, bytes]:
    return task.run_id, task.round, task.adapter_sha256
