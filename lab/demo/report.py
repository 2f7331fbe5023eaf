"""The demo's report: a table on the terminal and one self-contained HTML page.

Plots are drawn by matplotlib and embedded as SVG; the page loads nothing. Texts of trajectories
come from a silo's own replay and are escaped.

Covered: what an `Outcome` holds. Not covered: reports across several runs.
"""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dp.noise.figures import NOT_REPORTED, readable_ratio, success_words
from dp.noise.metrics_block import Estimate
from evolution.envs.catalogue import make
from lab.demo.choices import Privacy, Scenario
from lab.demo.outcome import Cell, Outcome, explored
from lab.demo.privacy import meaning, print_budgets, rows_of_budgets, summary
from lab.demo.scenario import FAMILIES, SILOS, DemoSettings
from lab.wilson import Interval

__all__ = ["load_outcome", "print_tables", "save_outcome", "write_html", "write_picture"]

WHO = {
    "base": "base model",
    "alone": "each silo alone (mean)",
    "together": "together",
}
_FEW = 2
_LEVEL = 6
"""So many labels of an axis stand level beside each other."""
GREEDY_FELL = (
    "Greedy, together lies below the base: learning from its own samples makes a model this small "
    "forget what it chose first (docs/experiments/record-objectives.md)."
)


def save_outcome(outcome: Outcome, settings: DemoSettings, path: Path) -> None:
    """Write what ``chorale report`` needs later."""
    content: dict[str, Any] = {
        entry.name: getattr(outcome, entry.name) for entry in fields(outcome)
    }
    content["rates"] = [
        {"who": who, **asdict(cell), **asdict(interval)}
        for who, cells in outcome.rates.items()
        for cell, interval in cells.items()
    ]
    path.write_text(json.dumps({"settings": asdict(settings), "outcome": content}, indent=1))


def load_outcome(path: Path) -> tuple[Outcome, DemoSettings]:
    """Read what :func:`save_outcome` wrote."""
    document = json.loads(path.read_text())
    content = document["outcome"]
    rates: dict[str, dict[Cell, Interval]] = {}
    for row in content.pop("rates"):
        cell = Cell(
            environment=row["environment"], shard=row["shard"], temperature=row["temperature"]
        )
        rates.setdefault(row["who"], {})[cell] = Interval(
            rate=row["rate"], low=row["low"], high=row["high"], episodes=row["episodes"]
        )
    return Outcome(rates=rates, **content), DemoSettings(**document["settings"])


def _cells(outcome: Outcome) -> list[Cell]:
    return sorted(outcome.rates.get("base", {}))


def _label(cell: Cell) -> str:
    where = cell.environment if cell.shard < 0 else f"{cell.environment}, {_shard(cell)}"
    return f"{where}, {'T=' if cell.temperature else ''}{_heat(cell.temperature)}"


def _heat(temperature: float) -> str:
    return f"{temperature:g}" if temperature else "greedy"


def _shard(cell: Cell) -> str:
    """The labels of a silo's part, where they are few."""
    labels = make(cell.environment).labels[cell.shard :: len(SILOS)]
    return " and ".join(labels) if len(labels) <= _FEW else f"shard {cell.shard + 1}"


