"""Who is lost from a run's attempts again and again, and sits out for it.

A silo that says ready and then stalls costs everybody the deadline of each phase it stalls in, and
an attempt that loses too many is charged and made anew. One such loss is what the protocol is made
for. A silo that is lost time after time is named, and left out for a while.

Ordered invariants:

1. A drop-out is counted for a silo that a phase waited for until its deadline, and once for each
   attempt: in the transaction that ends the attempt, or when a task's deadline finds it alive and
   without an answer. A restart forgets none and counts none twice.
2. Nobody is blamed for another: an attempt that ends while it waits for somebody else counts for
   that one alone. A silo that may take no part, and one to which a restart of the coordinator left
   less than half its time, is not blamed either.
3. Drop-outs are in a row until the silo is in a round's last sum and was lost nowhere in that
   round. Rounds without it neither count nor excuse.
4. After ``sit_out_after`` in a row it sits out the rest of the round and ``sit_out_rounds`` more;
   in mode ``none`` the rest of the run, for two sums without noise whose cohorts differ by one silo
   can be subtracted, and one that comes and goes would make such a pair each time. If it is lost
   again when it is asked again, it sits out again.
5. A round that has too few silos without those who sit out asks them again, and the audit log says
   so: sitting out never costs a run its quorum.

Covered: every phase from the task to unmask, deadlines and messages that fail their checks alike;
restarts; admins who let a silo in again. Not covered: silos that are not heard of, whom nobody
waits for (``server/context.py``); attempts that an admin ends, which count for nobody; what a silo
does to the others within the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dp.config import Mode
from federation.chain.record import Place
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from server.audit import AuditEvent
from server.context import RunContext
from server.figures import Phase
from server.store import Store
from server.store.dropouts import DropoutRow

__all__ = ["Dropouts", "dropouts_of_now", "sitting_out_now"]

log = get_logger(__name__)


class Dropouts:
    """The drop-outs of one run."""

    def __init__(self, run_id: str, plan: Plan, context: RunContext) -> None:
        self._run_id = run_id
        self._plan = plan
        self._context = context
        self._table = context.store.dropouts

    def count(self, place: Place, attempt: int, lost: Mapping[str, Phase]) -> None:
        """Count an attempt's losses, each with the phase that waited for it in vain.

        The caller's transaction makes it durable.
        """
        for silo_id, phase in sorted(lost.items()):
            in_a_row = self._table.add(self._run_id, silo_id, place.round)
            self._context.audit.append(
                AuditEvent.SILO_DROPPED_OUT,
                run=self._run_id,
                round=place.round,
                step=place.step,
                attempt=attempt,
                silo=silo_id,
                phase=phase.value,
                in_a_row=in_a_row,
            )
            if 0 < self._plan.rounds.sit_out_after <= in_a_row:
                self._sit_out(silo_id, place.round)

    def _sit_out(self, silo_id: str, round_number: int) -> None:
        rounds = self._plan.rounds
        until = round_number + rounds.sit_out_rounds
        if self._plan.privacy.mode == Mode.NONE.value:
            until = rounds.count
        until = min(until, rounds.count)
        self._table.sit_out(self._run_id, silo_id, until_round=until)
        self._context.audit.append(
            AuditEvent.SILO_SITS_OUT, run=self._run_id, silo=silo_id, until_round=until
        )
        log.warning("silo_sits_out", run=self._run_id, silo=silo_id, round=until)

    def missed_training(self, place: Place, attempt: int, silo_ids: Collection[str]) -> None:
        """Count those who are alive and let a task's deadline pass without a word."""
        if not silo_ids:
            return
        with self._context.store.transaction():
            self.count(place, attempt, dict.fromkeys(silo_ids, Phase.TRAINING))
        self.show(silo_ids)

    def took_part(self, round_number: int, silo_ids: Collection[str]) -> None:
        """Begin anew for those who were in a round's last sum and left no phase waiting."""
        self._table.took_part(self._run_id, silo_ids, round_number)

    def sitting_out(self, round_number: int) -> frozenset[str]:
        """Who is not asked in a round; whose time is over is asked again."""
        with self._context.store.transaction():
            self._table.call_back(self._run_id, before_round=round_number)
            return self._table.sitting_out(self._run_id)

    def call_back(self, place: Place, silo_ids: Collection[str]) -> None:
        """Ask everybody again: without them the round has no quorum."""
        with self._context.store.transaction():
            self._table.call_back(self._run_id)
            for silo_id in sorted(silo_ids):
                self._context.audit.append(
                    AuditEvent.SILO_CALLED_BACK,
                    run=self._run_id,
                    round=place.round,
                    step=place.step,
                    silo=silo_id,
                    reason="too few silos without it",
                )
        log.warning("silos_called_back", run=self._run_id, silos=len(silo_ids))

    def show(self, silo_ids: Collection[str]) -> None:
        """Count for the metrics, once it is durable."""
        for silo_id in silo_ids:
            self._context.metrics.silo_dropouts.labels(silo=silo_id).inc()


def dropouts_of_now(store: Store) -> Mapping[str, DropoutRow]:
    """How each silo stands in the run that is driven; those who were never lost are left out."""
    active = store.runs.active()
    return (
        {} if active is None else {row.silo_id: row for row in store.dropouts.list(active.run_id)}
    )


def sitting_out_now(store: Store) -> frozenset[str]:
    """Who sits out of the run that is driven."""
    return frozenset(s for s, row in dropouts_of_now(store).items() if row.out_until_round)
