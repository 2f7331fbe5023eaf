"""The runs of one coordinator that are not driven now: submitted, queued, paused, turned away.

One run is driven at a time: a silo has one set of GPUs, and two rounds at once would double what
everybody waits for. The others begin by themselves, in the order of their start.

Ordered invariants:

1. A submit token names one request: again with the same plan and adapter it finds the same run,
   with others it is refused.
2. What cannot be carried out with the published roster is refused when it is submitted, and looked
   at again when its turn comes. A run that has not begun fails then; one that has goes back to
   paused, for its rounds are paid for.
3. A run and its first record are one durable change, and so is each change of state with its line
   in the audit log. The queue is in the store alone, so a restart changes nothing of it.

Covered: the queue and the states of runs that are not driven. Not covered: driving one, pausing or
ending the one that is driven (``server/conductor/conductor.py``).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dp.errors import PrivacyError
from federation.adapter.encoding import decode_adapter
from federation.adapter.layout import Layout
from federation.chain.record import AdapterRecord
from federation.errors import FederationError, PlanError, VersionMismatchError
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from federation.plan.rules import problems_of_start
from federation.selection.decide import ADVISED
from federation.version import HYBRID
from ops.logs.logger import get_logger
from secagg import hybrid
from secagg.descriptor import SUITES
from secagg.errors import SecAggError
from secagg.roster import SignedRoster
from server.audit import AuditEvent
from server.conductor.storage_faults import STORAGE_FAULTS
from server.conductor.submit_token import require_submit_token
from server.context import RunContext
from server.errors import CoordinatorError, RunError, SubmitTokenError
from server.members.presence import require_members
from server.states import RunState
from server.store import Store
from server.store.runs import RunRow

__all__ = ["RunQueue", "places_behind", "require_feasible"]

log = get_logger(__name__)

MAX_ADAPTER_BYTES: Final = 1 << 30


class RunQueue:
    """Runs between their submission and their turn."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._store = context.store

    def submit(
        self,
        plan_toml: bytes,
        adapter: bytes,
        submit_token: str,
        *,
        suite: int,
        admin: str,
        at_once: bool,
    ) -> tuple[RunRow, bool]:
        """Add a run: running where nothing is before it, queued otherwise; says whether it is new.

        The submit token names this request. With ``at_once`` nothing is driven: the run may begin
        now, unless others wait.

        Raises:
            SubmitTokenError: The token is malformed, or names another request.
            FederationError: The plan or the adapter is refused, with the reason.
            RunError: There is no roster yet.
            RosterError: Too few of its members may take part.
            VersionMismatchError: One of them is known not to speak the suite.
        """
        require_submit_token(submit_token)
        known = self._store.runs.by_submit_token(submit_token)
        if known is not None:
            self._require_same_request(known, plan_toml, adapter, suite)
            return known, False
        plan = read_plan(plan_toml)
        if early := problems_of_start(plan, self._context.clock()):
            raise PlanError(early)
        if suite not in SUITES.values():
            raise RunError(f"this version knows no suite {suite}")
        if suite != hybrid.SUITE:
            _require_within_v1(plan)
        _require_advisor(plan, self._context)
        self._require_feasible(plan, adapter)
        if suite == hybrid.SUITE:
            self._require_hybrid()
        plan_sha256 = hashlib.sha256(plan_toml).digest()
        run_id = f"{plan.name}-{secrets.token_hex(4)}"
        record = AdapterRecord(
            run_id=run_id,
            round=0,
            parent_sha256=b"",
            adapter_sha256=self._context.blobs.put(adapter),
            plan_sha256=plan_sha256,
            base_model_sha256=bytes.fromhex(plan.model.base_sha256),
            kind="initial",
            record_parent_sha256=b"",
            suite=suite,
        ).sign(self._context.signing_key)
        begins = at_once and self._store.runs.active() is None and not self._store.runs.queued()
        # A run without its first record could not be resumed.
        with self._store.transaction():
            row = self._store.runs.create(
                run_id=run_id,
                name=plan.name,
                plan=plan_toml,
                plan_sha256=plan_sha256,
                submit_token=submit_token,
                state=RunState.RUNNING if begins else RunState.QUEUED,
                at_unix_s=self._context.clock(),
                suite=suite,
            )
            self._store.records.append(record)
            self._context.audit.append(
                AuditEvent.RUN_STARTED if begins else AuditEvent.RUN_QUEUED,
                run=run_id,
                plan=plan_sha256.hex(),
                adapter=record.adapter_sha256.hex(),
                suite=suite,
                admin=admin,
            )
        return row, True

    def _require_hybrid(self) -> None:
        """Refuse a run of suite v2 that a silo of the roster is known to be too old for.

        Who has not called since the start is not waited for: it is told what it needs when it does.
        """
        known = self._context.liveness.version
        versions = {silo_id: known(silo_id) for silo_id in self.roster().roster.silo_ids}
        older = [
            f"{silo_id}, which runs chorale {version}"
            for silo_id, version in versions.items()
            if version is not None and version.newest < HYBRID
        ]
        if older:
            raise VersionMismatchError(
                f"a run of suite v2 needs protocol {HYBRID} at every silo: upgrade "
                f"{', '.join(older)}; or start it with --suite v1, which is not post-quantum, and "
                "in which only sites take part whose policies accept v1"
            )

    def head(self) -> RunRow | None:
        """The run whose turn is next; None if none waits."""
        queued = self._store.runs.queued()
        return queued[0] if queued else None

    def require_feasible_now(self, row: RunRow) -> None:
        """Check a run that was submitted before against the roster of now.

        Raises:
            FederationError: The plan does not fit it, with the reason.
            RunError: There is no roster.
            RosterError: Too few of its members may take part.
        """
        first = self._store.records.page(row.run_id, 0, 1)[0]
        adapter = self._context.blobs.get(first.adapter_sha256)
        self._require_feasible(read_plan(row.plan), adapter)

    def _require_feasible(self, plan: Plan, adapter: bytes | memoryview) -> None:
        roster = self.roster()
        require_feasible(plan, adapter, roster)
        require_members(plan, roster, self._store.silos.list())

    def begin(self, row: RunRow) -> None:
        """Note that a queued run's turn has come."""
        event = AuditEvent.RUN_CONTINUED if self._has_begun(row) else AuditEvent.RUN_STARTED
        self._move(row, RunState.RUNNING, event)

    def turn_away(self, row: RunRow, reason: str) -> None:
        """Note that a queued run cannot begin: it has failed, or waits for the admin again."""
        if self._has_begun(row):
            self._move(row, RunState.PAUSED, AuditEvent.RUN_PAUSED, error=reason)
        else:
            self._move(row, RunState.FAILED, AuditEvent.RUN_FAILED, error=reason)

    @contextmanager
    def turning_away(self, row: RunRow) -> Iterator[None]:
        """Turn a run away that cannot be loaded or begun, unless it is the storage's fault."""
        try:
            yield
        except STORAGE_FAULTS:
            raise
        except (CoordinatorError, FederationError, PrivacyError, SecAggError) as error:
            log.error("run_cannot_begin", run=row.run_id, reason=error)  # noqa: TRY400
            self.turn_away(row, str(error))
        except Exception:
            log.exception("run_crashed", run=row.run_id)
            self.turn_away(row, "internal error: see log")

    def pause(self, row: RunRow, *, admin: str) -> None:
        """Take a run that is not driven out of the queue; it keeps what it has."""
        self._move(row, RunState.PAUSED, AuditEvent.RUN_PAUSED, admin=admin)

    def unpause(self, row: RunRow, *, admin: str) -> None:
        """Put a paused run back, before all that wait."""
        self._move(row, RunState.QUEUED, AuditEvent.RUN_UNPAUSED, admin=admin)

    def abort(self, row: RunRow, *, admin: str) -> None:
        """End a run that is not driven for good."""
        self._move(
            row, RunState.ABORTED, AuditEvent.RUN_ABORTED, admin=admin, error="aborted by the admin"
        )

    def roster(self) -> SignedRoster:
        """The published roster.

        Raises:
            RunError: There is none.
        """
        roster = self._store.rosters.current()
        if roster is None:
            raise RunError("no roster is published: chorale roster propose, sign and publish")
        return roster

    def _move(
        self, row: RunRow, state: RunState, event: AuditEvent, *, error: str = "", admin: str = ""
    ) -> None:
        details = {"reason": error} if error else {}
        with self._store.transaction():
            self._store.runs.set_state(
                row.run_id, state, error, first=True, at_unix_s=self._context.clock()
            )
            if admin:
                details["admin"] = admin
            self._context.audit.append(event, run=row.run_id, **details)

    def _has_begun(self, row: RunRow) -> bool:
        return bool(self._store.rounds.list(row.run_id))

    def _require_same_request(
        self, known: RunRow, plan_toml: bytes, adapter: bytes, suite: int
    ) -> None:
        if suite != known.suite:
            raise SubmitTokenError(
                f"this submit token started run {known.run_id} with suite v{known.suite}: use "
                "a new token for a new run"
            )
        first = self._store.records.page(known.run_id, 0, 1)[0]
        same: tuple[tuple[str, Callable[[], bytes], bytes], ...] = (
            ("plan", lambda: hashlib.sha256(plan_toml).digest(), known.plan_sha256),
            ("initial adapter", lambda: hashlib.sha256(adapter).digest(), first.adapter_sha256),
        )
        for what, digest, expected in same:
            if digest() != expected:
                raise SubmitTokenError(
                    f"this submit token started run {known.run_id} with another {what}: use a new "
                    "token for a new run"
                )