def _phase_means(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for done in rounds:
        for item in done.get("timings", ()):
            sums[item["phase"]] = sums.get(item["phase"], 0.0) + float(item["duration_s"])
    # A round may have several releases.
    count = len({done["round"] for done in rounds})
    return {phase: total / count for phase, total in sums.items()} if rounds else {}


def _bytes_per_upload(rounds: Sequence[Mapping[str, Any]]) -> float:
    uploads = sum(len(done.get("survivors", ())) for done in rounds)
    return sum(int(done.get("upload_bytes", 0)) for done in rounds) / uploads if uploads else 0.0


def print_tables(outcome: Outcome, settings: DemoSettings, console: Console) -> None:
    """Success with intervals, then ε, bytes and seconds."""
    table = Table(
        title="Success on held-out tasks, Wilson 95 % (read from the silos' own files)",
        title_justify="left",
    )
    table.add_column("tasks")
    table.add_column("n", justify="right")
    for title in WHO.values():
        table.add_column(title)
    for cell in _cells(outcome):
        row = [_label(cell), str(outcome.rates["base"][cell].episodes)]
        row += [str(outcome.rates.get(who, {}).get(cell, "")) for who in WHO]
        table.add_row(*row, end_section=False)
    console.print(table)
    if outcome.fell(0.0):
        console.print(GREEDY_FELL)
    alone = Table(title="Each silo alone, judged on all tasks of its slice", title_justify="left")
    alone.add_column("silo")
    pooled_cells = [cell for cell in _cells(outcome) if cell.shard < 0]
    for cell in pooled_cells:
        alone.add_column(_label(cell))
    for silo_id in SILOS:
        rates = outcome.rates.get(f"alone {silo_id}")
        if rates:
            alone.add_row(silo_id, *(str(rates.get(cell, "")) for cell in pooled_cells))
    if alone.row_count:
        console.print(alone)
    _print_own_environment(outcome, settings, console)
    print_budgets(outcome, console)
    console.print(summary(outcome, settings))
    console.print(f"  {meaning(settings.privacy)}")
    console.print(
        f"releases: {len(outcome.rounds)} in {outcome.round_count} rounds; upload per silo and "
        f"release: {_bytes_per_upload(outcome.rounds) / 1024:.0f} KiB"
    )
    phases = ", ".join(f"{k} {v:.1f}" for k, v in _phase_means(outcome.rounds).items())
    console.print(f"seconds per round: {phases}")
    stages = ", ".join(f"{k} {v:.0f}" for k, v in outcome.seconds.items())
    console.print(f"seconds in all: {stages}")


def _print_own_environment(outcome: Outcome, settings: DemoSettings, console: Console) -> None:
    """The question a silo asks where everyone has an environment of its own: am I worse off?"""
    if settings.scenario != Scenario.ENVIRONMENTS or "alone" not in outcome.rates:
        return
    table = Table(title="Each silo on its own environment, temperature 1", title_justify="left")
    for column in ("silo", "environment", "alone", "together"):
        table.add_column(column)
    for silo_id, environment in zip(SILOS, FAMILIES, strict=True):
        cell = Cell(environment=environment, shard=-1, temperature=1.0)
        alone = outcome.rates[f"alone {silo_id}"].get(cell, "")
        table.add_row(
            silo_id, environment, str(alone), str(outcome.rates["together"].get(cell, ""))
        )
    console.print(table)


def write_html(outcome: Outcome, settings: DemoSettings, path: Path) -> None:
    """One page with plots, tables and two trajectories."""
    rows = "".join(
        "<tr><td>{}</td><td>{}</td>{}</tr>".format(
            html.escape(_label(cell)),
            outcome.rates["base"][cell].episodes,
            "".join(
                f"<td>{html.escape(str(outcome.rates.get(who, {}).get(cell, '')))}</td>"
                for who in WHO
            ),
        )
        for cell in _cells(outcome)
    )
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in WHO.values())
    rounds = "".join(
        f"<tr><td>{done['round']}</td><td>{int(done.get('step', 0)) + 1}</td>"
        f"<td>{html.escape(str(done['outcome']))}</td>"
        f"<td>{html.escape(', '.join(done.get('survivors', ())))}</td>"
        f"<td>{int(done.get('upload_bytes', 0)):,}</td>"
        f"<td><code>{html.escape(str(done.get('adapter_sha256', ''))[:16])}</code></td></tr>"
        for done in outcome.rounds
    )
    page = _PAGE.format(
        run=html.escape(outcome.run_id),
        scenario=html.escape(str(settings.scenario)),
        heads=heads,
        rows=rows,
        bars=_bars(outcome),
        greedy=f"<p>{html.escape(GREEDY_FELL)}</p>" if outcome.fell(0.0) else "",
        curve=_curve(outcome),
        phases=_phases(outcome),
        privacy=html.escape(summary(outcome, settings)),
        meaning=html.escape(meaning(settings.privacy)),
        budgets="".join(
            "<tr>{}</tr>".format("".join(f"<td>{html.escape(cell)}</td>" for cell in row))
            for row in rows_of_budgets(outcome)
        ),
        mode=html.escape(str(settings.privacy)),
        noise="masks on, no noise" if settings.privacy == Privacy.NONE else "masks and noise on",
        killed=html.escape(outcome.killed or "nobody"),
        rounds=rounds,
        replay=_replay(outcome.replay),
        exported=html.escape(outcome.exported),
    )
    path.write_text(page)


