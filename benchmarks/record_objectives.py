"""What a silo's record-level steps should minimise: arms of the demo's private run, in one process.

Four silos of the demo with a quarter of the crafting goals each, every task protected by its own
silo at epsilon 8 over the run (``lab.demo.recipe``). Arms differ in the method, its options, its
rate and its steps. Deltas are averaged as they are; masks would add nothing but rounding.

What imitation of successes does to greedy answers is the question: it moves what is easy most, and
what is hard forgets. All is judged on tasks of the pre-training split, which no reported figure is
about, and drawn from seeds that none is from; ``--held-out`` judges on the reported split instead.

Covered: arms against each other and against the base, paired by seed. Not covered: masks, daemons,
silos that drop out (``make demo``).
Prints a table and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from dp.ledger.ledger import Ledger
from evolution.envs.catalogue import make
from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Assignment, EvolverSetup, LocalPrivacy, Work
from evolution.methods.machines import Machines, make_machines
from evolution.methods.recipe import RecipeEvolver
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from federation.adapter.layout import factor
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from lab.demo.recipe import DELTA, EPSILON_CAP, IMITATION, Recipe
from silo_agent.local_work.plan_terms import settings_of

BASE: Final = Path(__file__).parents[1] / "lab" / "base_model"
SILOS: Final = 4
TEMPERATURES: Final = (1.0, 0.0)
Adapter = Mapping[str, np.ndarray]

GRPO: Final = dataclasses.replace(IMITATION, method="grpo", nominal_tokens=4)
ARMS: Final[Mapping[str, Recipe]] = {
    "imitation": IMITATION,
    "imitation, rate/2": dataclasses.replace(IMITATION, learning_rate=0.006),
    "imitation, rate/4": dataclasses.replace(IMITATION, learning_rate=0.003),
    "grpo": GRPO,
    "grpo, rate/2": dataclasses.replace(GRPO, learning_rate=0.006),
    "grpo, rate/4": dataclasses.replace(GRPO, learning_rate=0.003),
    "grpo, rate x 2": dataclasses.replace(GRPO, learning_rate=0.024),
    "grpo, KL to the base": dataclasses.replace(
        GRPO, objective='name = "clipped", kl_to = "base", kl_beta = 0.1'
    ),
    "grpo, KL 0.3 to the base": dataclasses.replace(
        GRPO, objective='name = "clipped", kl_to = "base", kl_beta = 0.3'
    ),
    "grpo, KL to the base, rate/2": dataclasses.replace(
        GRPO, objective='name = "clipped", kl_to = "base", kl_beta = 0.1', learning_rate=0.006
    ),
    "grpo, 8 tries": dataclasses.replace(GRPO, tries_per_task=8),
    "grpo, window 1, 1 step": dataclasses.replace(GRPO, window=1, steps=1),
    "grpo, 6 rounds, rate/2": dataclasses.replace(GRPO, rounds=6, learning_rate=0.006),
}


def plan_of(recipe: Recipe, seed: int) -> Plan:
    """The plan that an arm would be run by."""
    return read_plan(
        recipe.toml(
            name="record-objectives",
            base="base",
            base_sha256=base_sha256(BASE),
            environments=("craft",),
            seed=seed,
            held_out=8,
        ).encode()
    )


@contextmanager
def silos_of(plan: Plan, directory: Path, machines: Machines) -> Iterator[list[RecipeEvolver]]:
    """The four silos, which take turns at the same machines."""
    with ExitStack() as closing:
        made = []
        for index in range(SILOS):
            silo = RecipeEvolver(
                EvolverSetup(
                    assignments=(
                        Assignment(environment="craft", shard=Shard(index=index, count=SILOS)),
                    ),
                    base_dir=BASE,
                    state_dir=directory / str(index),
                    rank=plan.model.lora_rank,
                    alpha=plan.model.lora_alpha,
                    machines=machines,
                    privacy=plan.spec,
                    recipe=plan.recipe,
                )
            )
            closing.callback(silo.close)
            made.append(silo)
        yield made


def learned(
    plan: Plan, adapter: dict[str, np.ndarray], directory: Path, machines: Machines
) -> dict[str, np.ndarray]:
    """The adapter after all rounds."""
    trainable = frozenset(
        name for name in adapter if plan.aggregation.method != "ffa" or factor(name) == "B"
    )
    settings = settings_of(plan)
    with silos_of(plan, directory, machines) as silos, ExitStack() as closing:
        ledgers = [
            closing.enter_context(
                Ledger.open(
                    directory / str(index) / "ledger", delta=DELTA, caps={"task": EPSILON_CAP}
                )
            )
            for index in range(SILOS)
        ]
        for number in range(1, plan.rounds.count + 1):
            deltas = []
            for index, (silo, ledger) in enumerate(zip(silos, ledgers, strict=True)):

                def reserve(ledger: Ledger = ledger, number: int = number) -> Any:
                    return ledger.reserve_training(
                        run="bench", round=number, spec=plan.spec, adapter_sha256=bytes(32)
                    )

                work = Work(
                    round=number,
                    adapter=adapter,
                    adapter_sha256=f"{number}",
                    trainable=trainable,
                    settings=settings,
                    seed=index + 1,
                    privacy=LocalPrivacy(spec=plan.spec, reserve=reserve),
                )
                deltas.append(silo.evolve(work).delta)
            for name in trainable:
                adapter[name] = adapter[name] + np.mean(
                    [delta[name] for delta in deltas], axis=0, dtype=np.float32
                )
    return adapter


def judged(machines: Machines, adapter: Adapter, split: Split, tasks: int) -> dict[str, float]:
    """Success by temperature."""
    machines.engine.load_adapter("judged", adapter)
    ids = make("craft").task_ids(split)[:tasks]
    found = {}
    for temperature in TEMPERATURES:
        played = run_episodes(
            machines.engine,
            [Task(environment="craft", task_id=task_id) for task_id in ids],
            temperature=temperature,
            seed=99,
            max_new_tokens=8,
        ).trajectories
        found[str(temperature)] = sum(one.success for one in played) / len(ids)
    return found


def run(name: str, recipe: Recipe, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One arm at one seed."""
    started_s = time.perf_counter()
    plan = plan_of(recipe, seed)
    split = Split.HELD_OUT if options.held_out else Split.PRETRAIN
    first = initial_adapter(BASE, plan.model.lora_rank, plan.model.lora_alpha, seed)
    with tempfile.TemporaryDirectory(prefix="chorale-objectives-") as scratch:
        setup = EvolverSetup(
            base_dir=BASE,
            state_dir=Path(scratch),
            rank=plan.model.lora_rank,
            alpha=plan.model.lora_alpha,
        )
        machines = make_machines(setup)
        try:
            before = judged(machines, first, split, options.tasks)
            after = judged(
                machines, learned(plan, first, Path(scratch), machines), split, options.tasks
            )
        finally:
            machines.close()
    return {
        "arm": name,
        "seed": seed,
        "base": before,
        "together": after,
        "noise_multiplier": plan.spec.noise_multiplier,
        "seconds": round(time.perf_counter() - started_s, 1),
    }


def table_row(rows: Sequence[Mapping[str, Any]]) -> str:
    """One arm: means over seeds, in percent."""
    cells = [rows[0]["arm"].ljust(28)]
    for temperature in map(str, TEMPERATURES):
        for who in ("base", "together"):
            values = [100 * row[who][temperature] for row in rows]
            spread = f" ({min(values):.0f}-{max(values):.0f})" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}".ljust(18))
    cells.append(f"{rows[0]['noise_multiplier']:.2f}".ljust(7))
    cells.append(f"{statistics.fmean(row['seconds'] for row in rows):.0f}")
    return "".join(cells)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", metavar="ARM", choices=ARMS, help="an arm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--tasks", type=int, default=416, help="judged tasks")
    parser.add_argument(
        "--held-out", action="store_true", help="judge on the split of the reported figures"
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    print(
        f"{'':28}{'T=1: base':18}{'together':18}{'greedy: base':18}{'together':18}{'z':7}seconds",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    for name in options.only or ARMS:
        own = [run(name, ARMS[name], seed, options) for seed in options.seeds]
        rows += own
        print(table_row(own), flush=True)
    print(json.dumps({"settings": vars(options), "rows": rows}))


if __name__ == "__main__":
    main()
