"""Whom a round asks: a policy chooses among those who are there, by what everybody may know.

The policies are in ``federation/selection``; what an advisor is asked, in ``advised.py``.

Ordered invariants:

1. A round is chosen for once, before its first task is signed. What the choice follows from is
   durable before anybody is asked, so that a restart in between decides alike. The choice and its
   line in the audit log are one durable change, and a coordinator that restarts reads it back, so
   every task of the round, of whatever step or attempt, invites its silos or fewer
   (``server/run/cohorts.py``).
2. A policy sees public facts alone, those of ``PublicFacts`` and ``PublicHistory``, and a stream of
   random numbers that run id, round and plan digest seed, so that it would choose alike again.
   ``chorale audit decisions`` writes them down, and anybody can (``chorale-lab replay-decisions``).
3. A choice is of silos that are there, as many as a round needs (``at_least``) or more, and moves
   the round within the plan's ranges. Where fewer are there, and where a policy fails, answers
   something else or takes longer than it may, everybody is asked, and ``why`` says so.
4. Where the plan lets rounds ask everybody alone (``[selection]`` without a count), a choice of
   fewer is refused as well.
5. t, n_min and the noise follow later, from who is ready. No amplification is claimed: each silo is
   charged for what it takes part in as if it had been asked for certain.

Covered: the above, restarts at any point, policies that are slow while they await. Not covered: a
policy that never awaits, which stops the coordinator; a coordinator that chooses otherwise than its
plan says, which no silo can tell (SECURITY.md).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from federation.membership.facts import SiloFacts
from federation.plan.plan import Plan
from federation.selection.decide import ADVISED, Inputs, decide
from federation.selection.policies import All, Choice, PastRound, PublicFacts, PublicHistory
from federation.text import printable
from ops.logs.logger import get_logger
from secagg import bounds
from secagg.roster import SignedRoster
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import StoreError
from server.figures import RoundFigures
from server.run.advised import Advised
from server.store.choices import ChoiceRow
from server.store.decisions import DecisionRow
from server.store.runs import RunRow

__all__ = ["Selection"]

log = get_logger(__name__)

CHOOSE_S: Final = 10.0
"""Longest that a policy may take which asks nobody; every silo of the round waits for it."""
ROUNDS_TOLD: Final = 16
"""Rounds that a policy is told of in full: the newest. Of earlier ones it knows whom they chose."""
HISTORY: Final = 1024
"""Rounds, and attempts, that are looked at for it: the newest."""
MAX_WHY: Final = 600


class Selection:
    """The choices of one run."""

    def __init__(
        self, *, row: RunRow, plan: Plan, roster: SignedRoster, context: RunContext
    ) -> None:
        self._advised = Advised(
            row=row, plan=plan, colluding=roster.roster.colluding, context=context
        )
        self._plan = plan
        self._row = row
        self._context = context
        self.at_least = plan.groups * plan.rounds.ready_quorum(plan.secure_aggregation.n_min)
        """Silos without whom the sums of a round cannot be made."""

    @property
    def chooses(self) -> bool:
        """Whether the plan has rounds chosen for; otherwise they ask everybody."""
        return self._plan.selection.policy != All.name

    def made(self, round_number: int) -> Choice | None:
        """The choice of a round as it is stored; None where there is none."""
        if not self.chooses:
            return None
        row = self._context.store.choices.of_round(self._row.run_id, round_number)
        if row is None:
            return None
        return Choice(
            silos=row.silos,
            why=row.why,
            ready_deadline_s=row.ready_deadline_s,
            local_epochs=row.local_epochs,
            stop=row.stop,
            diagnose=row.diagnose,
        )

    async def make(
        self, round_number: int, live: Collection[str], everybody: Collection[str]
    ) -> Choice:
        """Choose for a round, durably; a choice that was made stays.

        ``live`` are those who are there and may be asked, ``everybody`` those whom a round asks
        without a choice.

        Raises:
            StoreError: The database failed; the choice was not made, or is found by the next call.
        """
        made = self.made(round_number)
        if made is not None:
            return made
        there = self._facts(live)
        choice: Choice | str = f"{len(there)} are there, and a round needs {self.at_least}"
        if len(there) >= self.at_least:
            choice = await self._asked(self._inputs(round_number, there))
        if isinstance(choice, str):
            # The audit log says why.
            log.warning("everybody_is_asked", run=self._row.run_id, round=round_number)
            choice = Choice(silos=tuple(sorted(everybody)), why=f"everybody: {choice}")
        self._note(round_number, choice)
        return choice

    def _inputs(self, round_number: int, live: Mapping[str, PublicFacts]) -> Inputs:
        """What the choice follows from, durable; what an earlier process began with stays."""
        decisions, run_id = self._context.store.decisions, self._row.run_id
        begun = decisions.of_round(run_id, round_number)
        if begun is not None:
            return Inputs.from_json(begun.inputs)
        inputs = Inputs(
            run_id=run_id,
            plan_sha256=self._row.plan_sha256.hex(),
            section=self._plan.selection,
            at_least=self.at_least,
            live=dict(live),
            past=self._history(round_number),
        )
        decisions.begin(DecisionRow(run_id=run_id, round=round_number, inputs=inputs.to_json()))
        return inputs

    async def _asked(self, inputs: Inputs) -> Choice | str:
        """What the policy chooses, or why there is no choice."""
        name = self._plan.selection.policy
        limit_s = CHOOSE_S + (self._advised.longest_s if name == ADVISED else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                if name == ADVISED:
                    choice: object = await self._advised.choose(inputs)
                else:
                    choice = await decide(inputs)
        except TimeoutError:
            return f"{name!r} did not answer within {limit_s:g} s"
        except StoreError:
            raise
        except Exception:
            # A round must not fail with a policy.
            log.exception("selection_crashed", run=self._row.run_id)
            return f"{name!r} failed: see the coordinator's log"
        if not isinstance(choice, Choice):
            return f"{name!r} answered with no choice"
        unsound = self._unsound(choice, inputs.live)
        if unsound:
            return f"{name!r} {unsound}"
        return choice

    def _unsound(self, choice: Choice, live: Mapping[str, PublicFacts]) -> str:
        """Why a choice may not be stored and signed, without a word of it; empty if it may."""
        silos, why = choice.silos, choice.why
        if type(silos) is not tuple or any(silo_id not in live for silo_id in silos):
            return "chose somebody who is not there"
        if not bounds.is_strictly_sorted(silos):
            return "did not name silos once, in ascending order"
        if len(silos) < self.at_least:
            return f"chose {len(silos)}, and a round needs {self.at_least}"
        if len(silos) < len(live) and not self._plan.selection.varies:
            return f"chose {len(silos)} of {len(live)}, and rounds of this plan ask everybody"
        if type(why) is not str or not 0 < len(why) <= MAX_WHY or printable(why) != why:
            return f"gave no reason of one line and at most {MAX_WHY} characters"
        return self._moved_too_far(choice)

    def _moved_too_far(self, choice: Choice) -> str:
        ranges = self._plan.selection.ranges
        for name in ("ready_deadline_s", "local_epochs"):
            value = getattr(choice, name)
            given = None if ranges is None else getattr(ranges, name)
            if value is None:
                continue
            if given is None or type(value) is not int or not given[0] <= value <= given[1]:
                return f"moved {name} out of the plan's range"
        return ""

    def _note(self, round_number: int, choice: Choice) -> None:
        row = ChoiceRow(
            run_id=self._row.run_id,
            round=round_number,
            silos=choice.silos,
            why=choice.why,
            ready_deadline_s=choice.ready_deadline_s,
            local_epochs=choice.local_epochs,
            stop=choice.stop,
            diagnose=choice.diagnose,
        )
        moved = {
            "ready_deadline_s": choice.ready_deadline_s,
            "local_epochs": choice.local_epochs,
            "stop": choice.stop or None,
            "diagnose": choice.diagnose or None,
            **self._advised.digests(round_number),
        }
        with self._context.store.transaction():
            self._context.store.choices.put(row)
            # Inside: a choice without its line in the audit log is not made.
            self._context.audit.append(
                AuditEvent.SILOS_CHOSEN,
                run=row.run_id,
                round=round_number,
                policy=self._plan.selection.policy,
                silos=list(row.silos),
                why=row.why,
                **{name: value for name, value in moved.items() if value is not None},
            )

    def _facts(self, silo_ids: Collection[str]) -> dict[str, PublicFacts]:
        store, context = self._context.store, self._context
        families = {row.silo_id: row.families for row in store.silos.list()}
        lost = {row.silo_id: row.in_a_row for row in store.dropouts.list(self._row.run_id)}
        return {
            silo_id: PublicFacts(
                families=families.get(silo_id, ()),
                last_seen_unix_s=context.liveness.last_seen(silo_id),
                lost_in_a_row=lost.get(silo_id, 0),
                published=context.facts.of(silo_id) or SiloFacts(),
            )
            for silo_id in sorted(silo_ids)
        }

    def _history(self, round_number: int) -> PublicHistory:
        store, run_id = self._context.store, self._row.run_id
        asked = {row.round: row.silos for row in store.choices.newest(run_id, HISTORY)}
        over: dict[int, list[RoundFigures]] = {}
        for row in store.rounds.newest(run_id, HISTORY):
            if row.outcome:
                over.setdefault(row.round, []).append(RoundFigures.from_json(row.figures_json))
        rounds = tuple(
            _past(number, asked.get(number), over.get(number, ()))
            for number in sorted(asked.keys() | over.keys())
        )
        return PublicHistory(
            rounds=rounds,
            number=round_number,
            planned=self._plan.rounds.count,
            now_unix_s=self._context.clock(),
            ready_deadline_s=self._plan.rounds.ready_deadline_s,
        ).newest(ROUNDS_TOLD)


def _past(number: int, asked: tuple[str, ...] | None, steps: Sequence[RoundFigures]) -> PastRound:
    survivors = {silo_id for figures in steps for silo_id in figures.survivors}
    judged = [figures.success for figures in steps if figures.success]
    # Families weigh alike; the noise of each is its own.
    found = [] if not judged else list(judged[-1].values())
    mean = sum(value for value, _ in found) / len(found) if found else math.nan
    error = math.hypot(*(error for _, error in found)) / len(found) if found else math.nan
    return PastRound(
        round=number,
        asked=asked,
        survivors=tuple(sorted(survivors)),
        outcome=steps[-1].outcome if steps else "",
        seconds=sum(sum(figures.timings_s.values()) for figures in steps),
        upload_bytes=sum(figures.upload_bytes for figures in steps),
        success=mean if math.isfinite(mean) else None,
        success_error=error if math.isfinite(error) else None,
    )
