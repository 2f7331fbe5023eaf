"""Environments that fail on purpose, and an engine that plays them."""

from __future__ import annotations

from types import SimpleNamespace

from evolution.envs.environment import Environment
from evolution.rollout.engine import Generation
from evolution.trajectory import Task
from tests.kit.evolution.plain_engine import PlainEngine

BAD = 5
TASKS = [Task(environment="frail", task_id=index) for index in range(12)]


class Frail(Environment):
    """Its process dies with the bad task, and stays dead."""

    name = family = "frail"
    max_steps = 2
    labels = ("only",)
    fails_in = ""

    def __init__(self):
        self.task_id, self.dead, self.turns = -1, False, 0

    def meet(self, place):
        self.dead = self.dead or (self.task_id == BAD and place in self.fails_in)
        if self.dead:
            raise RuntimeError("no process")

    @property
    def instruction(self):
        return "go"

    def reset(self, task_id):
        self.task_id, self.turns = task_id, 0
        self.meet("reset")
        return str(task_id), {}

    def step(self, action):
        self.meet("step")
        self.turns += 1
        return str(self.task_id), 0.0, self.turns == 2, False, {}

    def success(self, info):
        self.meet("success")
        return True

    def close(self):
        self.meet("close")


class Engine(PlainEngine):
    """Answers every prompt with its conversation's task, and keeps count."""

    context_limit = 1000
    most_at_once = 1000
    adapter_version = "v"

    def __init__(self, fails=""):
        self.fails = fails
        self.chat = SimpleNamespace(
            opening=lambda _, observation, examples: [int(observation), *map(len, examples)],
            next_turn=lambda observation: [int(observation)],
            parse_action=self.parse,
            turn_end_id=0,
        )

    def parse(self, token_ids):
        if self.fails == "parse" and BAD in token_ids:
            raise ValueError("an answer that is no text")
        return "act"

    def generate(self, prompts, sampling):
        bad = [prompt for prompt in prompts if prompt.token_ids[0] == BAD]
        if bad and (self.fails == "alone" or (self.fails == "together" and len(prompts) > 1)):
            raise MemoryError("out of memory")
        return [
            Generation(token_ids=(prompt.token_ids[0],), logprobs=(0.0,), ended=True)
            for prompt in prompts
        ]
