"""The headlines of docs/experiments once more: from the kept rows, and with nothing of Chorale.

python3 benchmarks/headlines.py
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

DATA = Path(__file__).parents[1] / "docs" / "experiments" / "data"


@lru_cache(maxsize=2)
def rows_of(experiment: str) -> list[dict[str, Any]]:
    """All rows but what was judged greedily."""
    with gzip.open(DATA / experiment / "results.jsonl.gz", "rt") as lines:
        return [row for row in map(json.loads, lines) if row.get("temperature", 1.0) == 1.0]


def rates(experiment: str, setting: str, *by: str, **facts: Any) -> dict[tuple[Any, ...], float]:
    """Success in percent at temperature 1 after the last round, by these fields of the rows."""
    rows = [row for row in rows_of(experiment) if row["setting"] == setting]
    rows = [row for row in rows if row["kind"] == "eval"]
    facts = {"round": max(row["round"] for row in rows), **facts}
    outcomes: dict[tuple[Any, ...], str] = defaultdict(str)
    for row in rows:
        if all(row[name] == value for name, value in facts.items()):
            outcomes[tuple(row[name] for name in by)] += row["outcomes"]
    return {key: 100 * text.count("1") / len(text) for key, text in outcomes.items()}


def over(experiment: str, setting: str, *by: str, **facts: Any) -> float:
    """The mean over what the rows are told apart by."""
    return mean(rates(experiment, setting, *by, **facts).values())


def fedse() -> dict[str, dict[str, float]]:
    """fedse.md: means over environments, and over silos."""
    settings = {"local": "local_static", "central": "central_static"}
    unseen = {"own": False, "same_family": True}
    alone = rates("fedse-own", "local_evolution", "silo", own=True)
    fedsa = rates("fedse-own", "fedsa", "silo", own=True)
    return {
        "methods": {
            name: over("fedse-paper", settings.get(name, name), "environment", own=True)
            for name in ("pretrained", "local", "central", "fedit", "fedse")
        },
        "federation2": {
            "local_evolution_unseen": over("fedse-shards", "local_evolution", "silo", **unseen),
            "fedse_unseen": over("fedse-shards", "fedse", "silo", **unseen),
            "worst_silo_vs_alone": min(fedsa[silo] - alone[silo] for silo in alone),
        },
    }


def smollm2(page: str) -> dict[str, float]:
    """words.md and desk.md: each seed's figure is its mean over silos."""
    names = ("pretrained", "alone", "together", "unfiltered", "pooled")
    return {name: over(page, name, "seed", "silo") for name in names}


def gains(setting: str, scope: str, **tasks: bool) -> dict[int, list[float]]:
    """fedse-registered.md: points above `alone`, by silo, one for each seed."""
    found = rates("fedse-registered", setting, "silo", "seed", scope=scope, **tasks)
    alone = rates("fedse-registered", "alone", "silo", "seed", **tasks)
    by_silo: dict[int, list[float]] = defaultdict(list)
    for silo, seed in sorted(found):
        by_silo[silo].append(found[silo, seed] - alone[silo, seed])
    return by_silo


def registered() -> dict[str, dict[str, float]]:
    """fedse.md's line: what was registered, and SmolLM2-135M, the mean of words and desk."""
    unseen = gains("fedse", "global", own=False, same_family=True)
    own = [mean(points) for points in gains("residual", "chosen", own=True).values()]
    pages = [smollm2(page) for page in ("words", "desk")]
    names = {"base": "pretrained", "alone": "alone", "together": "together"}
    return {
        "preregistered": {
            "unseen_gain": mean(mean(points) for points in unseen.values()),
            "own_mean": mean(own),
            "own_worst": min(own),
            "seeds": min(len(points) for points in unseen.values()),
        },
        "smollm2": {said: mean(page[name] for page in pages) for said, name in names.items()},
    }


def fedagent() -> dict[str, float]:
    """fedagent.md, GRPO: plateaus together and pooled; after round 20 together and best alone."""
    plateau = {
        name: mean(over("fedagent-market", name, "seed", round=at) for at in (16, 20))
        for name in ("fed-grpo", "central_grpo")
    }
    alone = rates("fedagent-alone", "alone-grpo", "silo")
    return {
        "federated_minus_central": plateau["fed-grpo"] - plateau["central_grpo"],
        "federated_minus_best_local": over("fedagent-market", "fed-grpo", "seed")
        - max(alone.values()),
    }


def agentic() -> dict[str, float]:
    """agentic.md: the adviser's difference to the constant, in points of success and in hours."""
    constant, advised = "constant-k12-d120", "advised-count"
    seconds = {
        (row["setting"], row["seed"], row["round"]): row["simulated"]["seconds"]
        for row in rows_of("agentic")
        if row["kind"] == "round"
    }
    hours = {
        name: sum(took for (setting, *_), took in seconds.items() if setting == name) / 3600
        for name in (constant, advised)
    }
    seeds = {seed for (seed,) in rates("agentic", advised, "seed")}
    return {
        "success": over("agentic", advised, "seed", "environment", silo=-1)
        - over("agentic", constant, "seed", "environment", silo=-1),
        "hours": (hours[advised] - hours[constant]) / len(seeds),
    }


def served(setting: str) -> dict[tuple[Any, ...], str]:
    """poisoning.md: outcomes at temperature 1 by seed, environment and label.

    Of a setting with a guard it is what honest silos serve, each on its own labels.
    """
    kind = {"scope": "personal"} if "guard" in setting else {"scope": "global", "silo": -1}
    found = {}
    for row in rows_of("poisoning"):
        if row["kind"] == "eval" and row["setting"] == setting:
            own = row["own"] or kind["scope"] == "global"
            if own and all(row[name] == value for name, value in kind.items()):
                found[row["seed"], row["environment"], row["label"]] = row["outcomes"]
    return found


def poisoning() -> dict[str, list[float]]:
    """What an attack changes: macro difference, mean over five seeds with its 95 % limits."""
    figures = {}
    for kept in ("sum", "groups", "guard", "groups-guard"):
        without = served(kept)
        for attack in ("flip", "backdoor", "drift"):
            counts: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
            for key, text in served(f"{kept}-{attack}").items():
                counts[key[:2]][0] += text.count("1") - without[key].count("1")
                counts[key[:2]][1] += len(text)
            seeds = sorted({seed for seed, _ in counts})
            changes = [
                mean(100 * a / b for (one, _), (a, b) in counts.items() if one == seed)
                for seed in seeds
            ]
            if len(changes) != 5:
                raise ValueError(f"{kept}-{attack} has {len(changes)} seeds")
            error = 2.776 * stdev(changes) / 5**0.5  # Student's t, four degrees of freedom
            change = mean(changes)
            figures[f"{kept}-{attack}"] = [change, change - error, change + error]
    return figures


def rounded(figures: Any) -> Any:
    """To two decimals."""
    if isinstance(figures, dict):
        return {name: rounded(figure) for name, figure in figures.items()}
    if isinstance(figures, list):
        return [rounded(figure) for figure in figures]
    return round(figures, 2)


if __name__ == "__main__":
    pages: dict[str, Any] = {
        "words": smollm2("words"),
        "desk": smollm2("desk"),
        "fedagent": fedagent(),
    }
    pages["registered"] = registered()
    pages["poisoning"] = poisoning()
    pages["agentic"] = agentic()
    sys.stdout.write(json.dumps(rounded({"fedse": fedse(), **pages})) + "\n")
