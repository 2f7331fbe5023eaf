"""How often each silo of a run was asked, ready, in a sum, lost, and waited for.

    asked        rounds whose newest task invites it and that it did not sit out
    ready        rounds with an attempt whose signed descriptor has it in the cohort
    in sums      rounds whose record names it among the survivors of a sum
    not applied  rounds without its name in the record, and with a sum of it that was opened
    lost         attempts in which a phase waited for it in vain, by phase, of the audit log
    sat out      rounds that were over while it was not asked because of such losses
    waited       seconds of the phases that it was lost in, from when each began until it closed
    present      seconds that the releases took in whose sums it is
    bytes        of its masked uploads that were added to a sum, used or not

Ordered invariants:

1. Read are signed records, tasks and descriptors, who answered which phase, the phases' times, and
   the audit log, after its chain was checked. No message of a silo is opened.
2. What is not known is None and never zero: asked in a run of suite v1, which keeps no tasks.
3. A second is counted once for a silo, however often one phase of an attempt lost it. Where several
   sums of an attempt take turns, a phase's times are those of its first sum, so a loss there is
   counted in ``waits_unknown`` and its seconds are in no sum of seconds.

Covered: restarts, rollbacks, releases of several sums and steps. Not covered: seconds that a silo
which answered in time took before it did, which nobody writes down; drop-outs that a restart of the
coordinator forgot (``server/run/dropouts.py``); bytes of uploads that were never complete.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from federation.audit import lines as audit_lines
from federation.chain.record import AdapterRecord
from server.audit import AuditEvent
from server.figures import STEPS, Phase, RoundFigures
from server.store import Store
from server.store.aggregations import AggregationRow
from server.store.rounds import RoundRow

__all__ = ["Participation", "participation_of"]

PHASES: Final = (Phase.TRAINING, *STEPS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """One silo in one run."""

    silo_id: str
    asked: int | None
    ready: int
    in_sums: int
    not_applied: int
    lost: Mapping[str, int]
    """By phase, in the protocol's order; phases without a loss are absent."""
    sat_out: int
    waited_s: float
    waits_unknown: int
    present_s: float
    upload_bytes: int


@dataclass(kw_only=True, slots=True)
class _Lost:
    """What the audit log says of one silo."""

    lost: Counter[str] = field(default_factory=Counter)
    waited_s: float = 0.0
    waits_unknown: int = 0
    out: set[int] = field(default_factory=set)
    """Rounds that it sat out."""


def participation_of(
    store: Store, run_id: str, records: Sequence[AdapterRecord], audit_log: bytes
) -> tuple[Participation, ...]:
    """Everybody whom the run asked, in ascending order.

    Raises:
        AuditChainError: The audit log is no chain.
    """
    # A crash may have cut the last line, which was never acknowledged.
    audit_log = audit_log[: len(audit_log) - audit_lines.torn_bytes(audit_log)]
    audit_lines.check_chain(audit_log)
    over = {record.round for record in records if record.round}
    # The chain says what is over; the round under way is told when it is.
    aggregations = [row for row in store.aggregations.list(run_id) if row.identity.round in over]
    attempts = [row for row in store.rounds.list(run_id) if row.round in over]
    reading = _Losses(run_id, attempts, aggregations, over)
    for line in _events(audit_log):
        reading.read(*line)
    reading.close()
    losses = reading.found
    invited = _invited(store, run_id, over)
    ready: dict[str, set[int]] = {}
    opened: dict[str, set[int]] = {}
    sent: Counter[str] = Counter()
    for row in aggregations:
        descriptor = row.descriptor.descriptor
        for silo_id in descriptor.cohort:
            ready.setdefault(silo_id, set()).add(row.identity.round)
        for silo_id in row.folded:
            sent[silo_id] += descriptor.length_bytes
        if row.phases_closed == len(STEPS):
            for silo_id in row.survivors:
                opened.setdefault(silo_id, set()).add(row.identity.round)
    summed: dict[str, set[int]] = {}
    present: dict[str, float] = {}
    took = {(row.round, row.step): _seconds(row) for row in attempts if row.outcome}
    for record in records:
        for silo_id in record.survivors:
            summed.setdefault(silo_id, set()).add(record.round)
            present[silo_id] = present.get(silo_id, 0.0) + took.get(record.place, 0.0)
    everybody = sorted({*ready, *summed, *losses, *(invited or {})})
    found = []
    for silo_id in everybody:
        lost = losses.get(silo_id, _Lost())
        # Whoever was let in again in the middle of a round took part in it.
        lost.out -= ready.get(silo_id, set())
        applied = summed.get(silo_id, set())
        found.append(
            Participation(
                silo_id=silo_id,
                asked=None
                if invited is None
                else len(invited.get(silo_id, frozenset()) - lost.out),
                ready=len(ready.get(silo_id, ())),
                in_sums=len(applied),
                not_applied=len(opened.get(silo_id, set()) - applied),
                lost={
                    phase.value: lost.lost[phase.value]
                    for phase in PHASES
                    if lost.lost[phase.value]
                },
                sat_out=len(lost.out),
                waited_s=lost.waited_s,
                waits_unknown=lost.waits_unknown,
                present_s=present.get(silo_id, 0.0),
                upload_bytes=sent[silo_id],
            )
        )
    return tuple(found)


