"""How a round's silos are chosen: the seam that policies are written to, and the plain ones.

    all            everybody: nothing is chosen and nothing stored
    random         K of those who are there, drawn uniformly without replacement
    round-robin    the K of them who were asked longest ago

``by_facts.py`` has those that go by published facts, ``decide.py`` what a proposal changes. K is
the plan's ``count``, or moves with the rounds by its ``schedule``.

``RoundRobin`` goes by when a silo was asked and not by when it was in a sum, or one that is lost
each time would be asked in every round.

Covered: the types, K of a round, three policies. Not covered: what becomes of a choice, and of a
policy that fails (``server/run/selection.py``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Annotated, Any, ClassVar

from pydantic import Field

from federation.membership.facts import SiloFacts
from federation.plan.section import Section
from federation.plan.tables import SelectionScheduleSection

__all__ = [
    "All",
    "Choice",
    "Counted",
    "PastRound",
    "PublicFacts",
    "PublicHistory",
    "RandomDraw",
    "RoundRobin",
    "SelectionPolicy",
    "asked_in",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicFacts:
    """What is known of one silo that is there."""

    families: tuple[str, ...]
    """Environment families that it declared when it joined."""
    last_seen_unix_s: float
    """Of its last call; 0 for never."""
    lost_in_a_row: int
    """Attempts of this run that it was lost from since it was last in a sum to its end."""
    published: SiloFacts = field(default_factory=SiloFacts)
    """What it published of itself lately; nobody checks whether it is true."""


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
    seconds: float = 0.0
    """From its first task to its end; 0 while it is not over."""
    upload_bytes: int = 0
    """Of all its steps and attempts."""
    success: float | None = None
    """Mean success over the plan's families, out of the sum; None where none was summed."""
    success_error: float | None = None
    """Standard error of that mean's noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicHistory:
    """The newest rounds of the run, in order, and which one is chosen for now."""

    rounds: tuple[PastRound, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    """The newest round that chose each silo, of those before these rounds."""
    number: int = 1
    """The round that is chosen for, from one."""
    planned: int = 1
    """Rounds of the plan."""
    now_unix_s: float = 0.0
    """The coordinator's clock."""
    ready_deadline_s: int = 3600
    """From a task to its deadline, as the plan has it."""

    def last_asked(self) -> dict[str, int]:
        """The newest round that chose each silo; one that was never chosen is left out."""
        newest = {silo_id: past.round for past in self.rounds for silo_id in past.asked or ()}
        return {**self.before, **newest}

    def newest(self, count: int) -> PublicHistory:
        """The same with so many rounds at most, and still whom the earlier ones chose."""
        if len(self.rounds) <= count:
            return self
        known = {silo_id for past in self.rounds[-count:] for silo_id in past.asked or ()}
        earlier = {s: number for s, number in self.last_asked().items() if s not in known}
        return replace(self, rounds=self.rounds[-count:], before=earlier)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Whom one round asks, and what its plan's ranges let it move."""

    silos: tuple[str, ...]
    """Of those who are there, in ascending order."""
    why: str
    """One public line, for the audit log."""
    ready_deadline_s: int | None = None
    """From each of its tasks to its deadline, within the plan's range; None for the plan's own."""
    local_epochs: int | None = None
    """How often its silos play and train, within the plan's range; None for the plan's own."""
    stop: bool = False
    """Whether the run is paused after the round, for an admin to say what follows."""
    diagnose: bool = False
    """Whether the sites are to be asked for a diagnosis; it moves nothing."""


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


def asked_in(
    count: int, schedule: SelectionScheduleSection | None, number: int, planned: int
) -> int:
    """K of a round, from one, of so many planned.

    Decay is DEEV's: K_t = max(to, ⌈K (1 − rate)^(t−1)⌉). Growth goes in equal steps from ``count``
    in the first round to ``to`` in the last, as OCEAN found that devices do more good late
    (Jarczewski et al. 2026, appendix).
    """
    if schedule is None:
        return count
    if schedule.rate is not None:
        # To nine digits: a K that is a whole number but for rounding is not one more.
        return max(schedule.to, math.ceil(round(count * (1 - schedule.rate) ** (number - 1), 9)))
    share = (number - 1) / max(planned - 1, 1)
    return round(count + (schedule.to - count) * min(share, 1.0))


class Counted(Section):
    """Options of a policy that asks K silos."""

    count: Annotated[int, Field(ge=3, le=200)]
    """K, of the first round where a schedule moves it."""
    schedule: SelectionScheduleSection | None = None
    """How K moves with the rounds."""

    def asked(self, live: int, past: PublicHistory, at_least: int) -> int:
        """K of the round that is chosen for, of so many who are there."""
        count = asked_in(self.count, self.schedule, past.number, past.planned)
        return min(max(count, at_least), live)


class RandomDraw(SelectionPolicy):
    """K of those who are there, each K of them as likely as any other."""

    name = "random"
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
        """Draw them without replacement."""
        count = self._options.asked(len(live), past, at_least)
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
        count = self._options.asked(len(live), past, at_least)
        shuffled = rng.sample(sorted(live), len(live))
        turn = sorted(shuffled, key=lambda silo_id: asked.get(silo_id, 0))[:count]
        oldest = asked.get(turn[0], 0)
        since = f"since round {oldest}" if oldest else "from the beginning"
        why = f"{count} of {len(live)} whose turn it is, the first waits {since}"
        return Choice(silos=tuple(sorted(turn)), why=why)
