"""A report for people, as lines or as Markdown, and for programs; it ends with what it cannot say.

Ordered invariants:

1. A figure has its standard error beside it or is "below noise", where the error exceeds it; JSON
   has it as it was computed, with ``standard_error`` and ``below_noise``.
2. What the report cannot say stands in every form of it, in the same words.

Covered: the above. Not covered: what the figures mean (``server/credit/report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dp.noise.estimate import Estimate
from dp.noise.figures import BELOW_NOISE
from federation.chain.credit import Figure, SiloCredit
from federation.text import escaped
from server.credit.participation import Participation
from server.credit.report import GroupCredit, Report

__all__ = ["as_json", "as_lines", "as_markdown"]

_CANNOT_TITLE: Final = "What this cannot say"
CANNOT: Final = (
    (
        "An equal split among the silos of a sum is a convention, not a finding. Masked sums do "
        "not say what one silo added, and this report does not estimate it."
    ),
    (
        "It is no Shapley value and no other marginal contribution: nobody knows what a round "
        "would have come to without a silo."
    ),
    (
        "It says nothing about the quality or the amount of anybody's data. A silo that uploads "
        "zeros gets the same credit as the others in its sums."
    ),
    (
        "Changes are attributed to the round before them, whatever caused them. Which tasks were "
        "drawn and who explored them moves success too, and no error here holds that: errors are "
        "of the noise in the sums alone."
    ),
    (
        "With few rounds noise dominates, and differences of credit follow who was in which sum. "
        "The last round that was applied is measured by nobody."
    ),
)
GROUPS_CANNOT: Final = (
    (
        "Silos of a group share alike, so a silo is credited with its neighbours. To go along the "
        "update is not to be right: a group that pulls the update its own way goes along it."
    ),
    (
        "Groups are drawn anew each round, so that intersecting them over rounds narrows towards "
        "single silos. The group sums are public in the federation, and whoever holds them can "
        "compute these figures without this report: it tells nothing that they do not show. Only "
        "noise hides a silo."
    ),
)
CREDITS: Final = (
    "Credit: the change of each round is split equally among the silos in its sum. A round's "
    "figures are about the adapter that it began with, so its change shows in the next round's."
)
WAITED: Final = (
    "Lost: attempts in which a phase waited in vain; waited: the seconds of these phases. Present: "
    "seconds of the rounds in whose sums a silo is. Bytes: of its masked uploads in sums."
)

_Row = tuple[str, ...]


def as_lines(report: Report) -> Iterator[str]:
    """For a terminal."""
    for title, paragraphs, table in _sections(report):
        yield ""
        yield title
        yield from paragraphs
        if table:
            widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
            for row in table:
                first, *rest = zip(row, widths, strict=True)
                cells = (f"{cell:>{width}}" for cell, width in rest)
                yield "  ".join((f"{first[0]:<{first[1]}}", *cells))


def as_markdown(report: Report) -> str:
    """A page to hand on."""
    lines: list[str] = []
    for level, (title, paragraphs, table) in enumerate(_sections(report)):
        lines += [f"{'##' if level else '#'} {escaped(title)}", ""]
        for paragraph in paragraphs:
            bullet = title == _CANNOT_TITLE
            lines += [f"* {escaped(paragraph)}"] if bullet else [escaped(paragraph), ""]
        if table:
            head, *rows = table
            lines += [_markdown_row(head), _markdown_row(("---",) * len(head))]
            lines += [_markdown_row([escaped(cell) for cell in row]) for row in rows]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """For programs."""
    credit, groups = report.credit, report.groups
    credited = {each.silo_id: each for each in credit.silos}
    return {
        "run_id": report.run_id,
        "state": report.state,
        "mode": report.mode,
        "rounds": report.rounds,
        "outcomes": dict(report.outcomes),
        "head_sha256": report.head_sha256,
        "silos": [
            {
                "silo_id": each.silo_id,
                "asked": each.asked,
                "ready": each.ready,
                "in_sums": each.in_sums,
                "not_applied": each.not_applied,
                "lost": dict(each.lost),
                "sat_out": each.sat_out,
                "waited_s": each.waited_s,
                "waits_unknown": each.waits_unknown,
                "present_s": each.present_s,
                "upload_bytes": each.upload_bytes,
                **_credit_json(credited.get(each.silo_id)),
            }
            for each in report.participation
        ],
        "success": {
            "environments": list(credit.environments),
            "begin": _figure_json(credit.begin),
            "end": _figure_json(credit.end),
            "change": _figure_json(credit.change),
            "why_none": credit.why_none,
            "changes": [
                {"rounds": list(each.rounds), **(_figure_json(each.change) or {})}
                for each in credit.changes
            ],
            "applied": list(credit.line),
            "undone": list(credit.undone),
            "unmeasured": list(credit.unmeasured),
        },
        "groups": None if groups is None else _groups_json(groups),
        "cannot_say": list(_cannot(report)),
    }


_Section = tuple[str, Sequence[str], Sequence[_Row]]


def _sections(report: Report) -> Iterator[_Section]:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.items())
    yield (
        f"Participation and credit: {report.run_id}",
        [
            f"{report.state}, mode {report.mode}, {report.rounds} rounds over"
            + (f": {outcomes}" if outcomes else ""),
            f"made from the signed chain up to record {report.head_sha256}",
            "and from what the coordinator publishes; no silo was asked and nothing summed",
        ],
        (),
    )
    yield "Who took part", [WAITED], [_PARTICIPATION_HEAD, *map(_took_part, report.participation)]
    yield "What is credited", list(_changed(report)), list(_credit_table(report))
    if report.groups is not None:
        yield "What groups added", list(_added(report.groups)), list(_group_table(report.groups))
    yield _CANNOT_TITLE, _cannot(report), ()


def _cannot(report: Report) -> Sequence[str]:
    return CANNOT if report.groups is None else CANNOT + GROUPS_CANNOT


_PARTICIPATION_HEAD: Final = (
    "silo", "asked", "ready", "in sums", "not applied", "lost", "sat out", "waited", "present",
    "bytes",
)  # fmt: skip


def _took_part(each: Participation) -> _Row:
    waited = f"{each.waited_s:,.0f} s"
    if each.waits_unknown:
        waited += f" + {each.waits_unknown} unknown"
    return (
        each.silo_id,
        "unknown" if each.asked is None else str(each.asked),
        str(each.ready),
        str(each.in_sums),
        str(each.not_applied),
        ", ".join(f"{count} {phase}" for phase, count in each.lost.items()) or "0",
        str(each.sat_out),
        waited,
        f"{each.present_s:,.0f} s",
        f"{each.upload_bytes:,}",
    )


def _changed(report: Report) -> Iterator[str]:
    credit = report.credit
    if credit.begin is None or credit.end is None or credit.change is None:
        yield f"Success cannot be compared: {credit.why_none}. Shares are of the sums alone."
    else:
        yield (
            f"Success in {', '.join(credit.environments)}: from {_percent(credit.begin)} to "
            f"{_percent(credit.end)}, a change of {_points(credit.change)} that all credits add up "
            "to."
        )
        yield CREDITS
        yield "Changes: " + "; ".join(
            f"{_rounds(each.rounds)} {_points(each.change)}" for each in credit.changes
        )
    if credit.undone:
        yield f"Taken back by a rollback, and credited to nobody: {_rounds(credit.undone)}."
    if credit.unmeasured:
        yield f"Applied, without a figure, credited to nobody: {_rounds(credit.unmeasured)}."


def _credit_table(report: Report) -> Iterator[_Row]:
    if not report.credit.silos:
        return
    yield "silo", "rounds", "share of sums", "credit"
    for each in report.credit.silos:
        yield (
            each.silo_id,
            str(len(each.rounds)),
            f"{float(each.share):.1%}",
            "none" if each.credit is None else _points(each.credit),
        )
    change = report.credit.change
    yield (
        "all",
        str(len(report.credit.line)),
        "100.0%",
        "none" if change is None else _points(change),
    )


def _added(groups: GroupCredit) -> Iterator[str]:
    yield (
        "How far each group's own sum goes along the combined update, in lengths of the update, "
        "with an upper bound of its standard error; the total is the mean over groups, a silo's an "
        "equal part of its group's, both added up over rounds."
    )
    for release in groups.releases:
        yield f"round {release.round}: " + "; ".join(
            f"{', '.join(group.silos)}: {_lengths(group.along)}" for group in release.groups
        )
    for number, reason in groups.untold.items():
        yield f"round {number} is not told: {reason}"
    yield f"The groups' sums: {groups.cohorts.sentence()}."
    apart = [silo for silo in groups.silos if silo.together]
    if apart:
        yield "In one group each time, so not told apart: " + "; ".join(
            f"{silo.silo_id} with {', '.join(silo.together)}" for silo in apart
        )


def _group_table(groups: GroupCredit) -> Iterator[_Row]:
    if not groups.silos:
        return
    yield "silo", "rounds", "added, with its groups"
    for silo in groups.silos:
        yield silo.silo_id, str(silo.releases), _lengths(silo.added)
    yield "all", str(len(groups.releases)), _lengths(groups.total)


def _rounds(numbers: Sequence[int]) -> str:
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _percent(figure: Figure) -> str:
    value, error = figure.estimate
    return f"{100 * value:.1f} ± {100 * error:.1f} %"


def _points(figure: Figure) -> str:
    value, error = figure.estimate
    if _below_noise(figure.estimate):
        return BELOW_NOISE
    return f"{100 * value:+.2f} ± {100 * error:.2f} points"


def _lengths(along: Estimate) -> str:
    if _below_noise(along):
        return BELOW_NOISE
    return f"{along.mean:+.3f} ± {along.standard_error:.3f}"


def _below_noise(figure: Estimate) -> bool:
    return math.isnan(figure.reportable)


def _figure_json(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else _estimate_json(figure.estimate)


def _estimate_json(figure: Estimate) -> dict[str, Any]:
    return {
        "value": figure.mean,
        "standard_error": figure.standard_error,
        "below_noise": _below_noise(figure),
    }


def _credit_json(each: SiloCredit | None) -> dict[str, Any]:
    if each is None:
        return {"credited_rounds": [], "share": 0.0, "credit": None}
    return {
        "credited_rounds": list(each.rounds),
        "share": float(each.share),
        "credit": _figure_json(each.credit),
    }


def _groups_json(groups: GroupCredit) -> dict[str, Any]:
    found: Mapping[str, Any] = {
        "total": _estimate_json(groups.total),
        "rounds": [
            {
                "round": release.round,
                "total": _estimate_json(release.total),
                "groups": [
                    {"part": g.part, "silos": list(g.silos), **_estimate_json(g.along)}
                    for g in release.groups
                ],
            }
            for release in groups.releases
        ],
        "untold": {str(number): reason for number, reason in groups.untold.items()},
        "silos": [
            {
                "silo_id": silo.silo_id,
                "rounds": silo.releases,
                "together": list(silo.together),
                **_estimate_json(silo.added),
            }
            for silo in groups.silos
        ],
        "rank": groups.cohorts.rank,
        "alone": list(groups.cohorts.alone),
    }
    return dict(found)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