def _svg(figure: Any) -> str:
    sink = io.StringIO()
    figure.savefig(sink, format="svg", bbox_inches="tight", transparent=True)
    content = sink.getvalue()
    return content[content.index("<svg") :]


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0))
    return figure, figure.add_subplot()


def _bars(outcome: Outcome) -> str:
    figure, axes = _figure()
    _draw_bars(axes, outcome, [cell for cell in _cells(outcome) if cell.temperature > 0])
    axes.set_ylabel("success, temperature 1")
    return _svg(figure)


def write_picture(outcome: Outcome, path: Path) -> None:
    """The success of base, alone and together, at each temperature, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.6), layout="constrained")
    temperatures = sorted({cell.temperature for cell in _cells(outcome)}, reverse=True)
    panels = figure.subplots(len(temperatures), squeeze=False)
    for (axes,), temperature in zip(panels, temperatures, strict=True):
        cells = [cell for cell in _cells(outcome) if cell.temperature == temperature]
        _draw_bars(axes, outcome, cells)
        axes.set_ylabel(f"success, {'temperature ' if temperature else ''}{_heat(temperature)}")
        axes.spines[["top", "right"]].set_visible(False)
    for (axes,) in panels[1:]:
        axes.get_legend().remove()
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, outcome: Outcome, cells: Sequence[Cell]) -> None:
    colours = {"base": "#8a8f98", "alone": "#d98e32", "together": "#2f7d62"}
    for offset, who in enumerate(WHO):
        rates = outcome.rates.get(who, {})
        for index, cell in enumerate(cells):
            interval = rates.get(cell)
            if interval is None:
                continue
            axes.bar(
                index + 0.27 * (offset - 1),
                interval.rate,
                0.25,
                color=colours[who],
                label=WHO[who] if index == 0 else None,
                yerr=[
                    [max(0.0, interval.rate - interval.low)],
                    [max(0.0, interval.high - interval.rate)],
                ],
                capsize=2,
            )
    names = [
        _label(cell).rpartition(", ")[0].replace(", ", "\n").replace(" and ", "\nand ")
        for cell in cells
    ]
    axes.set_xticks(range(len(cells)), names)
    axes.tick_params(axis="x", labelrotation=20 if len(cells) > _LEVEL else 0)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, ncols=len(WHO), loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _curve(outcome: Outcome) -> str:
    figure, axes = _figure()
    told = _explored(outcome)
    for family in sorted({family for _, family, _ in told}):
        points = [
            # Nothing lies beyond 0 and 1, and so no interval does.
            (number, value, min(ratio.standard_error, value), min(ratio.standard_error, 1 - value))
            for number, of, ratio in told
            if of == family and not math.isnan(value := readable_ratio(ratio))
        ]
        if points:
            numbers, ratios, below, above = zip(*points, strict=True)
            axes.errorbar(numbers, ratios, yerr=(below, above), marker="o", capsize=2, label=family)
    axes.set_ylim(0, 1)
    axes.set_xlabel("round")
    axes.set_ylabel("success while exploring")
    if axes.has_data():
        axes.legend(frameon=False)
    return _svg(figure) + _explored_table(outcome)


def _explored(outcome: Outcome) -> list[tuple[int, str, Estimate]]:
    """Round, family and ratio of every figure that a sum told."""
    return [
        (done["round"], family, ratio)
        for done in outcome.rounds
        for family, ratio in sorted(explored(done).items())
        # Only a round's first release has figures.
        if not done.get("step", 0)
    ]


def _explored_table(outcome: Outcome) -> str:
    """The curves in words, for a figure below noise is not drawn."""
    rows = "".join(
        f"<tr><td>{number}</td><td>{html.escape(family)}</td>"
        f"<td>{success_words({family: ratio})}</td></tr>"
        for number, family, ratio in _explored(outcome)
    )
    if not rows:
        return f"<p>{NOT_REPORTED.capitalize()}: the sums of this run tell no success.</p>"
    return (
        '<div class="wide"><table><tr><th>round</th><th>family</th>'
        f"<th>success ± standard error of the noise</th></tr>{rows}</table></div>"
    )


def _phases(outcome: Outcome) -> str:
    figure, axes = _figure()
    means = _phase_means(outcome.rounds)
    axes.barh(list(means), list(means.values()), color="#4a6fa5")
    axes.invert_yaxis()
    axes.set_xlabel("seconds per round")
    return _svg(figure)


def _replay(replay: Mapping[str, Any] | None) -> str:
    if replay is None:
        return "<p>No held-out task was failed before and solved after.</p>"
    columns = ""
    for when in ("before", "after"):
        turns = "".join(
            f"<li><span>{html.escape(turn['observation'])}</span>"
            f"<b>{html.escape(turn['action'])}</b></li>"
            for turn in replay[when]["turns"]
        )
        verdict = "solved" if replay[when]["success"] else "not solved"
        columns += (
            f"<div><h3>{when}: {verdict}</h3><ol>{turns}</ol>"
            f"<p>{html.escape(replay[when]['final_observation'])}</p></div>"
        )
    head = f"{replay['environment']}, task {replay['task_id']} ({replay['label']})"
    task = f"{html.escape(head)}: {html.escape(replay['instruction'])}"
    return f"<p>{task}</p><div class=two>{columns}</div>"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Chorale demo: {run}</title>
<style>
 :root {{ color-scheme: light; }}
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
   background: #fff; color: #1d2126; }}
 table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
 th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; }}
 .wide {{ overflow-x: auto; }}
 .wide td, .wide th {{ white-space: nowrap; }}
 svg {{ max-width: 100%; height: auto; }}
 .two {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }}
 li span {{ display: block; color: #5b6470; }}
 .note {{ border-left: 4px solid #d98e32; padding: .2rem 1rem; background: #fff8ee; }}
</style>
<h1>Chorale demo</h1>
<p>Run <code>{run}</code>, scenario <b>{scenario}</b>, privacy <b>{mode}</b>: four silos and a
coordinator as separate processes over mutual TLS, {noise}. Killed in the middle of a round:
{killed}.</p>
<h2>Success on held-out tasks</h2>
<p>Read from the silos' own files; Wilson 95 % intervals. The coordinator never saw one silo's.</p>
{bars}
<div class="wide"><table><tr><th>tasks</th><th>n</th>{heads}</tr>{rows}</table></div>
{greedy}
<h2>Success while exploring, from the masked sum</h2>
{curve}
<h2>Privacy</h2>
<p class="note">{privacy}. {meaning}</p>
<div class="wide"><table><tr><th>silo</th><th>unit</th><th>epsilon spent</th><th>cap</th></tr>
{budgets}</table></div>
<p>Read from the silos' own ledgers. A silo alone releases nothing, so it adds no noise.</p>
<h2>Rounds</h2>
{phases}
<div class="wide"><table><tr><th>round</th><th>step</th><th>outcome</th><th>in the sum</th>
<th>bytes up</th><th>adapter</th></tr>{rounds}</table></div>
<h2>One task, before and after</h2>
<p>Shown from a silo's side; this text is not at the coordinator.</p>
{replay}
<h2>The adapter</h2>
<p>An ordinary PEFT directory: <code>{exported}</code>. Use it with
<code>peft.AutoPeftModelForCausalLM.from_pretrained(directory)</code>, or serve it with any engine
that loads LoRA adapters.</p>
</html>
"""
