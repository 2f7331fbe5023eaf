"""Whom a round asks: a policy chooses among those who are there, by what everybody may know.

    all            everybody: nothing is chosen and nothing stored
    random         K of those who are there, drawn uniformly without replacement
    round-robin    the K of them who were asked longest ago

``RoundRobin`` goes by when a silo was asked and not by when it was in a sum, or one that is lost
each time would be asked in every round.

Ordered invariants:

1. A round is chosen for once, before its first task is signed. The choice and its line in the audit
   log are one durable change, and a coordinator that restarts reads it back, so every task of the
   round, of whatever step or attempt, invites its silos or fewer (``server/run/cohorts.py``).
2. A policy sees public facts alone, those of ``PublicFacts`` and ``PublicHistory``, and a stream of
   random numbers that run id, round and plan digest seed, so that it would choose alike again.
3. A choice is of silos that are there, as many as a round needs (``at_least``) or more, and moves
   the round within the plan's ranges. Where fewer are there, and where a policy fails, answers
   something else or takes longer than ``CHOOSE_S``, everybody is asked, and ``why`` says so.
4. t, n_min and the noise follow later, from who is ready. No amplification is claimed: each silo is
   charged for what it takes part in as if it had been asked for certain.

Covered: the above, restarts at any point, policies that are slow while they await. Not covered: a
policy that never awaits, which stops the coordinator; a coordinator that chooses otherwise than its
plan says, which no silo can tell (SECURITY.md).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

import structlog
from pydantic import Field

from federation.plan.plan import Plan
from federation.plan.section import Section
from federation.text import printable
from secagg import bounds, canonical
from server.audit import AuditEvent
from server.context import RunContext
from server.figures import RoundFigures
from server.store.choices import ChoiceRow
from server.store.runs import RunRow

__all__ = [
    "POLICIES",
    "Choice",
    "PastRound",
    "PublicFacts",
    "PublicHistory",
    "Selection",
    "SelectionPolicy",
    "public_draw",
]

log = structlog.get_logger(__name__)

CHOOSE_S: Final = 10.0
"""Longest that a policy may take; every silo of the round waits for it."""
HISTORY: Final = 1024
"""Rounds, and attempts, that a policy is told of at most: the newest."""
MAX_WHY: Final = 200
SELECTION_DOMAIN: Final = "chorale/v2/selection"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicFacts:
    """What is known of one silo that is there."""

    families: tuple[str, ...]
    """Environment families that it declared when it joined."""
    last_seen_unix_s: float
    """Of its last call; 0 for never."""
    lost_in_a_row: int
    """Attempts of this run that it was lost from since it was last in a sum to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRound:
    """What is known of a round that is over or was chosen for."""

    round: int
    """From one."""
    asked: tuple[str, ...] | None
    """Whom it asked; None where it asked everybody without a choice."""
    survivors: tuple[str, ...]
    """Who is in a sum of it."""
    outcome: str
    """As ``RoundFigures.outcome`` of its last step; empty while none is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicHistory:
    """The newest rounds of the run, in order."""

    rounds: tuple[PastRound, ...]

    def last_asked(self) -> dict[str, int]:
        """The newest round that chose each silo; one that was never chosen is left out."""
        return {silo_id: past.round for past in self.rounds for silo_id in past.asked or ()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Whom one round asks."""

    silos: tuple[str, ...]
    """Of those who are there, in ascending order."""
    why: str
    """One public line, for the audit log."""
    ready_deadline_s: int | None = None
    """From each of its tasks to its deadline, within the plan's range; None for the plan's own."""


class SelectionPolicy(ABC):
    """One way to choose; made anew for each run that the coordinator takes up."""

    name: ClassVar[str]
    """What a plan calls it."""
    options: ClassVar[type[Section]] = Section
    """Which keys of the plan's ``[selection]`` it reads."""

    def __init__(self, options: Any) -> None:
        """Take options of the class's own type."""
        self._options = options

    @abstractmethod
    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,
        *,
        at_least: int,
        rng: Random,
    ) -> Choice:
        """Choose at least so many of those who are there, of whom there are as many."""


