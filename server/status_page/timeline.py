"""Rounds as bars: how long each took, phase by phase, on one scale; a table that is also a drawing.

Invariants:

1. One row a round, the newest first, with every attempt in it; an attempt that was lost is drawn
   thinner than the one that counts.
2. What went as it should is said by the bar alone; words stand only where it did not.

Covered: rounds of several steps, lost attempts, skipped rounds, rollbacks, the round that is under
way. Not covered: rounds before the newest ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from server.figures import Phase
from server.status_page import words
from server.status_page.picture import Release

__all__ = ["DRAWN", "Note", "Part", "Round", "timeline"]

WIDTH: Final = 1000.0
LEAST: Final = 3.0
"""The narrowest part that an eye still finds."""
DRAWN: Final = tuple(phase.value for phase in Phase if phase is not Phase.FINISHED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One phase of one attempt, as a rectangle in a drawing that is 1000 wide and 10 high."""

    phase: str
    """``other`` if it has no colour."""
    said: str
    x: float
    width: float
    lost: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What did not go as it should."""

    said: str
    level: str = ""
    """Of the pill that it is in; empty for running text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One row."""

    number: int
    begin_unix_s: float
    """0 if it has no phase."""
    length_s: float
    parts: tuple[Part, ...]
    in_words: str
    notes: tuple[Note, ...]


def timeline(releases: Sequence[Release], *, most: int) -> tuple[Round, ...]:
    """The newest rounds, newest first and at most ``most``, of releases with the oldest first."""
    grouped = [tuple(members) for _, members in groupby(releases, key=lambda one: one.round)]
    rounds = [(members, *_lasted(members)) for members in reversed(grouped[-most:])]
    longest_s = max((length_s for _, _, length_s in rounds), default=0.0) or 1.0
    return tuple(
        Round(
            number=members[0].round,
            begin_unix_s=begin,
            length_s=length_s,
            parts=tuple(_parts(members, begin, longest_s)),
            in_words=_in_words(members),
            notes=tuple(_notes(members)),
        )
        for members, begin, length_s in rounds
    )


def _lasted(members: Sequence[Release]) -> tuple[float, float]:
    """When a round began, and how long it took so far."""
    begun = [one for one in members if one.spans]
    if not begun:
        return 0.0, 0.0
    begin = begun[0].begin_unix_s
    return begin, max(0.0, begun[-1].spans[-1].end_unix_s - begin)


def _parts(members: Sequence[Release], begin_unix_s: float, longest_s: float) -> Iterator[Part]:
    for release in members:
        counts = max((span.attempt for span in release.spans), default=0)
        step = f"step {release.step + 1}: " if len(members) > 1 else ""
        for span in release.spans:
            lost = span.attempt != counts
            took = words.took(span.length_s)
            yield Part(
                phase=span.phase if span.phase in DRAWN else "other",
                said=f"{step}{span.phase} {took}{', lost' if lost else ''}",
                x=WIDTH * (span.begin_unix_s - begin_unix_s) / longest_s,
                width=max(LEAST, WIDTH * span.length_s / longest_s - 1),
                lost=lost,
            )


def _in_words(members: Sequence[Release]) -> str:
    spans = dict.fromkeys(DRAWN, 0.0)
    for release in members:
        for span in release.spans:
            spans[span.phase] = spans.get(span.phase, 0.0) + span.length_s
    return ", ".join(f"{name} {words.took(spent)}" for name, spent in spans.items() if spent > 0)


def _notes(members: Sequence[Release]) -> Iterator[Note]:
    restored = members[-1].restored_round
    if restored is not None:
        yield Note(said=f"rolled back to round {restored}", level="watch")
    for outcome, level in (("skipped", "watch"), ("quarantined", "bad"), ("bisected", "watch")):
        ended_so = sum(release.outcome == outcome for release in members)
        if ended_so:
            of = f" {ended_so} of {len(members)} steps" if len(members) > 1 else ""
            yield Note(said=f"{outcome}{of}", level=level)
    again = sum(release.attempts - 1 for release in members)
    if again:
        yield Note(said=f"{again} lost {'attempt' if again == 1 else 'attempts'}")
    lost = sorted({silo for release in members for silo in release.lost})
    if lost:
        kept = min(release.survivors for release in members if release.lost)
        cohort = max(release.cohort for release in members if release.lost)
        yield Note(said=f"{kept} of {cohort} in the sum; lost {words.named(lost)}")
