"""Fed-SE on Craft with the goals dealt out over silos: base, alone and together, in one process.

No wire and no masks: the arithmetic of a federation alone, to choose settings and to see what
learning costs. ``together`` clips each delta to ``--clip-l2``, averages, adds Gaussian noise of
standard deviation ``noise · clip / silos`` per coordinate (what the real path leaves on the mean)
and takes a server step. ``alone`` lets each silo keep its own delta, neither clipped nor noised.
Everyone is judged on the same held-out tasks of all goals.

Prints a table and, as its last line, the figures as JSON. Intervals are Wilson's at 95 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from evolution.envs.tasks import Shard
from evolution.methods.evolver import (
    Assignment,
    Evaluation,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolveSettings,
    Work,
)
from evolution.methods.registry import make_evolver
from evolution.model.lora import initial_adapter

Adapter = dict[str, np.ndarray]


def wilson(successes: int, episodes: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson, JASA 22, 1927)."""
    z, p = 1.959964, successes / episodes
    centre = p + z * z / (2 * episodes)
    half = z * math.sqrt(p * (1 - p) / episodes + z * z / (4 * episodes**2))
    return (centre - half) / (1 + z * z / episodes), (centre + half) / (1 + z * z / episodes)


def l2(delta: Adapter) -> float:
    return math.sqrt(sum(float(np.square(d, dtype=np.float64).sum()) for d in delta.values()))


class Bench:
    """The silos and what they are judged by."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options = options
        self.scratch = scratch
        self.settings = EvolveSettings(
            episodes=options.episodes,
            tries_per_task=options.tries,
            window=options.window,
            epochs=options.epochs,
            learning_rate=options.lr,
            batch_size=options.batch_size,
            rollout_batch=options.rollout_batch,
            explore=not options.no_exploration,
            learn=not options.no_learning,
            seed=options.seed,
        )
        self.first = initial_adapter(options.base, options.rank, options.alpha, options.seed)
        self.norms: list[list[float]] = []
        self.stages: dict[str, float] = {}

    def silos(self, name: str) -> list[Evolver]:
        """Fresh silos with stores of their own."""
        count = self.options.silos
        return [
            make_evolver(
                EvolverSetup(
                    assignments=(
                        Assignment(
                            environment=self.options.environment,
                            shard=Shard(index=index, count=count),
                        ),
                    ),
                    base_dir=self.options.base,
                    state_dir=self.scratch / name / str(index),
                    rank=self.options.rank,
                    alpha=self.options.alpha,
                ),
            )
            for index in range(count)
        ]

    def evolve(self, silo: Evolver, adapter: Adapter, index: int, round_index: int) -> Evolution:
        """One silo's round."""
        evolution = silo.evolve(
            Work(
                round=round_index,
                adapter=adapter,
                adapter_sha256=f"{index}-{round_index}",
                trainable=frozenset(adapter),
                settings=self.settings,
                seed=index,
            )
        )
        for stage, seconds in evolution.duration_s.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        return evolution

    def judge(self, silo: Evolver, adapter: Adapter) -> dict[str, list[int]]:
        """Successes and episodes per temperature, and per temperature and shard."""
        started_s = time.perf_counter()
        rows = silo.evaluate(
            Evaluation(
                round=0,
                adapter=adapter,
                adapter_sha256="judged",
                episodes=self.options.held_out,
                shards=self.options.silos,
                seed=self.options.seed,
            )
        )
        self.stages["judge"] = self.stages.get("judge", 0.0) + time.perf_counter() - started_s
        counts: dict[str, list[int]] = {}
        for row in rows:
            for key in (f"T={row.temperature:g}", f"T={row.temperature:g} shard {row.shard}"):
                total = counts.setdefault(key, [0, 0])
                total[0] += row.successes
                total[1] += row.episodes
        return counts

    def together(self, step: float) -> dict[str, list[int]]:
        """A federation from first to last round, then judged."""
        silos = self.silos(f"together-{step:g}")
        adapter = dict(self.first)
        rng = np.random.default_rng(self.options.seed + 1)
        for round_index in range(self.options.rounds):
            evolutions = [self.evolve(s, adapter, i, round_index) for i, s in enumerate(silos)]
            norms = [l2(e.delta) for e in evolutions]
            self.norms.append(norms)
            scales = [min(1.0, self.options.clip_l2 / max(norm, 1e-12)) for norm in norms]
            sigma = self.options.noise * self.options.clip_l2 / len(silos)
            for name, tensor in adapter.items():
                mean = sum(s * e.delta[name] for s, e in zip(scales, evolutions, strict=True))
                noisy = mean / len(silos) + rng.normal(0.0, sigma, tensor.shape)
                adapter[name] = (tensor + step * noisy).astype(np.float32)
            won = sum(sum(e.successes.values()) for e in evolutions)
            played = sum(sum(e.episodes.values()) for e in evolutions)
            print(
                f"  step {step:g} round {round_index}: explored {won / max(played, 1):.3f}, "
                f"norms {' '.join(f'{n:.2f}' for n in norms)}, "
                f"selected {[int(e.metrics['selected']) for e in evolutions]}, "
                f"loss {np.mean([e.metrics['last_loss'] for e in evolutions]):.3f}",
                file=sys.stderr,
            )
        counts = self.judge(silos[0], adapter)
        for silo in silos:
            silo.close()
        return counts

    def alone(self) -> list[dict[str, list[int]]]:
        """Each silo by itself for as many rounds, then judged on everything."""
        results = []
        for index, silo in enumerate(self.silos("alone")):
            adapter = dict(self.first)
            for round_index in range(self.options.rounds):
                delta = self.evolve(silo, adapter, index, round_index).delta
                adapter = {name: tensor + delta[name] for name, tensor in adapter.items()}
            results.append(self.judge(silo, adapter))
            silo.close()
        return results


