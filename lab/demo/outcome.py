"""What the demo measured, read from the silos' own files.

Every silo judges adapters on a slice of the held-out tasks of its own, so the slices pool into
independent tries: base, alone and together are judged on the same tasks. The coordinator's files
are used for bytes and phases; ε is read from the silos' own ledgers.

Covered: success per family and per shard with Wilson intervals. Not covered: significance of paired
differences; non-overlapping intervals are the stricter test.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp.noise.estimate import Estimate
from lab.demo.errors import NotJudgedError
from lab.wilson import Interval, wilson

__all__ = ["Cell", "Outcome", "await_judged", "explored", "judged_rows", "pooled"]

PAUSE_S = 0.2


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class Cell:
    """What a rate is about."""

    environment: str
    shard: int
    """−1 pools all shards."""
    temperature: float


@dataclass(kw_only=True, slots=True)
class Outcome:
    """Everything the report prints."""

    rates: dict[str, dict[Cell, Interval]] = field(default_factory=dict)
    """Keyed by who: base, together, alone, and each silo's "alone silo-x"."""
    epsilon: float = float("nan")
    """Of the plan's own unit, as the coordinator counts the attempts."""
    epsilon_unit: str = ""
    """That unit."""
    epsilon_cap: float = float("nan")
    """The plan's cap of it."""
    delta: float = float("nan")
    budgets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Each silo's own ledger: ``unit``, ``epsilon_spent``, ``epsilon_cap`` and so on."""
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """Finished releases as ``run watch`` reports them; a round may have several, told by step."""
    run_id: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of the demo's stages."""
    replay: dict[str, Any] | None = None
    exported: str = ""
    killed: str = ""

    def headline(self, temperature: float) -> dict[str, Interval]:
        """Base, alone (mean over silos) and together, pooled over everything judged."""
        found: dict[str, Interval] = {}
        for who in ("base", "alone", "together"):
            cells = [
                interval
                for cell, interval in self.rates.get(who, {}).items()
                if cell.shard < 0 and cell.temperature == temperature
            ]
            if cells:
                episodes = sum(cell.episodes for cell in cells)
                successes = sum(round(cell.rate * cell.episodes) for cell in cells)
                found[who] = wilson(successes, episodes)
        return found

    @property
    def round_count(self) -> int:
        """Different rounds among the releases."""
        return len({done["round"] for done in self.rounds})

    @property
    def bytes_per_upload(self) -> float:
        """What a silo sends up for one release, on average."""
        uploads = sum(len(done.get("survivors", ())) for done in self.rounds)
        sent = sum(int(done.get("upload_bytes", 0)) for done in self.rounds)
        return sent / uploads if uploads else 0.0

    def learned(self, temperature: float) -> bool:
        """Whether together's interval lies above the base's."""
        found = self.headline(temperature)
        together, base = found.get("together"), found.get("base")
        return together is not None and base is not None and together.low > base.high

    def fell(self, temperature: float) -> bool:
        """Whether together's interval lies below the base's."""
        found = self.headline(temperature)
        together, base = found.get("together"), found.get("base")
        return together is not None and base is not None and together.high < base.low

    def better(self, temperature: float) -> bool:
        """Whether together beats base and alone with non-overlapping intervals."""
        found = self.headline(temperature)
        together = found.get("together")
        return together is not None and all(
            together.low > found[who].high for who in ("base", "alone") if who in found
        )

    def unmoved(self, temperature: float) -> bool:
        """Whether together lies inside the base's interval, as a control run must."""
        found = self.headline(temperature)
        base, together = found["base"], found["together"]
        return base.low <= together.rate <= base.high

    def unimproved(self, temperature: float) -> bool:
        """Whether together is not above the base's interval; noise alone may have done harm."""
        found = self.headline(temperature)
        return found["together"].rate <= found["base"].high


def explored(done: Mapping[str, Any]) -> dict[str, Estimate]:
    """Success while exploring, by family, of one release as ``run watch`` reports it in JSON."""
    return {
        item["family"]: Estimate(
            _number(item["success_ratio"]), _number(item.get("standard_error"))
        )
        for item in done.get("success", ())
    }


def _number(value: float | str | None) -> float:
    """JSON has neither an infinity nor what is not a number."""
    return math.nan if value is None else float(value)


def judged_rows(path: Path, *, run_id: str, round_number: int) -> list[dict[str, Any]]:
    """Rows of one silo's ``evaluation.jsonl`` for one global adapter."""
    rows: list[dict[str, Any]] = []
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            mine = row["run"] == run_id and row["round"] == round_number
            if mine and not row.get("personal", False):
                rows.append(row)
    return rows


def pooled(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, Interval]:
    """Rates by environment and temperature, for all shards and, where there are some, each."""
    rows = list(rows)
    parts = len({row["shard"] for row in rows})
    episodes: dict[Cell, int] = defaultdict(int)
    successes: dict[Cell, int] = defaultdict(int)
    for row in rows:
        for shard in (int(row["shard"]), -1) if parts > 1 else (-1,):
            cell = Cell(
                environment=row["environment"], shard=shard, temperature=float(row["temperature"])
            )
            episodes[cell] += int(row["episodes"])
            successes[cell] += int(row["successes"])
    return {
        cell: wilson(successes[cell], count) for cell, count in sorted(episodes.items()) if count
    }


def await_judged(
    directories: Mapping[str, Path],
    *,
    run_id: str,
    rounds: Sequence[int],
    timeout_s: float,
    judged: Callable[[int], None] = lambda _silos: None,
) -> dict[int, list[dict[str, Any]]]:
    """Wait until every silo has judged these rounds' adapters; all silos' rows by round.

    ``directories`` are the silos' data directories. ``judged`` is told how many silos are through.

    Raises:
        NotJudgedError: Somebody did not.
    """
    files = {silo_id: path / "evaluation.jsonl" for silo_id, path in directories.items()}
    waiting = {(silo_id, number): 0 for silo_id in files for number in rounds}
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in rounds}
    give_up_at = time.monotonic() + timeout_s
    while waiting:
        for silo_id, number in sorted(waiting):
            if not files[silo_id].exists():
                continue
            rows = judged_rows(files[silo_id], run_id=run_id, round_number=number)
            # A judgement is written line by line; it is whole once it has stopped growing.
            if rows and len(rows) == waiting[silo_id, number]:
                del waiting[silo_id, number]
                found[number] += rows
            else:
                waiting[silo_id, number] = len(rows)
        judged(len(files) - len({silo_id for silo_id, _ in waiting}))
        if waiting:
            if time.monotonic() > give_up_at:
                raise NotJudgedError(f"no evaluation from {sorted(waiting)}: see their logs")
            time.sleep(PAUSE_S)
    return found
