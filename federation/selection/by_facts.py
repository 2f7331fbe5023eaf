"""Policies that go by what silos publish of themselves (``federation/membership/facts.py``).

    power-of-choice    d candidates drawn uniformly; of them the K that can begin soonest
    oort               most of K drawn by utility from the best, the rest from those never asked

As published, both go by a silo's loss, which under secure aggregation nobody outside it knows, and
which would tell through who is asked. Here they go by the system alone; the forms with a loss are
for simulated silos (``lab``).

``readiness`` is a number in (0, 1] for what a silo published; what it did not publish counts as in
between, so that silence neither wins nor loses. Its factors ::

    1 / (1 + queue)                                 jobs before this one; 1/2 if not published
    1/4, 1/2, 3/4, 1 for none, some, most, all      of its accelerators free; 1/2 if not published
    (deadline / wait)²                              where it starts later than the deadline lets it
    1/100                                           where it says that it is down

and Oort's utility is readiness + sqrt(0.1 ln t / last asked), its term for silos that were asked
long ago (Lai et al. 2021, algorithm 1; constants as in K-Agent's code).

Covered: d > K, so that the candidates' order counts; memory of who was asked, which is the run's
history and outlives a restart; silos that publish nothing, or all the same. Not covered: silos
that lie, who are asked more or less often and gain nothing else by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Annotated, Final

from pydantic import Field

from federation.membership.facts import Availability, FreeGpu, SiloFacts
from federation.selection.policies import (
    Choice,
    Counted,
    PublicFacts,
    PublicHistory,
    SelectionPolicy,
)

__all__ = ["Oort", "PowerOfChoice", "readiness"]

FREE: Final = {FreeGpu.NONE: 0.25, FreeGpu.SOME: 0.5, FreeGpu.MOST: 0.75, FreeGpu.ALL: 1.0}
UNKNOWN: Final = 0.5
DOWN: Final = 0.01
CUT_OFF: Final = 0.95
"""Of the utility of the last one that would be exploited: who lies above may be drawn."""


def readiness(facts: SiloFacts, *, now_unix_s: float, ready_deadline_s: int) -> float:
    """How soon a silo can work, by its own word; in (0, 1]."""
    found = UNKNOWN if facts.queue is None else 1 / (1 + facts.queue)
    found *= UNKNOWN if facts.free_gpu is None else FREE[facts.free_gpu]
    if facts.availability is Availability.DOWN:
        found *= DOWN
    if facts.earliest_start_unix_s is not None:
        wait_s = facts.earliest_start_unix_s - now_unix_s
        if wait_s > ready_deadline_s:
            found *= (ready_deadline_s / wait_s) ** 2
    return found


def _readiness(live: Mapping[str, PublicFacts], past: PublicHistory) -> dict[str, float]:
    now_unix_s, deadline_s = past.now_unix_s, past.ready_deadline_s
    return {
        silo_id: readiness(facts.published, now_unix_s=now_unix_s, ready_deadline_s=deadline_s)
        for silo_id, facts in live.items()
    }


class Candidates(Counted):
    """Options of power-of-choice."""

    candidates: Annotated[int, Field(ge=4, le=200)]
    """d: silos that are drawn, of whom K are asked."""


class PowerOfChoice(SelectionPolicy):
    """Of d drawn ones the K that can begin soonest."""

    name = "power-of-choice"
    options = Candidates
    _options: Candidates

    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,
        *,
        at_least: int,
        rng: Random,
    ) -> Choice:
        """Draw the candidates and keep the best; of those who are alike, drawn ones."""
        count = self._options.asked(len(live), past, at_least)
        among = min(max(self._options.candidates, count), len(live))
        drawn = rng.sample(sorted(live), among)
        ready = _readiness(live, past)
        best = sorted(drawn, key=lambda silo_id: -ready[silo_id])[:count]
        why = f"{count} that can begin soonest, of {among} drawn of {len(live)}"
        return Choice(silos=tuple(sorted(best)), why=why)


class Exploring(Counted):
    """Options of Oort."""

    explore: Annotated[float, Field(ge=0, le=1)] = 0.2
    """ε: share of K that is drawn from silos that were never asked."""


class Oort(SelectionPolicy):
    """By utility, with a share of those who were never asked."""

    name = "oort"
    options = Exploring
    _options: Exploring

    async def choose(
        self,
        live: Mapping[str, PublicFacts],
        past: PublicHistory,
        *,
        at_least: int,
        rng: Random,
    ) -> Choice:
        """Exploit ⌈(1 − ε) K⌉ of those who were asked before, explore with the others."""
        count, asked = self._options.asked(len(live), past, at_least), past.last_asked()
        known = sorted(silo_id for silo_id in live if silo_id in asked)
        new = sorted(silo_id for silo_id in live if silo_id not in asked)
        exploited = min(math.ceil((1 - self._options.explore) * count), len(known))
        explored = min(count - exploited, len(new))
        # Where too few are new, more of the known are asked; there are as many as K in all.
        exploited = count - explored
        utility = {
            silo_id: ready + math.sqrt(0.1 * math.log(past.number) / asked[silo_id])
            for silo_id, ready in _readiness({s: live[s] for s in known}, past).items()
        }
        chosen = self._exploit(utility, exploited, rng) + rng.sample(new, explored)
        why = f"{count} of {len(live)}: {exploited} by utility, {explored} that were never asked"
        return Choice(silos=tuple(sorted(chosen)), why=why)

    def _exploit(self, utility: Mapping[str, float], count: int, rng: Random) -> list[str]:
        """Draw so many from those near the cut-off or above, as likely as they are useful."""
        if not count:
            return []
        last = sorted(utility.values(), reverse=True)[count - 1]
        left = {s: utility[s] for s in sorted(utility) if utility[s] >= CUT_OFF * last}
        drawn: list[str] = []
        while len(drawn) < count:
            silo_id = rng.choices(list(left), weights=list(left.values()))[0]
            drawn.append(silo_id)
            del left[silo_id]
        return drawn
