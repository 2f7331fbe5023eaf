"""What playing takes of memory, measured in a process of its own.

``python -m tests.kit.evolution.playing_memory BASE SMALL_BASE CONVERSATIONS TOKENS`` prints, in
bytes, what the process held at most beside what it held before it read the base. The small base is
played with first: what is imported and set up on the way is not the model's. Pages of mapped files
are not counted, since a kernel takes back those of a library at any time, and then they would seem
to be the model's when they are read again.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from evolution.envs.environment import Environment
from evolution.model.lora import initial_adapter
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Task

RANK, ALPHA, ANSWER = 8, 16.0, 4


class Long(Environment):
    """Begins with a half of the tokens, and goes on until none is left."""

    name = family = "long"
    max_steps = 1_000
    labels = ("all",)

    def __init__(self, words):
        self.words = words

    @property
    def instruction(self):
        return "word"

    def reset(self, task_id):
        return "word " * (self.words // 2), {}

    def step(self, action):
        return "word " * (self.words // 8), 0.0, False, False, {}

    def success(self, info):
        return False


def play(base, conversations, tokens):
    engine = HfEngine(base, alpha=ALPHA)
    # An answer is as long as it may be where nothing ends it.
    engine.chat.end_ids = frozenset()
    engine.load_adapter("v", initial_adapter(base, RANK, ALPHA, 0))
    batch = run_episodes(
        engine,
        [Task(environment="long", task_id=index) for index in range(conversations)],
        temperature=1.0,
        seed=0,
        max_new_tokens=ANSWER,
        batch_size=conversations,
        make_environment=lambda _: Long(tokens),
        max_tokens=tokens,
    )
    return min(one.token_count for one in batch.trajectories)


def held():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status")


@contextmanager
def watched():
    """Yields a list of what was held, which grows every few milliseconds."""
    seen, over = [held()], threading.Event()

    def look():
        while not over.wait(0.002):
            seen.append(held())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def main(base, small, conversations, tokens):
    play(small, 2, 64)
    with watched() as seen:
        shortest = play(base, int(conversations), int(tokens))
    print(json.dumps({"bytes": max(seen) - seen[0], "shortest": shortest}))


if __name__ == "__main__":
    main(*sys.argv[1:])
