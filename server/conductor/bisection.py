"""Asking for a round in two halves, to find a silo that ruins sums, once a submit token.

Nobody sees which silo made a sum gross, but a half that is gross has one. A bisected round is
summed in two halves of the roster (``federation.chain.groups.halves_of``); nothing of it is
adopted, each silo is charged as for any release, and the run is paused after it. The suspects are
split evenly and the others fill both halves, so that halves stay large while suspects become few.

It takes the place of the next round that has not begun: of a run that is driven, of the round after
the one under way; of a paused one, of the one that it would go on with, or where it is chosen whom
that one asks, of the one after it. The driver makes it
(``server/run/driver.py``).

Ordered invariants:

1. A token names one request: again with the same run and silos it finds the same answer, whatever
   became of the run meanwhile; with others it is refused.
2. What has no place is refused when it is asked, with what to do instead: no noise hides the
   halves, suite v1, a plan of groups, a run that is over or waits for its turn, a rollback or
   another bisection that waits, no round left, halves too small for sums of their own.
3. Whom the admin does not name are the suspects of the last bisection's gross half; the same as
   before where no half was gross; and before a first bisection everybody.
4. A request and its line in the audit log are one durable change.

Covered: runs in every state. Not covered: a silo that ruins sums only now and then, or two of them;
the admin reads the halves of several rounds then, and names whom to split.
"""

from __future__ import annotations

from collections.abc import Callable

from dp.config import Mode
from federation.chain.record import place_at
from federation.errors import PlanError
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from secagg import bounds
from server.audit import AuditEvent, AuditLog
from server.conductor.submit_token import require_submit_token
from server.errors import BisectionError, SubmitTokenError
from server.figures import HalfSum, HalfVerdict, RoundFigures
from server.members.presence import may_take_part
from server.states import OVER, RunState
from server.store import Store
from server.store.bisections import BisectionRow
from server.store.runs import RunRow

__all__ = ["halves_so_far", "request_bisection"]

BISECTED_MODES = frozenset({Mode.SILO, Mode.RECORD_LOCAL})
"""Noise hides each half, and a round is one sum."""


def request_bisection(
    store: Store,
    audit: AuditLog,
    *,
    run_id: str,
    named: tuple[str, ...],
    submit_token: str,
    admin: str,
    clock: Callable[[], float],
) -> BisectionRow:
    """Note a bisection; again with the same token changes nothing.

    ``named`` are the silos to split; none where the coordinator is to choose them.

    Raises:
        UnknownRunError: There is no such run.
        SubmitTokenError: The token is malformed, or names another request.
        BisectionError: There is no place for it; the text says what to do instead.
    """
    require_submit_token(submit_token)
    named = tuple(sorted(frozenset(named)))
    with store.transaction():
        known = store.bisections.by_submit_token(submit_token)
        if known is not None:
            if (known.run_id, known.named) != (run_id, named):
                raise SubmitTokenError(
                    f"this submit token asked run {known.run_id} for another bisection: use a new "
                    "token for a new one"
                )
            return known
        row = store.runs.get(run_id)
        plan = read_plan(row.plan)
        _require_noise(row, plan)
        _require_place(row, plan, store)
        suspects = _suspects(row, plan, named, store)
        store.bisections.ask(
            submit_token=submit_token,
            run_id=run_id,
            named=named,
            suspects=suspects,
            at_unix_s=clock(),
        )
        audit.append(AuditEvent.BISECTION_ASKED, run=run_id, suspects=list(suspects), admin=admin)
        asked = store.bisections.by_submit_token(submit_token)
    if asked is None:
        raise BisectionError(f"the bisection of run {run_id} was not stored: ask again")
    return asked


def halves_so_far(store: Store, run_id: str, round_number: int) -> tuple[HalfSum, ...] | None:
    """The halves of a bisected round; None while it is not over."""
    for done in store.rounds.finished(run_id):
        if done.round == round_number:
            return RoundFigures.from_json(done.figures_json).halves
    return None


