"""A diagnosis as Markdown, for whoever runs a federation or a silo.

Covered: the tests with their figures, bounds, the prediction, remedies, what masks hide. Not
covered: pictures and patterns of finished runs, which the lab adds (``lab/diagnose``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evolution.diagnose.bounds import described_slack, policy_gap_floor, return_difference
from evolution.diagnose.diagnosis import Diagnosis
from evolution.diagnose.masks import UNDER_MASKS
from evolution.diagnose.prediction import Predicted
from evolution.diagnose.remedies import Remedy, Trouble, remedies_for
from federation.text import escaped

__all__ = ["menu_text", "remedies_text", "report_text", "table", "under_masks_text", "verdicts"]

_SAID: Final = {True: "passes", False: "fails", None: "not known"}
_SLACK: Final = (0.05, 0.05)
"""ε_approx and ε_opt that corollary 1 is shown at; nobody knows them before a run."""


def verdicts(found: Diagnosis) -> list[str]:
    """One line for each test, and the prediction."""
    lines = [
        f"T1 {_SAID[found.t1.passed]}: {found.t1.why}",
        f"T2 {_SAID[found.t2.passed]}: {found.t2.why}",
        f"T3 {_SAID[found.t3.passed]}: {found.t3.why}",
    ]
    if found.floor is not None:
        lines.append(f"{found.floor.verdict or 'F not known'}: {found.floor.why}")
    predicted = found.predicted
    lines.append(f"predicted pattern {predicted.pattern}: {predicted.why}")
    return lines


def report_text(found: Diagnosis, *, title: str, pictures: Sequence[str] = ()) -> str:
    """The whole text; pictures are linked by their file names."""
    parts = [
        f"# {escaped(title)}",
        f"What silos differ in: **{found.locus}**. Compared: {_names(found)}.",
        "## Verdicts",
        "\n".join(f"- {escaped(line)}" for line in verdicts(found)),
    ]
    if found.predicted.unknown:
        parts.append(f"Not known, and passed over: {', '.join(found.predicted.unknown)}.")
    parts += [f"![]({name})" for name in pictures]
    parts += ["## Figures", *_figures(found), "## Bounds", _bounds(found)]
    parts += ["## What to do", remedies_text(found.predicted), "## Under masks", under_masks_text()]
    return "\n\n".join(parts) + "\n"


def remedies_text(predicted: Predicted) -> str:
    """The menu for what is predicted."""
    if predicted.trouble is None:
        return (
            f"Nothing: pattern {predicted.pattern} is as good as the baseline. Plain averaging is "
            "adequate."
        )
    return menu_text(predicted.trouble)


def menu_text(trouble: Trouble) -> str:
    """The menu against a slack, or against D."""
    return "\n".join(
        [f"Against **{trouble}**, in the order of the menu:", ""]
        + [line for remedy in remedies_for(trouble) for line in _remedy(remedy)]
    )


def under_masks_text() -> str:
    """What is computed where."""
    rows = [(one.part, one.in_the_silo, one.through_the_sum, one.unknown) for one in UNDER_MASKS]
    return table(("", "in the silo", "through the sum", "cannot be known"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _remedy(remedy: Remedy) -> list[str]:
    lines = [f"- **{remedy.name}**: {remedy.does}. Costs: {remedy.costs}."]
    for switch in remedy.switches:
        where = "an experiment's `[[setting]]`" if switch.file == "setting" else switch.file
        lines.append(f"  - in {where}: `{switch.toml.replace(chr(10), ' ⏎ ')}`")
    return lines


def _names(found: Diagnosis) -> str:
    return ", ".join(escaped(name) for name in found.worlds)


def _figures(found: Diagnosis) -> list[str]:
    t1, t2, t3 = found.t1, found.t2, found.t3
    parts = [
        (
            "T1: `agree` is how often π̂ of the two do the same where the first goes, `distance` is "
            "δ̂_eff. Steps of one episode hang together, so limits are too narrow."
        ),
        table(
            ("played in", "replayed in", "agree", "distance"),
            [
                (escaped(p.one), escaped(p.other), str(p.agreement), str(p.distance))
                for p in t1.pairs
            ],
        ),
        (
            f"Two seeds of one world agree at {t1.agreement_floor}; the noise floor of the "
            f"distance is {t1.distance_floor}; the steps moved θ_0 at {t1.moved} of the states; "
            f"{t1.dropped} episodes and replays failed."
        ),
        (
            f"T2: {t2.shared} shared states; a best action in common at {t2.agree}, equal best "
            f"sets at {t2.equal}."
        ),
    ]
    if t2.apart:
        parts.append("\n".join(f"- {escaped(line)}" for line in t2.apart))
    if t3.accuracy:
        parts.append(
            table(
                ("observation t", *(str(t) for t in range(1, len(t3.accuracy) + 1))),
                [("accuracy", *(f"{100 * rate.value:.0f} %" for rate in t3.accuracy))],
            )
        )
        told = f" Words that tell: {escaped(', '.join(t3.words))}." if t3.words else ""
        parts.append(
            f"T3: t* = {t3.t_star}, η̂_cls = {100 * (t3.eta_cls or 0):.1f} %, η̂_ker = "
            f"{t3.eta_ker:g}; chance is {100 * t3.chance:.0f} %.{told}"
        )
    if found.floor is not None:
        parts.append(
            table(
                ("world", "θ_0", "alone", "together", "gap"),
                [
                    (
                        escaped(gap.world),
                        str(gap.start),
                        str(gap.alone),
                        str(gap.together),
                        f"{100 * gap.value:.1f} ± {196 * gap.error:.1f}",
                    )
                    for gap in found.floor.gaps
                ],
            )
        )
    return parts


def _bounds(found: Diagnosis) -> str:
    delta, horizon = found.t1.delta, found.horizon
    floor = policy_gap_floor(most_return=1.0, delta=delta)
    apart = return_difference(most_return=1.0, horizon=horizon, delta=delta)
    silos = len(found.worlds)
    approx, opt = _SLACK
    rows = [
        (
            "if observations revealed nothing: at least (theorems 3, 4)",
            f"{100 * floor:.1f} points",
        ),
        ("one policy in two of the worlds: at most (lemma 2)", _at_most(apart)),
    ]
    if (slack := found.predicted.slack) is not None:
        rows.append(
            (
                "by the prefix, C3 (theorem 5): before t* + by η_cls + by η_ker",
                (
                    f"{100 * slack.t_star:.1f} + {100 * slack.eta_cls:.1f} + "
                    f"{100 * slack.eta_ker:.1f} points, up to a constant"
                ),
            )
        )
    rows.append(
        (
            f"with a descriptor (corollary 1) at ε_approx = {approx}, ε_opt = {opt}: at most",
            _at_most(
                described_slack(
                    silos=silos, most_return=1.0, horizon=horizon, eps_approx=approx, eps_opt=opt
                )
            ),
        )
    )
    return "Gaps in success rates, where an episode returns at most 1.\n\n" + table(
        ("gap", "bound"), rows
    )


def _at_most(value: float) -> str:
    return f"{100 * value:.1f} points" if value < 1 else "says nothing (100 points or more)"