def _seconds(row: RoundRow) -> float:
    return sum(RoundFigures.from_json(row.figures_json).timings_s.values())


def _invited(store: Store, run_id: str, over: set[int]) -> dict[str, set[int]] | None:
    """Rounds whose newest task invites each silo; None where the run keeps no tasks."""
    invited: dict[str, set[int]] = {}
    for number in sorted(over):
        for row in store.tasks.of_round(run_id, number):
            for silo_id in row.task.invited:
                invited.setdefault(silo_id, set()).add(number)
    return invited or None


class _Losses:
    """What the audit log says of the silos that a run lost, read line by line."""

    def __init__(
        self,
        run_id: str,
        attempts: Sequence[RoundRow],
        aggregations: Sequence[AggregationRow],
        over: set[int],
    ) -> None:
        self.found: dict[str, _Lost] = {}
        self._run_id = run_id
        self._over = over
        self._newest = 0
        """Newest round that a line is about."""
        self._phases = {(row.round, row.step, row.attempt): row.phases for row in attempts}
        self._begun: dict[int, float] = {}
        """When each round's first task went out."""
        for row in attempts:
            for time in row.phases:
                begun = self._begun.get(row.round, time.at_unix_s)
                self._begun[row.round] = min(begun, time.at_unix_s)
        identities = [row.identity for row in aggregations]
        self._parts = Counter((each.round, each.step, each.attempt) for each in identities)
        self._until: dict[tuple[object, ...], float] = {}
        """Until when a phase of an attempt was waited for a silo."""
        self._out: dict[str, tuple[int, int]] = {}
        """First and last round that a silo sits out."""
        self._last_lost: dict[str, int] = {}

    def read(self, event: str, at_unix_s: float, details: Mapping[str, Any]) -> None:
        """Take the next line."""
        silo_id = str(details.get("silo", ""))
        if event == AuditEvent.SILO_REINSTATED:
            # An admin lets it take part from the next task on; the line names no round.
            begun = (number for number, at in self._begun.items() if at <= at_unix_s)
            self._ends(silo_id, max(begun, default=0) + 1)
        if details.get("run") != self._run_id:
            return
        number = int(details.get("round", 0))
        self._newest = max(self._newest, number)
        if event == AuditEvent.SILO_DROPPED_OUT and number in self._over:
            place = (number, int(details["step"]), int(details["attempt"]))
            self._dropped(silo_id, place, str(details["phase"]), at_unix_s)
        elif event == AuditEvent.SILO_SITS_OUT and silo_id in self._last_lost:
            first = self._last_lost[silo_id] + 1
            self._ends(silo_id, first)
            self._out[silo_id] = (first, int(details["until_round"]))
        elif event == AuditEvent.SILO_CALLED_BACK:
            self._ends(silo_id, number)

    def close(self) -> None:
        """There is no further line."""
        for silo_id in tuple(self._out):
            self._ends(silo_id, self._newest + 1)

    def _ends(self, silo_id: str, before: int) -> None:
        """It is asked again from the round ``before`` on."""
        if silo_id in self._out:
            first, last = self._out.pop(silo_id)
            passed = range(first, min(last, before - 1) + 1)
            self.found[silo_id].out |= self._over.intersection(passed)

    def _dropped(
        self, silo_id: str, place: tuple[int, int, int], phase: str, at_unix_s: float
    ) -> None:
        lost = self.found.setdefault(silo_id, _Lost())
        lost.lost[phase] += 1
        self._last_lost[silo_id] = place[0]
        times = {time.phase: time.at_unix_s for time in self._phases.get(place, ())}
        if phase not in times or (phase != Phase.TRAINING and self._parts[place] > 1):
            lost.waits_unknown += 1
            return
        key = (silo_id, place, phase)
        begin = max(times[phase], self._until.get(key, times[phase]))
        end = min([at_unix_s, *(time for time in times.values() if time > times[phase])])
        self._until[key] = max(begin, end)
        lost.waited_s += max(0.0, end - begin)


def _events(audit_log: bytes) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    for line in audit_lines.complete_lines(audit_log):
        record = audit_lines.read_record(line)
        yield (
            record["event"],
            dt.datetime.fromisoformat(record["at"]).timestamp(),
            record["details"],
        )
