"""How far the environments of silos are apart, variant by variant, beside FedAgent's figures.

Replays queries in every variant of a pool and compares the first ten results: the mean Jaccard
index, and how often the first result is another one, over all pairs of the pool and between each
variant and the environment as it is. Catalogues are compared as sets. The queries are what a
careful customer searches for, the words of wishes that are evenly spaced among all; FedAgent's are
287 queries of its agents, on WebShop's first thousand products, so its figures are a neighbour's
and no target.

Of the market also: how many tasks a careful customer solves in each variant, who searches for the
words of the wish and opens results in their order, and what buying a lookalike costs.

``--webshop DIR`` measures WebShop's own files instead (``items_shuffle.json``,
``items_ins_v2.json``, ``items_human_ins.json``), which are not shipped.

Prints a table and, as its last line, the figures as JSON. Exit code 1 if the rule does not assign
variants to a hundred silos as the paper says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from evolution.envs.builtin.shop.goal import Goal, score
from evolution.envs.builtin.shop.goods import Aisles, market_stages
from evolution.envs.builtin.shop.market import Market
from evolution.envs.builtin.shop.webshop import load_webshop
from evolution.envs.tasks import Split
from evolution.envs.variants.lookalike import DIMENSIONS
from evolution.envs.variants.measured import first_differs, jaccard, replayed, top_jaccard
from evolution.envs.variants.spec import KINDS, Kind, VariantSpec
from evolution.envs.variants.stages import Stages
from evolution.envs.variants.variant import stages_of, varied
from evolution.errors import EnvironmentSetupError

PAPER: dict[str, dict[str, float]] = {
    "catalog-split": {"distractors": 0.54, "catalogues": 0.75},
    "field-subset": {"pairs": 0.78},
    "bm25-reweighting": {"pairs": 0.65, "first_pairs": 0.70},
    "lookalike": {"price": -0.42, "colour": -0.38, "size": -0.35, "price+colour": -0.46},
}
"""FedAgent's figures; the table's keys are this file's."""
COUNTS = [21, 20, 32, 27]
POOLED: tuple[Kind, ...] = ("field-subset", "bm25-reweighting", "lookalike", "rank-wrapper")


def spaced(values: list[Any], count: int) -> list[Any]:
    """So many of the values, evenly spaced."""
    places = np.linspace(0, len(values) - 1, num=min(count, len(values)))
    return [values[int(place)] for place in places]


def split_figures(stages: Stages, silos: int) -> dict[str, float]:
    """Catalog Split: how alike the catalogues of so many silos are."""
    targets = stages.content.targets
    found = []
    for index in range(1, silos + 1):
        content = stages_of(stages, VariantSpec(kind="catalog-split", index=index)).content
        found.append(frozenset(one.key for one in content.documents))
    pairs = list(combinations(found, 2))
    return {
        "products": len(found[0]),
        "distractors": float(np.mean([jaccard(a - targets, b - targets) for a, b in pairs])),
        "catalogues": float(np.mean([jaccard(a, b) for a, b in pairs])),
    }


def pool_figures(stages: Stages, kind: Kind, queries: list[tuple[str, ...]]) -> dict[str, float]:
    """One pool: its variants against each other, and against the environment as it is."""
    plain, found = replayed(stages, queries), []
    for spec in specs(kind):
        try:
            found.append(replayed(stages_of(stages, spec), queries))
        except EnvironmentSetupError as error:
            print(f"{kind} {spec.place} left out: {error}", file=sys.stderr)
    pairs = list(combinations(found, 2))
    changed = [one for one in found if one != plain]
    return {
        "pairs": float(np.mean([top_jaccard(a, b) for a, b in pairs])),
        "first_pairs": float(np.mean([first_differs(a, b) for a, b in pairs])),
        "plain": float(np.mean([top_jaccard(plain, one) for one in changed])),
        "first_plain": float(np.mean([first_differs(plain, one) for one in changed])),
    }


def specs(kind: Kind) -> list[VariantSpec]:
    """The pool of four."""
    return [
        VariantSpec.model_validate({"kind": kind, "index": place + 1, "choice": place})
        for place in range(min(KINDS[kind]))
    ]


def careful_success(spec: VariantSpec, tasks: int) -> float:
    """The share of tasks that a careful customer solves in a variant of the market."""
    market = varied(Market(), spec)
    rng, solved = np.random.default_rng(0), 0
    for task_id in market.task_ids(Split.TRAIN)[:tasks]:
        market.reset(task_id)
        over = False
        while not over:
            action = market.expert_action(rng)
            *_, terminated, truncated, info = market.step(action)
            over = terminated or truncated
        solved += market.success(info)
    return solved / tasks


