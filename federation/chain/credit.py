"""Credit by participation: what rounds changed in success, split among who was in their sums.

A round's figures are about the adapter that it began with. So what round r changed is the success
that the next round with figures tells, less that which r tells itself; the last round that was
applied is measured by nobody.

    line      the applied rounds of which the newest adapter is made, in order: a round with a sum
              is put on it, a skipped, quarantined or bisected one leaves it as it is, and a
              rollback to round K takes it back to what it was at the end of K
    M_j       success with the adapter after j rounds of the line: the mean over the environments,
              and over the rounds that began with it (a rollback makes that several)
    credit    between two adapters that follow each other among those with figures, M_b − M_a is
              split equally among the rounds a+1 … b of the line, a round's part among its releases,
              and a release's among the silos in its sums

Ordered invariants:

1. Compared are the environments whose figures noise hides in none of the rounds that are compared;
   the mean over others would be of other tasks. A round that tells no readable figure is passed
   over, and its change is in that of the rounds around it.
2. The arithmetic is exact, in fractions of the published figures: credits add up to the change from
   the first figure to the last, and shares to one, without a remainder.
3. A credit is a linear combination Σ c_j·M_j, and the noises of different sums are independent. So
   its variance is Σ c_j²·Var M_j. The changes of two rounds that follow each other share a figure:
   adding up *their* variances would count it twice.

Covered: the above, for every mode and for rounds of several releases and sums. Not covered: which
tasks happened to be drawn, and who explored them, which no error here holds; whether a silo's part
of a sum was worth anything, which nobody but the silo can see.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from dp.noise.estimate import Estimate
from dp.noise.figures import BELOW_NOISE, NOT_REPORTED, ratio_below_noise, readable_ratio
from federation.chain.record import AdapterRecord
from federation.errors import ChainError

INITIAL: Final = 0
"""The adapter that the run started from; every other one is called by the round that made it."""
_NOTHING: Final = Fraction(0)


class Figure(NamedTuple):
    """A figure in exact arithmetic."""

    value: Fraction
    variance: Fraction
    """Of its noise."""

    @property
    def estimate(self) -> Estimate:
        """With its standard error."""
        return Estimate(mean=float(self.value), standard_error=math.sqrt(self.variance))


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What rounds that follow each other on the line changed together."""

    rounds: tuple[int, ...]
    """One, or several where those between told no readable figure."""
    change: Figure
    """In success, as a ratio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloCredit:
    """What one silo is credited with by the convention."""

    silo_id: str
    rounds: tuple[int, ...]
    """Rounds of the line in whose sums it is."""
    share: Fraction
    """Of the line's sums; all silos' add up to one."""
    credit: Figure | None
    """None where nothing can be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """What a run's rounds changed, and who is credited with it."""

    line: tuple[int, ...]
    """Applied rounds of which the newest adapter is made."""
    undone: tuple[int, ...]
    """Applied rounds that a rollback took back: they credit nobody."""
    unmeasured: tuple[int, ...]
    """Rounds of the line before the first figure and after the last: they credit nobody."""
    environments: tuple[str, ...]
    """Whose success is compared."""
    begin: Figure | None
    """Success at the first figure of the line."""
    end: Figure | None
    """At the last."""
    changes: tuple[Change, ...]
    silos: tuple[SiloCredit, ...]
    """Whoever is in a sum of the line, in ascending order."""
    why_none: str
    """Why there is nothing to compare; empty where there is."""

    @property
    def change(self) -> Figure | None:
        """From the first figure to the last: what the credits add up to."""
        if self.begin is None or self.end is None:
            return None
        return Figure(self.end.value - self.begin.value, self.begin.variance + self.end.variance)


def credit_of(
    records: Sequence[AdapterRecord], success: Mapping[int, Mapping[str, Estimate]]
) -> Credit:
    """Credit whoever is in the sums of a verified chain.

    Args:
        records: All of them, in order.
        success: By round what the sum of its first release tells, by environment; rounds without
            such a sum are absent.

    Raises:
        ChainError: If a rollback goes back to a round that is not there.
    """
    line, undone, began_with = _line(records)
    places = {number: place for place, number in enumerate(line)}
    told = {number: success[number] for number in success if began_with.get(number) in places}
    readable = {
        number: {
            family for family, ratio in ratios.items() if not math.isnan(readable_ratio(ratio))
        }
        for number, ratios in told.items()
    }
    readable = {number: families for number, families in readable.items() if families}
    shared = sorted(set.intersection(*readable.values())) if readable else []
    measured: dict[int, list[Figure]] = {}
    for number in sorted(readable) if shared else ():
        measured.setdefault(places[began_with[number]], []).append(_mean(told[number], shared))
    figures = {place: _average(found) for place, found in sorted(measured.items())}
    points = list(figures)
    segments = list(itertools.pairwise(points))
    releases = _silos_of(records, frozenset(line))
    changes = tuple(
        Change(
            rounds=line[a + 1 : b + 1],
            change=Figure(
                figures[b].value - figures[a].value, figures[a].variance + figures[b].variance
            ),
        )
        for a, b in segments
    )
    credited = {number for each in changes for number in each.rounds}
    applied = line[1:]
    return Credit(
        line=applied,
        undone=undone,
        unmeasured=tuple(number for number in applied if number not in credited),
        environments=tuple(shared) if segments else (),
        begin=figures[points[0]] if segments else None,
        end=figures[points[-1]] if segments else None,
        changes=changes,
        silos=_credits(releases, changes, [figures[point] for point in points]),
        why_none="" if segments else _why_none(told, figures),
    )


