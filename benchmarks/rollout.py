"""What batching buys: the rollout engine against one episode at a time.

The same base model, tasks and environments, one thread, in one run; the two arms take turns.

    engine   ``run_episodes`` on ``HfEngine``, one environment after the other as when a silo
             judges: 64 episodes share a batch and one key/value cache that lives across turns
    naive    each episode by itself: after every observation ``transformers``' own ``generate``
             (its key/value cache on) gets the whole conversation so far

Both see the same tokens, because the layout is ``ChatFormat``'s. A greedy episode of one arm is
the same episode of the other, which is counted. At temperature 1 the arms draw differently, so
steps per second are compared there. A ratio is the median over rounds of neighbours in time, in
CPU seconds of one thread, so that a busy machine slows both sides.

Then episodes of unlike length, all environments in turn, at a batch of a quarter of the tasks:

    refilled  one call of ``run_episodes``: as an episode ends the next takes its seat
    waves     one call for each batch: a batch waits for its longest episode

Both play the same episodes, which is counted. Two ratios: of CPU seconds, median over rounds, and
of turns, which are calls of the engine. The second is what is saved where a turn takes as long for
few episodes as for many: with a model server, and with environments that are slow.

Then greedy play in wall time, on all cores: a worker for each core (``[rollout] workers``), whose
environments step while others answer, against the naive loop with one thread and with a thread for
each core. On a busy machine these say little.

The last part judges 400 held-out tasks at each temperature: wall time.

Prints tables and, as its last line, the figures as JSON; ``speedup`` is that of greedy play, whose
work is the same on both sides.
"""

from __future__ import annotations

import os

# Before numpy and torch: more threads would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment
from evolution.envs.tasks import Split
from evolution.model.causal_lm import load_base, load_tokenizer
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.rollout.workers import WorkerEngine
from evolution.trajectory import Task

