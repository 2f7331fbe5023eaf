"""``chorale-lab power``: how many seeds tell a difference, from kept rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed

if TYPE_CHECKING:
    from lab.evidence.figure import Figure
    from lab.evidence.power import Planned
    from lab.report.paired import Difference

__all__ = ["power"]


def power(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="Directories with results.jsonl.")
    ],
    setting: Annotated[str, typer.Option(help="Setting whose difference is asked about.")],
    reference: Annotated[str, typer.Option(help="Setting that it is compared with.")],
    difference: Annotated[
        float, typer.Option(help="True difference to tell, as a rate.", min=1e-4, max=1)
    ] = 0.05,
    wanted: Annotated[
        float, typer.Option("--power", help="Chance to tell it.", min=0.06, max=0.999)
    ] = 0.8,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Say the least difference for so many seeds; else for those at hand.",
            min=2,
            max=100_000,
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="all; or own, unseen: the mean over silos of such tasks.")
    ] = "all",
    temperature: Annotated[float, typer.Option(help="Of the judge; 0 is greedy.", min=0)] = 1.0,
    output: Output = Format.TEXT,
) -> None:
    """Say how many seeds a paired t test over seeds needs, and what the seeds at hand can tell.

    The spread of the difference over seeds is taken from the rows. It is itself uncertain, with few
    seeds very much so: every figure is said for its estimate and for both ends of its interval.

    \b
    chorale-lab power RESULTS --setting together --reference alone
    chorale-lab power RESULTS --setting grpo --reference fedse --difference 0.03 --seeds 10

    Exit code 1 where the rows do not hold the difference, or it has no spread.
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output):
        from pydantic import ValidationError

        from lab.evidence.errors import EvidenceError, FigureError
        from lab.evidence.figure import Figure, difference_of
        from lab.evidence.power import planned
        from lab.report.errors import ReportError
        from lab.report.results import load_results

        try:
            figure = Figure.model_validate({"tasks": tasks, "temperature": temperature})
        except ValidationError as error:
            raise CommandError(
                "--tasks is one of all, own, unseen; --temperature is from 0 to 10",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
            ) from error
        try:
            both = [
                found
                for found in load_results(results).experiments
                if {_setting(setting), _setting(reference)} <= set(found.settings)
            ]
            if len(both) != 1:
                raise FigureError(
                    f"{len(both)} experiments of these results have {setting!r} and {reference!r}: "
                    "name directories of one that has both"
                )
            found = difference_of(both[0], setting, reference, figure)
            plan = planned(found.spread.rates, difference=difference, wanted=wanted, seeds=seeds)
        except (EvidenceError, ReportError) as error:
            raise CommandError(
                str(error),
                code="results",
                exit_code=Exit.SERVER,
                hint="chorale-lab report RESULTS says which settings and seeds there are",
            ) from error
        show_result(output, *_lines(setting, reference, figure, found, plan))
        succeed(
            output,
            {
                "setting": setting,
                "reference": reference,
                "figure": figure.model_dump(mode="json"),
                "at": list(found.seeds),
                **asdict(plan),
            },
        )


def _setting(name: str) -> str:
    """Without the kind of adapter: ``fedse (personal)`` is of the setting ``fedse``."""
    return name.partition(" (")[0]


def _lines(
    setting: str, reference: str, figure: Figure, found: Difference, plan: Planned
) -> list[str]:
    spread = plan.deviation
    needed = ["more than can be run" if n is None else str(n) for n in plan.needed]
    rows = [
        ("", "at s", "at its low end", "at its high end"),
        ("deviation, points", *(_points(v) for v in (spread.estimate, spread.low, spread.high))),
        (f"seeds for {_points(plan.difference)} points", *needed),
        (f"least difference of {plan.seeds} seeds", *(_points(v) for v in plan.detectable)),
        (f"power of {plan.seeds} seeds", *(f"{v:.2f}" for v in plan.reached)),
    ]
    told = len(plan.differences)
    by_seed = ", ".join(f"{100 * rate:+.1f}" for rate in plan.differences)
    return [
        f"{setting} − {reference}: {figure.words}; seeds {', '.join(map(str, found.seeds))}",
        f"mean difference {100 * plan.mean:+.1f} points; by seed {by_seed}",
        f"paired two-sided t test over seeds at 5 %, power {plan.power:g}",
        *(f"{name:34}{a:>14}{b:>22}{c:>22}" for name, a, b, c in rows),
        f"s is the deviation over {told} seeds; its ends are those of its 95 % interval",
        "(chi-square, for normal differences)",
    ]


def _points(rate: float) -> str:
    return f"{100 * rate:.2f}" if rate <= 1 else "over 100"