class All(SelectionPolicy):
    """Everybody."""

    name = "all"

    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,  # noqa: ARG002 - the seam's
        *,
        at_least: int,  # noqa: ARG002
        rng: Random,  # noqa: ARG002
    ) -> Choice:
        """Ask every one of them."""
        return Choice(silos=tuple(sorted(live)), why="everybody")


class Counted(Section):
    """Options of a policy that asks K silos."""

    count: Annotated[int, Field(ge=3, le=200)]
    """K."""


class RandomDraw(SelectionPolicy):
    """K of those who are there, each K of them as likely as any other."""

    name = "random"
    options = Counted
    _options: Counted

    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,  # noqa: ARG002 - the seam's
        *,
        at_least: int,
        rng: Random,
    ) -> Choice:
        """Draw them without replacement."""
        count = min(max(self._options.count, at_least), len(live))
        drawn = rng.sample(sorted(live), count)
        return Choice(silos=tuple(sorted(drawn)), why=f"{count} drawn of {len(live)}")


class RoundRobin(SelectionPolicy):
    """The K who were asked longest ago; of those who are alike, drawn ones."""

    name = "round-robin"
    options = Counted
    _options: Counted

    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,
        *,
        at_least: int,
        rng: Random,
    ) -> Choice:
        """Ask who was never asked first, then who waits longest."""
        asked = past.last_asked()
        count = min(max(self._options.count, at_least), len(live))
        shuffled = rng.sample(sorted(live), len(live))
        turn = sorted(shuffled, key=lambda silo_id: asked.get(silo_id, 0))[:count]
        oldest = asked.get(turn[0], 0)
        since = f"since round {oldest}" if oldest else "from the beginning"
        why = f"{count} of {len(live)} whose turn it is, the first waits {since}"
        return Choice(silos=tuple(sorted(turn)), why=why)


POLICIES: Final[Mapping[str, type[SelectionPolicy]]] = MappingProxyType(
    {policy.name: policy for policy in (All, RandomDraw, RoundRobin)}
)
"""Every policy, by the name that plans have for it."""


def public_draw(run_id: str, round_number: int, plan_sha256: bytes) -> Random:
    """The random numbers of a round's choice, which anybody can make again."""
    seed = canonical.digest(SELECTION_DOMAIN, run_id, round_number, plan_sha256)
    # Public on purpose: nothing is hidden by it, and it must come out the same again.
    return Random(int.from_bytes(seed, "big"))  # noqa: S311