def _require_advisor(plan: Plan, context: RunContext) -> None:
    """Refuse a plan whose rounds would ask an advisor that there is not.

    Raises:
        PlanError: None is configured.
    """
    if plan.selection.policy == ADVISED and context.advisor is None:
        none = (
            "selection.policy: 'advised' asks this coordinator's advisor, and it has none: set "
            "advisor_url and advisor_model in coordinator.toml and restart it, or choose another "
            "policy"
        )
        raise PlanError([none])


def _require_within_v1(plan: Plan) -> None:
    """Refuse what no run of suite v1 has the messages for.

    Raises:
        PlanError: With each table that needs suite v2.
    """
    problems = []
    if plan.groups > 1:
        why = "a run of suite v1 has one sum a release: start it with suite v2, or remove this"
        problems.append(f"aggregation.groups: {why} table")
    if plan.selection.policy != "all":
        why = "tasks of suite v1 name nobody whom they invite: start it with suite v2, or use 'all'"
        problems.append(f"selection.policy: {why}")
    if problems:
        raise PlanError(problems)


def places_behind(store: Store) -> dict[str, str]:
    """Each queued run with the one that it waits behind; empty text for one that is next."""
    active = store.runs.active()
    before = "" if active is None else active.run_id
    places = {}
    for row in store.runs.queued():
        places[row.run_id] = before
        before = row.run_id
    return places


def require_feasible(plan: Plan, adapter: bytes | memoryview, roster: SignedRoster) -> None:
    """Refuse what ``chorale run plan`` refuses: a start must not be a way around the gate.

    Raises:
        FederationError: The text names every reason.
    """
    members = roster.roster
    plan.require_cohort(len(members.entries), members.colluding)
    layout = Layout.from_tensors(decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES))
    plan.require_rank(layout)
    expected = forecast_plan(
        plan,
        silos=len(members.entries),
        colluding=members.colluding,
        dimension=shared_dimension(plan, layout),
        adapter_dimension=layout.dimension,
    )
    if expected.refusals:
        raise PlanError(list(expected.refusals))