def _line(
    records: Sequence[AdapterRecord],
) -> tuple[tuple[int, ...], tuple[int, ...], dict[int, int]]:
    """The line with the initial adapter before it, the rounds undone, what each round began with.

    An adapter is called by the round that made it, which makes one.
    """
    parent: dict[int, int] = {}
    ended = {INITIAL: INITIAL}
    began: dict[int, int] = {}
    now = INITIAL
    for record in records:
        if record.round == INITIAL:
            continue
        # The steps of a round are one: it has begun with the adapter of the round before.
        began.setdefault(record.round, now)
        if record.restored_round is not None:
            if record.restored_round not in ended:
                raise ChainError(f"{record.place}: round {record.restored_round} is not there")
            now = ended[record.restored_round]
        elif record.kind == "aggregated" and now != record.round:
            parent[record.round], now = now, record.round
        ended[record.round] = now
    line = [now]
    while line[-1] != INITIAL:
        line.append(parent[line[-1]])
    kept = frozenset(line)
    return (
        tuple(reversed(line)),
        tuple(number for number in sorted(parent) if number not in kept),
        began,
    )


def _silos_of(
    records: Sequence[AdapterRecord], line: frozenset[int]
) -> dict[int, list[tuple[str, ...]]]:
    """Of each round of the line the silos in the sums of each of its releases."""
    releases: dict[int, list[tuple[str, ...]]] = {}
    for record in records:
        if record.kind == "aggregated" and record.round in line:
            releases.setdefault(record.round, []).append(record.survivors)
    return releases


def _parts(releases: Mapping[int, Sequence[Sequence[str]]], number: int) -> dict[str, Fraction]:
    """How one round is split; the parts add up to one."""
    parts: dict[str, Fraction] = {}
    for silos in releases[number]:
        for silo_id in silos:
            parts[silo_id] = parts.get(silo_id, _NOTHING) + Fraction(
                1, len(silos) * len(releases[number])
            )
    return parts


def _credits(
    releases: Mapping[int, Sequence[Sequence[str]]],
    changes: Sequence[Change],
    figures: Sequence[Figure],
) -> tuple[SiloCredit, ...]:
    """Of every silo on the line; ``figures`` are those that the changes are between."""
    split = {number: _parts(releases, number) for number in releases}
    silos = sorted({silo_id for parts in split.values() for silo_id in parts})
    found = []
    for silo_id in silos:
        held = [split[number].get(silo_id, _NOTHING) for number in split]
        weights = [
            sum((split[number].get(silo_id, _NOTHING) for number in each.rounds), _NOTHING)
            / len(each.rounds)
            for each in changes
        ]
        # Σ w_k·(M_{k+1} − M_k) by figures: M_j has w_{j−1} − w_j.
        by_figure = [a - b for a, b in itertools.pairwise((_NOTHING, *weights, _NOTHING))]
        found.append(
            SiloCredit(
                silo_id=silo_id,
                rounds=tuple(number for number in split if silo_id in split[number]),
                share=sum(held, _NOTHING) / len(split),
                credit=_combined(by_figure, figures) if changes else None,
            )
        )
    return tuple(found)


def _combined(by_figure: Sequence[Fraction], figures: Sequence[Figure]) -> Figure:
    """Σ c_j·M_j of independent figures."""
    pairs = tuple(zip(by_figure, figures, strict=True))
    return Figure(
        sum((c * figure.value for c, figure in pairs), _NOTHING),
        sum((c * c * figure.variance for c, figure in pairs), _NOTHING),
    )


def _mean(success: Mapping[str, Estimate], families: Sequence[str]) -> Figure:
    """Over environments whose figures are readable; their noises are independent."""
    count = len(families)
    return Figure(
        sum((Fraction(success[family].mean) for family in families), _NOTHING) / count,
        sum((Fraction(success[family].standard_error) ** 2 for family in families), _NOTHING)
        / count**2,
    )


def _average(found: Sequence[Figure]) -> Figure:
    """Of several figures of one adapter."""
    count = len(found)
    return Figure(
        sum((figure.value for figure in found), _NOTHING) / count,
        sum((figure.variance for figure in found), _NOTHING) / count**2,
    )


def _why_none(told: Mapping[int, Mapping[str, Estimate]], figures: Mapping[int, Figure]) -> str:
    if figures:
        return "figures of one adapter alone: nothing to compare them with"
    hidden = any(ratio_below_noise(ratio) for ratios in told.values() for ratio in ratios.values())
    return BELOW_NOISE if hidden else NOT_REPORTED
