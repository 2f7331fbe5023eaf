"""Simulated silos: how fast they are, when they are away, whether they answer, what they publish.

    answered after   until it is back, if it is away · its wait · its work       (seconds)
    work             work_s / speed · exp(jitter · N(0, 1)),   speed = exp(speeds · N(0, 1))
    wait             exponential, with a mean of the silo's own, which is exponential around queue_s
    silence          with a chance of the silo's own, uniform from 0 to twice ``drop``
    away             for ``away_h`` hours from an hour of the day of its own, a share of the silos

Everybody is there and can be asked: a site that is away has its daemon running, and its machines
work for others. Work that was begun goes on.

Ordered invariants:

1. Everything is drawn by the seed, the round and the silo's place: all settings of a seed have the
   same silos, and one silo's draws of a round do not depend on whom the round asks.
2. What a truthful silo publishes is so at the time of the choice: its jobs (ten minutes each) are
   the wait that it will have, and whoever is away says so and until when. A silo that lies says up,
   no queue and all free, always. Silent ones say nothing. Nobody says what budget is left.

Covered: the above. Not covered: lies that adapt to what is believed; sites that do not call at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from federation.membership.facts import MAX_QUEUE, Availability, FreeGpu, SiloFacts
from lab.experiment.tables import OrchestrationTable

__all__ = ["DAY_S", "Draw", "Profile", "Word", "answered_after_s", "away_left_s", "draws", "facts"]

DAY_S: Final = 86_400
JOB_S: Final = 600
_HOUR_S: Final = 3600
_MINUTE_S: Final = 60
_PROFILES: Final = 0x5110
_DRAWS: Final = 0xD4A3
_LIE: Final = SiloFacts(availability=Availability.UP, queue=0, free_gpu=FreeGpu.ALL)
_SOME_FREE: Final = 2
"""Jobs up to which some of a silo's accelerators are free."""


class Word(StrEnum):
    """What a silo's published facts are worth."""

    TRUE = "true"
    LIES = "lies"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One silo, for the whole run."""

    work_s: float
    """Its local work in the median round."""
    wait_s: float
    """Its mean wait."""
    drop: float
    """Chance of silence in a round."""
    away_from_h: float
    """Hour of the day at which it begins to be away."""
    away_h: float
    """For how long; 0 for never."""
    word: Word

    @classmethod
    def all_of(cls, table: OrchestrationTable, seed: int, count: int) -> tuple[Profile, ...]:
        """So many silos, by the seed."""
        rng = np.random.default_rng([seed, _PROFILES])
        work = table.work_s * np.exp(-table.speeds * rng.standard_normal(count))
        wait = table.queue_s * rng.exponential(size=count)
        drop = 2 * table.drop * rng.random(count)
        begins = 24 * rng.random(count)
        away = set(rng.permutation(count)[: round(table.away * count)].tolist())
        # A lie of one that is never away says little: those who are away come first.
        order = sorted(rng.permutation(count).tolist(), key=lambda place: place not in away)
        liars = set(order[: table.liars])
        silent = set(order[len(order) - table.silent :])
        return tuple(
            cls(
                work_s=float(work[place]),
                wait_s=float(wait[place]),
                drop=float(drop[place]),
                away_from_h=float(begins[place]),
                away_h=table.away_h if place in away else 0.0,
                word=_word(place, liars=liars, silent=silent),
            )
            for place in range(count)
        )


def _word(place: int, *, liars: Collection[int], silent: Collection[int]) -> Word:
    if place in liars:
        return Word.LIES
    return Word.SILENT if place in silent else Word.TRUE


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One silo in one round, whether or not it is asked."""

    wait_s: float
    """Before its work."""
    work_s: float
    is_silent: bool
    """Whether it drops out."""


def draws(
    table: OrchestrationTable, profiles: Sequence[Profile], seed: int, number: int
) -> tuple[Draw, ...]:
    """Every silo in the round of that number."""
    rng = np.random.default_rng([seed, _DRAWS, number])
    waits = rng.exponential(size=len(profiles))
    jitter = np.exp(table.jitter * rng.standard_normal(len(profiles)))
    chances = rng.random(len(profiles))
    return tuple(
        Draw(
            wait_s=float(profile.wait_s * waits[place]),
            work_s=float(profile.work_s * jitter[place]),
            is_silent=bool(chances[place] < profile.drop),
        )
        for place, profile in enumerate(profiles)
    )


def away_left_s(profile: Profile, now_unix_s: float) -> float:
    """How long it is still away; 0 if it is not."""
    since_h = (now_unix_s / _HOUR_S - profile.away_from_h) % 24
    return max(profile.away_h - since_h, 0.0) * _HOUR_S


def answered_after_s(profile: Profile, draw: Draw, now_unix_s: float) -> float | None:
    """When it is ready, if it is asked now; None for never."""
    if draw.is_silent:
        return None
    return away_left_s(profile, now_unix_s) + draw.wait_s + draw.work_s


def facts(profile: Profile, draw: Draw, now_unix_s: float) -> SiloFacts:
    """What it publishes now."""
    if profile.word is Word.LIES:
        return _LIE
    if profile.word is Word.SILENT:
        return SiloFacts()
    jobs = min(round(draw.wait_s / JOB_S), MAX_QUEUE)
    left_s = away_left_s(profile, now_unix_s)
    if left_s > 0:
        back = math.ceil((now_unix_s + left_s) / _MINUTE_S) * _MINUTE_S
        return SiloFacts(
            availability=Availability.DOWN,
            queue=jobs,
            free_gpu=FreeGpu.NONE,
            earliest_start_unix_s=back,
        )
    return SiloFacts(availability=Availability.UP, queue=jobs, free_gpu=_free(jobs))


def _free(jobs: int) -> FreeGpu:
    if jobs == 0:
        return FreeGpu.ALL
    if jobs == 1:
        return FreeGpu.MOST
    return FreeGpu.SOME if jobs <= _SOME_FREE else FreeGpu.NONE