def _require_noise(row: RunRow, plan: Plan) -> None:
    mode = plan.spec.mode
    if mode is Mode.NONE:
        raise BisectionError(
            f"run {row.run_id} has no noise: the sums of halves could be subtracted from its other "
            "sums until single silos show. Run with one suspect suspended at a time in a mode with "
            "noise, or ask the sites"
        )
    if mode not in BISECTED_MODES:
        raise BisectionError(
            f"run {row.run_id} is of mode {mode.value!r}, where each step is a sum of its own: "
            "bisect a run of mode 'silo' or 'record_local' of the same silos"
        )
    if not row.is_hybrid:
        raise BisectionError(
            f"run {row.run_id} is of suite v1, which has one sum a release: start one of suite v2"
        )
    if plan.groups > 1:
        raise BisectionError(
            f"run {row.run_id} has sums of groups, others in each round: chorale audit tail shows "
            "which of them were quarantined, and who ruins sums is in all of those"
        )


def _require_place(row: RunRow, plan: Plan, store: Store) -> None:
    run_id = row.run_id
    if row.state in OVER:
        raise BisectionError(
            f"run {run_id} is {row.state}, and nothing follows its last record: start another from "
            "its adapter, and bisect that"
        )
    if row.state is RunState.QUEUED:
        raise BisectionError(
            f"run {run_id} waits for its turn: chorale run pause {run_id}, then ask again; it is "
            "bisected when it is resumed"
        )
    waits, newest = store.bisections.waiting(run_id), store.bisections.newest(run_id)
    begun = newest is not None and halves_so_far(store, run_id, newest.round or 0) is None
    if waits is not None or begun:
        raise BisectionError(
            f"run {run_id} is to be bisected already: chorale run watch {run_id} shows when it was"
        )
    if store.rollbacks.waiting(run_id) is not None:
        raise BisectionError(f"run {run_id} goes back to an earlier round first: ask again then")
    following = place_at(len(store.records.list(run_id)), plan.sums_per_round)
    # A round whose silos are chosen can ask no others.
    free = store.choices.of_round(run_id, following.round) is None
    taken = following.round if row.state is RunState.PAUSED and free else following.round + 1
    if taken > plan.rounds.count:
        raise BisectionError(
            f"the last round of run {run_id} has begun, so a bisection has no round to take: "
            f"chorale run pause {run_id} while it is in training and ask again, or start another "
            "run from its adapter"
        )


def _suspects(row: RunRow, plan: Plan, named: tuple[str, ...], store: Store) -> tuple[str, ...]:
    """Whom to split, in ascending order, if the halves can be sums of their own."""
    roster = store.rosters.current()
    if roster is None:
        raise BisectionError("no roster is published: chorale roster propose, sign and publish")
    members = may_take_part(roster, store.silos.list())
    strangers = [silo_id for silo_id in named if silo_id not in members]
    if strangers:
        raise BisectionError(
            f"{', '.join(strangers)} may take no part in run {row.run_id}: chorale silo list"
        )
    found = named or _found(row, members, store)
    if len(found) < 2:
        who = ", ".join(found) or "nobody"
        raise BisectionError(
            f"{who} is left to be split: a half is gross by whoever it is, or by a silo that was "
            "not split. Ask that site, and chorale silo suspend SILO --reason TEXT; or name others"
        )
    least = _least_sum(plan, roster.roster.colluding)
    if len(members) < 2 * least:
        raise BisectionError(
            f"{len(members)} silos may take part and each half is a sum of its own, of at least "
            f"{least} silos with c = {roster.roster.colluding} and this plan's n_min and quorum: "
            f"{2 * least} silos would be needed. Enrol more, or run with one suspect suspended at "
            "a time"
        )
    return found


def _found(row: RunRow, members: tuple[str, ...], store: Store) -> tuple[str, ...]:
    """Whom the last bisection left under suspicion; everybody before the first."""
    newest = store.bisections.newest(row.run_id)
    if newest is None:
        return members
    number = newest.round or 0
    halves = halves_so_far(store, row.run_id, number) or ()
    gross = [half for half in halves if half.verdict is HalfVerdict.GROSS]
    if len(gross) > 1:
        either = " or ".join("--suspects " + ",".join(half.suspects) for half in gross)
        raise BisectionError(
            f"both halves of round {number} were gross, so more than one silo ruins sums: say "
            f"which to split, {either}"
        )
    left = gross[0].suspects if gross else newest.suspects
    return tuple(silo_id for silo_id in left if silo_id in members)


def _least_sum(plan: Plan, colluding: int) -> int:
    """How many silos can have a sum of their own."""
    for count in range(1, bounds.MAX_COHORT):
        try:
            plan.require_sum(count, colluding)
        except PlanError:
            continue
        return count
    return bounds.MAX_COHORT