def show(label: str, counts: dict[str, list[int]]) -> None:
    cells = []
    for key in ("T=1", "T=0"):
        won, played = counts[key]
        low, high = wilson(won, played)
        cells.append(f"{won / played:.3f} [{low:.3f}, {high:.3f}] n={played}")
    print(f"{label:<22}{cells[0]:<34}{cells[1]}")


def merged(results: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {key: [sum(r[key][i] for r in results) for i in (0, 1)] for key in results[0]}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("lab/base_model"))
    parser.add_argument("--environment", default="craft")
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=float, nargs="*", default=[1.0, 2.0])
    parser.add_argument("--clip-l2", type=float, default=4.0)
    parser.add_argument("--noise", type=float, default=0.002, help="noise multiplier on the sum")
    parser.add_argument("--held-out", type=int, default=208)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=0)
    defaults = {field.name: field.default for field in dataclasses.fields(EvolveSettings)}
    parser.add_argument("--episodes", type=int, default=defaults["episodes"])
    parser.add_argument("--tries", type=int, default=defaults["tries_per_task"])
    parser.add_argument("--window", type=int, default=defaults["window"])
    parser.add_argument("--epochs", type=int, default=defaults["epochs"])
    parser.add_argument("--batch-size", type=int, default=defaults["batch_size"])
    parser.add_argument("--rollout-batch", type=int, default=defaults["rollout_batch"])
    parser.add_argument("--lr", type=float, default=defaults["learning_rate"])
    parser.add_argument("--no-alone", action="store_true")
    parser.add_argument("--no-learning", action="store_true")
    parser.add_argument("--no-exploration", action="store_true")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    figures: dict[str, object] = {"settings": {k: str(v) for k, v in vars(chosen).items()}}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(chosen, Path(scratch))
        print(f"{'':<22}{'temperature 1':<34}greedy")
        judge = bench.silos("judge")[0]
        base = bench.judge(judge, bench.first)
        judge.close()
        show("base", base)
        figures["base"] = base
        bench.stages.clear()
        for step in chosen.steps:
            bench.norms.clear()
            started_s = time.perf_counter()
            counts = bench.together(step)
            show(f"together, step {step:g}", counts)
            norms = np.array(bench.norms)
            figures[f"together step {step:g}"] = {
                "counts": counts,
                "wall_s": round(time.perf_counter() - started_s, 1),
                "stage_s": {stage: round(s, 1) for stage, s in bench.stages.items()},
                "delta_l2": {
                    "median": float(np.median(norms)),
                    "p90": float(np.quantile(norms, 0.9)),
                    "max": float(norms.max()),
                    "first_round": norms[0].round(3).tolist(),
                    "last_round": norms[-1].round(3).tolist(),
                },
            }
            bench.stages.clear()
        if not chosen.no_alone:
            alone = bench.alone()
            show("alone, all silos", merged(alone))
            for index, counts in enumerate(alone):
                show(f"  silo {index}", counts)
            figures["alone"] = alone
            figures["alone stage_s"] = {s: round(t, 1) for s, t in bench.stages.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
