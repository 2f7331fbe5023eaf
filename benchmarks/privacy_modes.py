"""Privacy mode against aggregation method, each a federation of five silos as real processes.

    none                 ffa
    record_local         ffa, fedavg, rolora      every silo adds the whole noise; epsilon <= 8
    record_distributed   ffa, fedavg, rolora      the silos share it; epsilon <= 8

Crafting tasks: four silos have a quarter of the goals each, the fifth has all. Every run explores
the same number of episodes, and all are judged on held-out tasks of all goals; each silo judges a
slice of its own. Settings are those of ``lab.demo.recipe``: by imitation of successes in all modes,
or, with ``--method grpo``, with the demo's objective and the steps and noise of the mode.

``none`` takes about as many local steps with Adam, but it is the method's own training (batches of
96 successes, a mean over tokens, the whole gradient clipped, nothing per task), so it differs from
``record_local`` in more than the noise.

ε comes from the silos' own ledgers (``chorale-silo budget``): the largest of the five. Seconds are
from the start of the run to its end, without set-up and the last judgement.

Covered: one seed a row. Not covered: the spread over seeds; silos that drop out.
Prints a table and, as its last line, the figures as JSON. Intervals are Wilson's at 95 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy
from lab.demo.outcome import Outcome, await_judged, pooled
from lab.demo.recipe import IMITATION, RECIPES, REINFORCEMENT, Recipe
from lab.loopback import LoopbackFederation

BASE = Path(__file__).parents[1] / "lab" / "base_model"
SILOS = ("silo-a", "silo-b", "silo-c", "silo-d", "silo-e")
SHARDS = 4
COLLUDING = 1
ARMS = (
    (Privacy.NONE, "ffa"),
    (Privacy.RECORD_LOCAL, "ffa"),
    (Privacy.RECORD_LOCAL, "fedavg"),
    (Privacy.RECORD_LOCAL, "rolora"),
    (Privacy.RECORD_DISTRIBUTED, "ffa"),
    (Privacy.RECORD_DISTRIBUTED, "fedavg"),
    (Privacy.RECORD_DISTRIBUTED, "rolora"),
)
NO_CAP = 1e9
JUDGED_S = 1800.0
"""Longest wait for the silos' last judgement."""


class RunFailedError(Exception):
    """A run did not finish; the message says how it ended."""


def recipe_of(
    privacy: Privacy, aggregation: str, *, quick: bool, method: str = IMITATION.method
) -> Recipe:
    """One arm's settings."""
    if privacy is Privacy.NONE:
        # The settings of record_local, less what makes it private.
        recipe = dataclasses.replace(
            IMITATION,
            privacy=privacy,
            steps=0,
            metrics_noise=0.0,
            epsilon_cap=NO_CAP,
            clip_l2=IMITATION.delta_clip_l2 or 1.0,
            delta_clip_l2=None,
        )
    elif privacy is Privacy.RECORD_LOCAL:
        recipe = IMITATION
    else:
        recipe = RECIPES[privacy]
    if method == REINFORCEMENT.method:
        recipe = reinforced(recipe)
    if quick:
        recipe = dataclasses.replace(recipe, rounds=1, episodes=160)
    return dataclasses.replace(recipe, aggregation=aggregation)


def reinforced(recipe: Recipe) -> Recipe:
    """The settings with another method: what is learned from, and how far a step goes."""
    shorter = REINFORCEMENT.learning_rate / IMITATION.learning_rate
    return dataclasses.replace(
        recipe,
        method=REINFORCEMENT.method,
        objective=REINFORCEMENT.objective,
        nominal_tokens=REINFORCEMENT.nominal_tokens,
        batch_size=REINFORCEMENT.batch_size,
        tries_per_s=REINFORCEMENT.tries_per_s,
        units_per_s=REINFORCEMENT.units_per_s,
        learning_rate=recipe.learning_rate * shorter,
        # Of the mode whose steps the server takes; elsewhere it adds a mean of deltas as it is.
        server_step=recipe.server_step * (shorter if recipe.server_optimiser == "adam" else 1),
    )


def silo_toml(index: int, held_out: int) -> str:
    """One silo: a quarter of the goals, or all."""
    shard = f", shard_index = {index}, shard_count = {SHARDS}" if index < SHARDS else ""
    return f"""\
base_model = "{BASE}"
environments = [{{ environment = "craft"{shard} }}]
threads = 1
seed = {index + 1}
held_out_offset = {index * held_out}
probes_listen = "127.0.0.1:0"
"""


