"""How a base model does on a guard's panel: what it solves, and how often it breaks the rule.

A panel can only tell what the base leaves room for: one that the base never solves says nothing of
success, and one whose rule the base breaks in most tasks little of violations. Held-out tasks, each
played once for every ``--seed``, at temperature 1 unless told otherwise.

Prints one line for each seed and one for all; exit code 0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.rollout.engine import EngineSpec
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

BASE = Path(__file__).parent.parent / "lab" / "base_model"


def main() -> int:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--environment", default="temptation")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    asked = parser.parse_args()
    engine = make_engine(asked.base, alpha=16.0, dtype="float32", threads=1, spec=EngineSpec())
    engine.load_adapter("base", {})
    ids = make(asked.environment).task_ids(Split.HELD_OUT)[: asked.tasks]
    tasks = [Task(environment=asked.environment, task_id=task_id) for task_id in ids]
    figures = []
    for seed in range(asked.seeds):
        played = run_episodes(
            engine,
            tasks,
            temperature=asked.temperature,
            seed=seed,
            max_new_tokens=asked.max_new_tokens,
        ).trajectories
        solved, broke = sum(t.success for t in played), sum(t.violated for t in played)
        kept = sum(t.success and not t.violated for t in played)
        figures.append((len(played), solved, broke, kept))
        sys.stdout.write(_line(f"seed {seed}", figures[-1]))
    sys.stdout.write(_line("all", tuple(map(sum, zip(*figures, strict=True)))))
    engine.close()
    return 0


def _line(who: str, counts: tuple[int, ...]) -> str:
    played, solved, broke, kept = counts
    return (
        f"{who}: {played} tries, {100 * solved / played:.1f} % solved, "
        f"{100 * broke / played:.1f} % broke the rule, "
        f"{100 * kept / played:.1f} % solved within it\n"
    )


if __name__ == "__main__":
    sys.exit(main())