def lookalike_cost(place: int) -> float:
    """What buying a clone instead of what it is a clone of changes in the reward, on average."""
    stages = stages_of(market_stages(), VariantSpec(kind="lookalike", choice=place))
    clones = {
        document.key.split("_")[2]: product
        for document, product in zip(stages.content.documents, Aisles(stages).products, strict=True)
        if document.key.startswith("LK_")
    }
    found = []
    for wish in stages.content.wishes:
        if wish.target in clones:
            goal = Goal(
                category=wish.words[-1],
                attributes=wish.words[:-1],
                colour=wish.options["colour"],
                size=wish.options["size"],
                budget=int(wish.budget or 0),
            )
            clone = clones[wish.target]
            picked = {goal.colour, goal.size} & {*clone.colours, *clone.sizes}
            found.append(score(goal, clone, picked) - 1.0)
    return float(np.mean(found))


def measured(stages: Stages, *, queries: int, silos: int, tasks: int) -> dict[str, Any]:
    """Every figure; those of playing only if there are tasks."""
    replay = [wish.words for wish in spaced(list(stages.content.wishes), queries)]
    figures: dict[str, Any] = {
        "documents": len(stages.content.documents),
        "queries": len(replay),
        "catalog-split": split_figures(stages, silos),
    }
    for kind in POOLED:
        figures[kind] = pool_figures(stages, kind, replay)
        counts = Counter(
            VariantSpec.model_validate({"kind": kind, "index": n}).place for n in range(1, 101)
        )
        figures[kind]["counts"] = [counts[place] for place in range(4)]
    if tasks:
        split = VariantSpec(kind="catalog-split", index=1)
        figures["catalog-split"]["careful"] = [careful_success(split, tasks)]
        for kind in POOLED:
            figures[kind]["careful"] = [careful_success(spec, tasks) for spec in specs(kind)]
        figures["lookalike"]["cost"] = {
            "+".join(names): lookalike_cost(place) for place, names in enumerate(DIMENSIONS)
        }
    return figures


def table(figures: dict[str, Any]) -> list[str]:
    """The figures in lines, with the paper's."""

    def line(kind: str, what: str, value: float, paper: float | None = None) -> str:
        beside = "" if paper is None else f"{paper:10.2f}"
        return f"{kind:18}{what:44}{value:10.3f}{beside}"

    rows = [f"{'':18}{'':44}{'here':>10}{'paper':>10}"]
    split, theirs = figures["catalog-split"], PAPER["catalog-split"]
    for name, what in (
        ("distractors", "Jaccard of distractors"),
        ("catalogues", "Jaccard of catalogues"),
    ):
        rows.append(line("catalog-split", what, split[name], theirs[name]))
    for kind in POOLED:
        for name, what in (
            ("pairs", "Jaccard of the first ten, pairs of the pool"),
            ("first_pairs", "another first result, pairs of the pool"),
            ("plain", "Jaccard of the first ten, to as it is"),
            ("first_plain", "another first result, to as it is"),
        ):
            paper = PAPER.get(kind, {}).get(name)
            rows.append(line(kind, what, figures[kind][name], paper))
    for name, value in figures["lookalike"].get("cost", {}).items():
        what = f"reward of buying the clone, {name}"
        rows.append(line("lookalike", what, value, PAPER["lookalike"][name]))
    for kind in ("catalog-split", *POOLED):
        if "careful" in figures[kind]:
            shares = " ".join(f"{share:.2f}" for share in figures[kind]["careful"])
            rows.append(f"{kind:18}{'solved by a careful customer, by variant':44}{shares:>24}")
    return rows


def stages_from(options: argparse.Namespace) -> Stages:
    """The market's, or those of WebShop's files."""
    if options.webshop is None:
        return market_stages()
    return load_webshop(
        options.webshop / "items_shuffle.json",
        attributes=options.webshop / "items_ins_v2.json",
        human=options.webshop / "items_human_ins.json",
        most=options.products,
    ).stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queries", type=int, default=287)
    parser.add_argument("--silos", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--webshop", type=Path, default=None)
    parser.add_argument("--products", type=int, default=1000)
    options = parser.parse_args()
    stages = stages_from(options)
    tasks = 0 if options.webshop else options.tasks
    figures = measured(stages, queries=options.queries, silos=options.silos, tasks=tasks)
    print("\n".join(table(figures)))
    print(json.dumps(figures))
    sys.exit(any(figures[kind]["counts"] != COUNTS for kind in POOLED))


if __name__ == "__main__":
    main()