class Federation:
    """One arm, from nothing to figures."""

    def __init__(self, directory: Path, recipe: Recipe, options: argparse.Namespace) -> None:
        self.recipe = recipe
        self.loopback = LoopbackFederation(directory=directory)
        self.held_out: int = 16 if options.quick else options.held_out
        self.seed: int = options.seed

    def figures(self) -> dict[str, Any]:
        """Run it."""
        with self.loopback as loopback:
            plan, adapter = self._set_up()
            started_s = time.perf_counter()
            run_id = loopback.start_run(plan, adapter, token="bench")  # noqa: S106  # opens nothing
            finished: list[dict[str, Any]] = []
            last: dict[str, Any] = {}
            for status in loopback.watch(run_id):
                finished += status.get("finished", ())
                last = status
            run_s = time.perf_counter() - started_s
            if last["run"]["state"] != "finished":
                raise RunFailedError(f"{last['run']['state']}: {last.get('error', '')}")
            judged = await_judged(
                {silo_id: loopback.silo_dir(silo_id) for silo_id in SILOS},
                run_id=run_id,
                rounds=(0, self.recipe.rounds),
                timeout_s=JUDGED_S,
            )
            spent = self._spent()
        rates = {"base": pooled(judged[0]), "together": pooled(judged[self.recipe.rounds])}
        outcome = Outcome(rates=rates)
        releases = sum(done["outcome"] == "aggregated" for done in finished)
        return {
            "success": {
                str(temperature): {
                    who: dataclasses.asdict(interval)
                    for who, interval in outcome.headline(temperature).items()
                }
                for temperature in (1.0, 0.0)
            },
            "learned": outcome.learned(1.0),
            "epsilon": spent,
            "noise_multiplier": self.recipe.noise_multiplier,
            "seconds": round(run_s, 1),
            "releases": releases,
            "lost": len(finished) - releases,
            "seconds_per_release": round(run_s / max(1, releases), 2),
        }

    def _set_up(self) -> tuple[Path, Path]:
        loopback = self.loopback
        plan, adapter = loopback.directory / "plan.toml", loopback.directory / "initial.safetensors"
        plan.write_text(
            self.recipe.toml(
                name=f"{self.recipe.privacy}-{self.recipe.aggregation}",
                base=str(BASE),
                base_sha256=base_sha256(BASE),
                environments=("craft",),
                seed=self.seed,
                held_out=self.held_out,
            )
        )
        adapter.write_bytes(
            encode_adapter(
                initial_adapter(BASE, self.recipe.lora_rank, self.recipe.lora_alpha, self.seed)
            )
        )
        loopback.found()
        loopback.start_coordinator()
        for silo_id in SILOS:
            loopback.enrol(silo_id, base_model=BASE)
        loopback.publish_roster(colluding=COLLUDING)
        for index, silo_id in enumerate(SILOS):
            directory = loopback.silo_dir(silo_id)
            (directory / "silo.toml").write_text(silo_toml(index, self.held_out))
            loopback.silo(
                "policy", "init", "--plan", str(plan), "--data", str(directory),
                "--accept-no-privacy",
            )  # fmt: skip
            loopback.start_silo(silo_id)
        return plan, adapter

    def _spent(self) -> dict[str, float]:
        """The largest ε that any silo's ledger was charged, by unit."""
        largest: dict[str, float] = {}
        for silo_id in SILOS:
            data = self.loopback.silo("budget", "--data", str(self.loopback.silo_dir(silo_id)))
            for row in data["units"]:
                charged = row["epsilon_spent"]
                # A release without protection has no epsilon, and what others had bounds nothing.
                bounded = not charged["unprotected_releases"] and not charged["partial_releases"]
                spent = float(charged["epsilon"]) if bounded else math.inf
                largest[row["unit"]] = max(largest.get(row["unit"], 0.0), spent)
        return largest


def cell(figures: dict[str, Any], temperature: float, who: str) -> str:
    """A rate with its interval, in percent."""
    rate = figures["success"][str(temperature)].get(who)
    if rate is None:
        return "-"
    return f"{100 * rate['rate']:.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


def table_row(name: str, figures: dict[str, Any]) -> str:
    """One line of the table."""
    spent = " ".join(
        f"{unit} {epsilon:.2f}" if math.isfinite(epsilon) else f"{unit} unbounded"
        for unit, epsilon in figures["epsilon"].items()
    )
    columns = (
        (name, 30),
        *((cell(figures, t, who), 20) for t in (1.0, 0.0) for who in ("base", "together")),
        (spent or "none claimed", 14),
        (f"{figures['seconds']:.0f}", 8),
        (f"{figures['releases']}", 9),
        (f"{figures['seconds_per_release']:.1f}", 6),
    )
    return "".join(text.ljust(width) for text, width in columns).rstrip()


def chosen_arms(only: list[str] | None) -> list[tuple[Privacy, str]]:
    """The arms that were asked for.

    Raises:
        SystemExit: There is no such arm.
    """
    names = {f"{privacy},{method}": (privacy, method) for privacy, method in ARMS}
    if only is None:
        return list(ARMS)
    wanted = [name.replace("_", "-") for name in only]
    if unknown := sorted(set(wanted) - set(names)):
        raise SystemExit(f"no arm {unknown[0]!r}: choose from {', '.join(names)}")
    return [names[name] for name in wanted]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", action="append", metavar="MODE,AGGREGATION", help="an arm; may be repeated"
    )
    parser.add_argument(
        "--method", choices=(IMITATION.method, REINFORCEMENT.method), default=IMITATION.method
    )
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("--held-out", type=int, default=208, help="tasks that each silo judges")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    head = ("", 30), ("T=1: base", 20), ("together", 20), ("greedy: base", 20), ("together", 20)
    more = ("epsilon", 14), ("seconds", 8), ("releases", 9), ("each", 6)
    print("".join(text.ljust(width) for text, width in (*head, *more)).rstrip(), flush=True)
    results: dict[str, Any] = {}
    for privacy, method in chosen_arms(options.only):
        recipe = recipe_of(privacy, method, quick=options.quick, method=options.method)
        name = f"{recipe.mode.value},{method}"
        with tempfile.TemporaryDirectory(prefix="chorale-modes-") as scratch:
            results[name] = Federation(Path(scratch), recipe, options).figures()
        print(table_row(name, results[name]), flush=True)
    for figures in results.values():
        # JSON has no infinity: null is what no epsilon bounds.
        figures["epsilon"] = {
            unit: epsilon if math.isfinite(epsilon) else None
            for unit, epsilon in figures["epsilon"].items()
        }
    print(
        json.dumps(
            {"settings": vars(options), "silos": len(SILOS), "runs": results}, allow_nan=False
        )
    )


if __name__ == "__main__":
    main()
