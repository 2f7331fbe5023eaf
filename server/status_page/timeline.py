"""Rounds as bars: how long each took, phase by phase, on one scale; a table that is also a drawing.

Invariants:

1. One row a round, the newest first, with every attempt in it; an attempt that was lost is drawn
   thinner than the one that counts.
2. What went as it should is said by the bar alone; words stand only where it did not.

Covered: rounds of several steps, lost attempts, skipped rounds, rollbacks, the round that is under
way. Not covered: rounds before the newest ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from server.figures import Phase
from server.status_page import words
from server.status_page.markup import Child, Html, element, joined, table
from server.status_page.picture import Current, Release

__all__ = ["legend", "timeline"]

WIDTH: Final = 1000.0
LEAST: Final = 3.0
"""The narrowest part that an eye still finds."""
DRAWN: Final = tuple(phase.value for phase in Phase if phase is not Phase.FINISHED)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    number: int
    releases: tuple[Release, ...]

    @property
    def begin_unix_s(self) -> float:
        return next((one.begin_unix_s for one in self.releases if one.spans), 0.0)

    @property
    def length_s(self) -> float:
        ends = [one.spans[-1].end_unix_s for one in self.releases if one.spans]
        return max(0.0, ends[-1] - self.begin_unix_s) if ends else 0.0


def timeline(
    releases: Sequence[Release], current: Current | None, *, now_unix_s: float, most: int
) -> Html:
    """Draw the newest rounds, at most ``most``, from releases with the oldest first.

    ``current`` is what the run does now; None if it is not driven.
    """
    rounds = [
        _Round(number=number, releases=tuple(members))
        for number, members in groupby(releases, key=lambda one: one.round)
    ][-most:]
    longest_s = max((one.length_s for one in rounds), default=0.0) or 1.0
    rows = [_row(one, current, longest_s, now_unix_s) for one in reversed(rounds)]
    return table(
        "Rounds, newest first, phase by phase",
        ("Round", "Began", "Phases", "Took"),
        rows,
        class_="timeline",
    )


def legend() -> Html:
    """What the colours mean."""
    return element(
        "ul",
        *(
            element("li", element("span", "", class_=f"swatch {name}"), element("code", name))
            for name in DRAWN
        ),
        class_="legend",
        aria_label="Colours of the phases",
    )


def _row(
    one: _Round, current: Current | None, longest_s: float, now_unix_s: float
) -> tuple[Child, ...]:
    live = current is not None and current.round == one.number
    notes = [*_notes(one)]
    if live and current is not None and current.phase != Phase.FINISHED.value:
        notes.insert(0, joined(("now: ", element("code", current.phase))))
    begin = one.begin_unix_s
    began = element(
        "time",
        words.clock(begin, now_unix_s).removesuffix(" UTC"),
        datetime=words.stamp(begin),
        title=words.ago(begin, now_unix_s),
    )
    drawn = joined(
        (
            _bar(one, longest_s) if one.length_s or live else None,
            element("p", *_between(notes), class_="notes") if notes else None,
        )
    )
    return (
        element("span", str(one.number), class_="live" if live else None),
        began if begin else words.UNKNOWN,
        drawn,
        words.took(one.length_s) if one.length_s or live else words.UNKNOWN,
    )


def _bar(one: _Round, longest_s: float) -> Html:
    parts: list[Child] = []
    for release in one.releases:
        counts = max((span.attempt for span in release.spans), default=0)
        for span in release.spans:
            lost = span.attempt != counts
            said = f"{span.phase} {words.took(span.length_s)}"
            step = f"step {release.step + 1}: " if len(one.releases) > 1 else ""
            parts.append(
                element(
                    "rect",
                    element("title", f"{step}{said}{', lost' if lost else ''}"),
                    class_=span.phase if span.phase in DRAWN else "other",
                    x=WIDTH * (span.begin_unix_s - one.begin_unix_s) / longest_s,
                    y=3 if lost else 0,
                    width=max(LEAST, WIDTH * span.length_s / longest_s - 1),
                    height=4 if lost else 10,
                )
            )
    title = f"Round {one.number} took {words.took(one.length_s)}"
    return element(
        "svg",
        element("title", title),
        element("desc", _in_words(one)),
        *parts,
        class_="bar",
        viewBox="0 0 1000 10",
        preserveAspectRatio="none",
        role="img",
    )


def _in_words(one: _Round) -> str:
    spans = dict.fromkeys(DRAWN, 0.0)
    for release in one.releases:
        for span in release.spans:
            spans[span.phase] = spans.get(span.phase, 0.0) + span.length_s
    return ", ".join(f"{name} {words.took(spent)}" for name, spent in spans.items() if spent > 0)


def _notes(one: _Round) -> list[Child]:
    """What did not go as it should."""
    notes: list[Child] = []
    restored = [release.restored_round for release in one.releases]
    if restored[-1] is not None:
        notes.append(element("span", f"rolled back to round {restored[-1]}", class_="pill watch"))
    for outcome, level in (("skipped", "watch"), ("quarantined", "bad"), ("bisected", "watch")):
        ended_so = sum(release.outcome == outcome for release in one.releases)
        if ended_so:
            of = f" {ended_so} of {len(one.releases)} steps" if len(one.releases) > 1 else ""
            notes.append(element("span", f"{outcome}{of}", class_=f"pill {level}"))
    again = sum(release.attempts - 1 for release in one.releases)
    if again:
        notes.append(f"{again} lost {'attempt' if again == 1 else 'attempts'}")
    lost = sorted({silo for release in one.releases for silo in release.lost})
    if lost:
        kept = min(release.survivors for release in one.releases if release.lost)
        cohort = max(release.cohort for release in one.releases if release.lost)
        notes.append(f"{kept} of {cohort} in the sum; lost {words.named(lost)}")
    return notes


def _between(notes: Sequence[Child]) -> list[Child]:
    """A dot between two notes."""
    spread: list[Child] = []
    for note in notes:
        spread += [" · ", note] if spread else [note]
    return spread