class Selection:
    """The choices of one run."""

    def __init__(self, *, row: RunRow, plan: Plan, context: RunContext) -> None:
        section = plan.selection
        made = POLICIES[section.policy]
        chosen = section.model_dump(include=set(made.options.model_fields))
        self._policy: SelectionPolicy = made(made.options.model_validate(chosen))
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
        return Choice(silos=row.silos, why=row.why, ready_deadline_s=row.ready_deadline_s)

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
        facts, past = self._facts(everybody), self._history()
        there = {silo_id: facts[silo_id] for silo_id in sorted(live) if silo_id in facts}
        rng = public_draw(self._row.run_id, round_number, self._row.plan_sha256)
        choice = await self._asked(there, past, rng)
        if isinstance(choice, str):
            # The audit log says why.
            log.warning("everybody_is_asked", run=self._row.run_id, round=round_number)
            of_all = await All(Section()).choose(facts, past, at_least=self.at_least, rng=rng)
            choice = Choice(silos=of_all.silos, why=f"{of_all.why}: {choice}")
        self._note(round_number, choice)
        return choice

    async def _asked(
        self, live: Mapping[str, PublicFacts], past: PublicHistory, rng: Random
    ) -> Choice | str:
        """The policy's choice, or why there is none."""
        name = self._policy.name
        if len(live) < self.at_least:
            return f"{len(live)} are there, and a round needs {self.at_least}"
        try:
            async with asyncio.timeout(CHOOSE_S):
                choice: object = await self._policy.choose(
                    live, past, at_least=self.at_least, rng=rng
                )
        except TimeoutError:
            return f"{name!r} did not answer within {CHOOSE_S:g} s"
        except Exception:
            # A policy may be anybody's, and a round must not fail with it.
            log.exception("selection_crashed", run=self._row.run_id)
            return f"{name!r} failed: see the coordinator's log"
        if not isinstance(choice, Choice):
            return f"{name!r} answered with no choice"
        unsound = self._unsound(choice, live)
        if unsound:
            return f"{name!r} {unsound}"
        return choice

    def _unsound(self, choice: Choice, live: Mapping[str, PublicFacts]) -> str:
        """Why a choice may not be stored and signed, without a word of it; empty if it may."""
        silos, why, moved = choice.silos, choice.why, choice.ready_deadline_s
        if type(silos) is not tuple or any(silo_id not in live for silo_id in silos):
            return "chose somebody who is not there"
        if not bounds.is_strictly_sorted(silos):
            return "did not name silos once, in ascending order"
        if len(silos) < self.at_least:
            return f"chose {len(silos)}, and a round needs {self.at_least}"
        if type(why) is not str or not 0 < len(why) <= MAX_WHY or printable(why) != why:
            return f"gave no reason of one line and at most {MAX_WHY} characters"
        ranges = self._plan.selection.ranges
        given_s = self._plan.rounds.ready_deadline_s
        least, most = (given_s, given_s) if ranges is None else ranges.ready_deadline_s
        if moved is not None and (type(moved) is not int or not least <= moved <= most):
            return f"moved the ready deadline out of [{least}, {most}]"
        return ""

    def _note(self, round_number: int, choice: Choice) -> None:
        row = ChoiceRow(
            run_id=self._row.run_id,
            round=round_number,
            silos=choice.silos,
            why=choice.why,
            ready_deadline_s=choice.ready_deadline_s,
        )
        moved = choice.ready_deadline_s
        with self._context.store.transaction():
            self._context.store.choices.put(row)
            # Inside: a choice without its line in the audit log is not made.
            self._context.audit.append(
                AuditEvent.SILOS_CHOSEN,
                run=row.run_id,
                round=round_number,
                policy=self._policy.name,
                silos=list(row.silos),
                why=row.why,
                **({} if moved is None else {"ready_deadline_s": moved}),
            )

    def _facts(self, silo_ids: Collection[str]) -> dict[str, PublicFacts]:
        store, last_seen = self._context.store, self._context.liveness.last_seen
        families = {row.silo_id: row.families for row in store.silos.list()}
        lost = {row.silo_id: row.in_a_row for row in store.dropouts.list(self._row.run_id)}
        return {
            silo_id: PublicFacts(
                families=families.get(silo_id, ()),
                last_seen_unix_s=last_seen(silo_id),
                lost_in_a_row=lost.get(silo_id, 0),
            )
            for silo_id in sorted(silo_ids)
        }

    def _history(self) -> PublicHistory:
        store, run_id = self._context.store, self._row.run_id
        asked = {row.round: row.silos for row in store.choices.newest(run_id, HISTORY)}
        over: dict[int, list[RoundFigures]] = {}
        for row in store.rounds.newest(run_id, HISTORY):
            if row.outcome:
                over.setdefault(row.round, []).append(RoundFigures.from_json(row.figures_json))
        return PublicHistory(
            rounds=tuple(
                _past(number, asked.get(number), over.get(number, ()))
                for number in sorted(asked.keys() | over.keys())
            )
        )


def _past(number: int, asked: tuple[str, ...] | None, steps: Sequence[RoundFigures]) -> PastRound:
    survivors = {silo_id for figures in steps for silo_id in figures.survivors}
    return PastRound(
        round=number,
        asked=asked,
        survivors=tuple(sorted(survivors)),
        outcome=steps[-1].outcome if steps else "",
    )
