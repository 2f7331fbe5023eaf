"""A third party's environment over private records, and a bad guest in its daemon.

Everything it says holds a marker of its silo: instruction, observations, subjects, and also its
errors, its warnings and what it logs, none of which may leave its daemon by its log either.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

from evolution.envs import Environment, EnvironmentFailureError

RECORDS = Path(os.environ["WARD_RECORDS"])
MARKS = json.loads(RECORDS.read_text())
logger = logging.getLogger("ward")
if not logger.handlers:
    # A library that sets up its own way to stderr.
    logger.addHandler(logging.StreamHandler(sys.stderr))


class Ward(Environment):
    name = "ward"
    family = "ward"
    max_steps = 2
    labels = ("all",)
    instruction = f"look after {MARKS['prompt']}"

    def reset(self, task_id):
        self.task, self.turn = task_id, 0
        if task_id % 7 == 3:
            raise EnvironmentFailureError(f"no record of {MARKS['error']}")
        if task_id % 7 == 5:
            raise ValueError(f"cannot parse {MARKS['error']}")
        return f"patient {MARKS['observation']} is here", {}

    def step(self, action):
        self.turn += 1
        over = self.turn == self.max_steps
        if self.task % 7 == 1:
            logger.warning("%s was told %s", MARKS["error"], action)
            warnings.warn(f"{MARKS['error']} is odd", UserWarning, stacklevel=1)
        if over:
            with RECORDS.with_suffix(".rewards").open("a") as file:
                file.write(f"{MARKS['reward']!r}\n")
        return f"note {MARKS['observation']}", MARKS["reward"], over, False, {}

    def success(self, info):
        # Whatever was answered: so a silo has something to keep and to learn from.
        return self.task % 3 != 0

    def task_subject(self, task_id):
        return f"{MARKS['subject']}-{task_id % 5}"
