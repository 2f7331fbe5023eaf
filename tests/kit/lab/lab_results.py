"""A synthetic results.jsonl: two federations, known rates, a fixed stream of outcomes."""

import json
import random
from pathlib import Path

from lab.report.results import load_results

SEEDS = (0, 1, 2)
ENVIRONMENTS = ("craft", "maze", "shop")
TASKS = 40
ROUNDS = (2, 4)
RATES = {"pretrained": 0.2, "local": 0.35, "central": 0.5, "fedit": 0.4, "fedse": 0.7}
# Federation II: two silos in each of two families, each with one of its environment's two labels.
SHARDS = {0: ("craft", "a"), 1: ("craft", "b"), 2: ("maze", "a"), 3: ("maze", "b")}


def run_line(setting, seed, experiment="first", **more):
    return {
        "kind": "run", "experiment": experiment, "setting": setting, "method": setting,
        "seed": seed, "config": {}, "rounds": 4, "wall_s": 60.0, "episodes": 100,
        "adapter_sha256": "00", "versions": {}, **more,
    }  # fmt: skip


def round_line(setting, seed, number, successes=3, episodes=10, **more):
    return {
        "kind": "round", "setting": setting, "method": setting, "seed": seed, "round": number,
        "successes": {"craft": successes, "maze": 1}, "episodes": {"craft": episodes, "maze": 10},
        "kappa": None, "zeta2": 0.1, "delta_l2_mean": 1.0, "wall_s": 2.0, **more,
    }  # fmt: skip


def eval_line(setting, seed, outcomes, **more):
    return {
        "kind": "eval", "setting": setting, "method": setting, "seed": seed, "round": 4,
        "silo": -1, "scope": "global", "environment": "craft", "family": "craft", "label": "",
        "own": None, "same_family": None, "temperature": 1.0, "outcomes": outcomes, **more,
    }  # fmt: skip


def outcomes(stream, rate, tasks=TASKS):
    return "".join("1" if stream.random() < rate else "0" for _ in range(tasks))


def federation_one():
    """One environment per silo; `local` is judged on its own environment, the others everywhere."""
    stream, lines = random.Random(5), []  # noqa: S311
    for setting, rate in RATES.items():
        for seed in SEEDS:
            judged = (0,) if setting == "pretrained" else ROUNDS
            for number in judged:
                for temperature in (0.0, 1.0):
                    for silo, name in enumerate(ENVIRONMENTS):
                        who = {}
                        if setting == "local":
                            who = {"silo": silo, "scope": "alone", "own": True, "same_family": True}
                        share = 1.0 if len(judged) == 1 else 0.5 + number / 8
                        lines.append(
                            eval_line(
                                setting, seed, outcomes(stream, rate * share), round=number,
                                environment=name, family=name, temperature=temperature, **who,
                            )
                        )  # fmt: skip
            lines += [
                round_line(setting, seed, n, successes=n)
                for n in range(1, 5)
                if setting != "pretrained"
            ]
            lines.append(run_line(setting, seed))
    return lines


def federation_two():
    """Task shards: `local_evolution` alone, `fedse` together and personal."""
    stream, lines = random.Random(6), []  # noqa: S311
    every = sorted(set(SHARDS.values()))
    for seed in SEEDS:
        for environment, label in every:
            lines.append(
                eval_line(
                    "fedse", seed, outcomes(stream, 0.7), environment=environment,
                    family=environment, label=label,
                )
            )  # fmt: skip
        for setting, scope, own_rate in (
            ("local_evolution", "alone", 0.75),
            ("fedse", "personal", 0.8),
        ):
            for silo, mine in SHARDS.items():
                for environment, label in every:
                    own = (environment, label) == mine
                    lines.append(
                        eval_line(
                            setting, seed, outcomes(stream, own_rate if own else 0.3), silo=silo,
                            scope=scope, environment=environment, family=environment, label=label,
                            own=own, same_family=environment == mine[0],
                        )
                    )  # fmt: skip
        lines += [run_line(name, seed, "second") for name in ("fedse", "local_evolution")]
    return lines


def write(directory, lines):
    Path(directory).mkdir(parents=True, exist_ok=True)
    path = Path(directory) / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def loaded(directory, lines):
    (found,) = load_results([write(directory, lines)]).experiments
    return found