BASE = Path(__file__).parents[1] / "lab" / "base_model"
MAX_NEW_TOKENS = 12
TARGET_SPEEDUP, TARGET_WALL, TARGET_S, JUDGED = 5.0, 10.0, 30.0, 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What an arm did with the tasks."""

    episodes: list[tuple[int, ...]]
    """All tokens of each."""
    successes: int
    steps: int
    """Of environments."""
    cpu_s: float
    wall_s: float

    @property
    def steps_per_s(self) -> float:
        """Environment steps in a CPU second."""
        return self.steps / self.cpu_s


def tasks_of(environments: Sequence[str], each: int) -> list[list[Task]]:
    """The first held-out tasks of each environment."""
    return [
        [
            Task(environment=name, task_id=task_id)
            for task_id in make(name).task_ids(Split.HELD_OUT)[:each]
        ]
        for name in environments
    ]


def batched(engine: RolloutEngine, groups: Sequence[Sequence[Task]], temperature: float) -> Played:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    played = [
        run_episodes(engine, tasks, temperature=temperature, seed=0, max_new_tokens=MAX_NEW_TOKENS)
        for tasks in groups
    ]
    if any(batch.dropped for batch in played):
        raise RuntimeError("episodes were dropped")
    trajectories = [trajectory for batch in played for trajectory in batch.trajectories]
    return Played(
        episodes=[trajectory.token_ids for trajectory in trajectories],
        successes=sum(trajectory.success for trajectory in trajectories),
        steps=sum(batch.environment_steps for batch in played),
        cpu_s=time.process_time() - cpu_s,
        wall_s=time.perf_counter() - wall_s,
    )


class Naive:
    """One episode at a time."""

    def __init__(self) -> None:
        self.model: Any = load_base(BASE)
        tokenizer = load_tokenizer(BASE)
        self.chat = ChatFormat.from_tokenizer(tokenizer)
        self.pad = tokenizer.pad_token_id

    @torch.inference_mode()
    def answer(self, history: list[int], temperature: float) -> list[int]:
        """The next answer."""
        ids = torch.tensor([history])
        drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=bool(temperature),
            eos_token_id=sorted(self.chat.end_ids),
            pad_token_id=self.pad,
            use_cache=True,
            **drawn,
        )
        return [int(token) for token in out[0, len(history) :]]

    def episode(
        self, environment: Environment, task_id: int, temperature: float
    ) -> tuple[tuple[int, ...], int, bool]:
        """All tokens, the number of steps, and the verdict."""
        observation, _ = environment.reset(task_id)
        history = self.chat.opening(environment.instruction, observation)
        steps = 0
        while True:
            answer = self.answer(history, temperature)
            history += answer
            observation, _, terminated, truncated, info = environment.step(
                self.chat.parse_action(answer)
            )
            steps += 1
            if terminated or truncated:
                return tuple(history), steps, bool(environment.success(info))
            if answer[-1] not in self.chat.end_ids:
                history.append(self.chat.turn_end_id)
            history += self.chat.next_turn(observation)

    def play(self, groups: Sequence[Sequence[Task]], temperature: float) -> Played:
        """Play the tasks in turn."""
        torch.manual_seed(0)
        tasks = [task for group in groups for task in group]
        environments = {name: make(name) for name in {task.environment for task in tasks}}
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        ended = [self.episode(environments[t.environment], t.task_id, temperature) for t in tasks]
        return Played(
            episodes=[tokens for tokens, _, _ in ended],
            successes=sum(success for _, _, success in ended),
            steps=sum(steps for _, steps, _ in ended),
            cpu_s=time.process_time() - cpu_s,
            wall_s=time.perf_counter() - wall_s,
        )


def compare(
    engine: HfEngine,
    naive: Naive,
    groups: Sequence[Sequence[Task]],
    temperature: float,
    rounds: int,
) -> dict[str, float]:
    """Both arms in turn; the ratios are of CPU seconds and of steps in a CPU second."""
    ours, theirs = [], []
    for index in range(rounds):
        for arm in (0, 1) if index % 2 else (1, 0):
            if arm:
                ours.append(batched(engine, groups, temperature))
            else:
                theirs.append(naive.play(groups, temperature))
    same = sum(a == b for a, b in zip(ours[0].episodes, theirs[0].episodes, strict=True))
    for name, played in (("engine", ours), ("naive", theirs)):
        print(
            f"{temperature:11.0f}  {name:7s} {statistics.median(p.cpu_s for p in played):8.2f} "
            f"{statistics.median(p.steps_per_s for p in played):9.0f} {played[0].steps:6d} "
            f"{played[0].successes:9d} {same:5d}"
        )
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "same": same,
        "speedup": statistics.median(b.cpu_s / a.cpu_s for a, b in pairs),
        "steps_per_s": statistics.median(a.steps_per_s for a in ours),
        "steps_ratio": statistics.median(a.steps_per_s / b.steps_per_s for a, b in pairs),
    }


def refill(
    engine: HfEngine, groups: Sequence[Sequence[Task]], temperature: float, rounds: int
) -> dict[str, float]:
    """A batch that stays full against batches that wait for their longest episode."""
    tasks = [task for together in zip(*groups, strict=True) for task in together]
    size = max(1, len(tasks) // 4)
    starts = {"refilled": range(1), "waves": range(0, len(tasks), size)}
    spent: dict[str, list[float]] = {name: [] for name in starts}
    found: dict[str, list[tuple[int, ...]]] = {}
    turns: Counter[str] = Counter()
    generate = engine.generate

    def counted(prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        turns[name] += 1
        return generate(prompts, sampling)

    engine.generate = counted  # type: ignore[method-assign]  # taken back below
    for index in range(rounds):
        for name in ("refilled", "waves") if index % 2 else ("waves", "refilled"):
            step = len(tasks) if name == "refilled" else size
            cpu_s = time.process_time()
            found[name] = [
                trajectory.token_ids
                for start in starts[name]
                for trajectory in run_episodes(
                    engine,
                    tasks[start : start + step],
                    keys=range(len(tasks))[start : start + step],
                    temperature=temperature,
                    seed=0,
                    max_new_tokens=MAX_NEW_TOKENS,
                    batch_size=size,
                ).trajectories
            ]
            spent[name].append(time.process_time() - cpu_s)
    engine.generate = generate  # type: ignore[method-assign]
    saved = turns["waves"] / turns["refilled"]
    ratio = statistics.median(b / a for a, b in zip(*spent.values(), strict=True))
    same = sum(a == b for a, b in zip(*found.values(), strict=True))
    print(
        f"{temperature:11.0f} {size:6d} {statistics.median(spent['refilled']):15.2f} "
        f"{statistics.median(spent['waves']):12.2f} {ratio:6.2f} {saved:6.2f} "
        f"{same:5d}"
    )
    return {"cpu": round(ratio, 2), "turns": round(saved, 2)}


def on_all_cores(naive: Naive, groups: Sequence[Sequence[Task]], rounds: int) -> dict[str, float]:
    """Wall time of greedy play: a worker for each core against the naive loop."""
    cores = len(os.sched_getaffinity(0))
    engine = WorkerEngine(BASE, alpha=16.0, dtype="float32", threads=1, device="cpu", workers=cores)
    arms: dict[str, list[Played]] = {"workers": [], "naive, 1 thread": [], "naive, all": []}
    try:
        batched(engine, [group[: 2 * cores] for group in groups], 0.0)
        for _ in range(rounds):
            arms["workers"].append(batched(engine, groups, 0.0))
            arms["naive, 1 thread"].append(naive.play(groups, 0.0))
            torch.set_num_threads(cores)
            arms["naive, all"].append(naive.play(groups, 0.0))
            torch.set_num_threads(1)
    finally:
        engine.close()
    print(f"\nwall time on {cores} cores, greedy\narm                wall s")
    for name, played in arms.items():
        print(f"{name:16s} {statistics.median(one.wall_s for one in played):8.2f}")
    ours, one, every = arms.values()
    return {
        "cores": cores,
        "same": sum(a == b for a, b in zip(ours[0].episodes, one[0].episodes, strict=True)),
        "one_thread": _wall_ratio(ours, one),
        "all_threads": _wall_ratio(ours, every),
    }


def _wall_ratio(ours: Sequence[Played], theirs: Sequence[Played]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return round(statistics.median(b.wall_s / a.wall_s for a, b in pairs), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=64, help="of each environment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", default="craft,maze,wordle,babyai")
    options = parser.parse_args()
    environments = options.environments.split(",")

    engine, naive = HfEngine(BASE), Naive()
    groups = tasks_of(environments, options.tasks)
    count = sum(map(len, groups))
    batched(engine, tasks_of(environments, 2), 0.0)
    naive.play(tasks_of(environments, 1), 0.0)
    print(f"{count} tasks of {options.environments}, {options.rounds} rounds, one thread")
    print("temperature  arm        cpu s   steps/s  steps successes  same")
    greedy = compare(engine, naive, groups, 0.0, options.rounds)
    sampled = compare(engine, naive, groups, 1.0, options.rounds)

    print(
        "\nepisodes of unlike length\n"
        "temperature  batch  refilled cpu s  waves cpu s  ratio  turns  same"
    )
    refilled = [refill(engine, groups, temperature, options.rounds) for temperature in (0.0, 1.0)]

    cores = on_all_cores(naive, groups, options.rounds)

    judged = tasks_of(environments, JUDGED // len(environments))
    print(f"\njudging {sum(map(len, judged))} tasks")
    print("temperature   wall s   cpu s   steps/s (cpu) successes")
    wall_s = []
    for temperature in (0.0, 1.0):
        played = batched(engine, judged, temperature)
        wall_s.append(played.wall_s)
        print(
            f"{temperature:11.0f} {played.wall_s:8.1f} {played.cpu_s:7.1f} "
            f"{played.steps_per_s:15.0f} {played.successes:9d}"
        )
    figures = {
        "speedup": round(greedy["speedup"], 2),
        "speedup_sampled": round(sampled["steps_ratio"], 2),
        "steps_per_s": round(greedy["steps_per_s"]),
        "same_greedy_episodes": f"{greedy['same']:.0f}/{count}",
        "refilled": refilled,
        "wall": cores,
        "judge_400_s": round(max(wall_s), 1),
        "load": round(os.getloadavg()[0], 1),
        "met": {
            "speedup": greedy["speedup"] >= TARGET_SPEEDUP,
            "wall": min(cores["one_thread"], cores["all_threads"]) >= TARGET_WALL,
            "judge_400_s": max(wall_s) <= TARGET_S,
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
