"""Small experiments for tests: a tiny base that knows Craft's words, three or four silos."""

from pathlib import Path

from evolution.model.identity import base_sha256
from lab.experiment.config import load_experiment
from tests.kit.evolution import tiny_base

HEAD = """
name = "small"
base = "base"
rounds = 2
seeds = [0]
rank = 2
alpha = 4.0

[evolve]
episodes = 8
tries_per_task = 2
max_new_tokens = 4
learning_rate = 1e-2

[judge]
held_out = 16
held_out_other = 8
temperatures = [1.0]
every = 1
silos_every = 1
"""


def silo(index, *, environment="craft", count=4, **changes):
    values = {"shard_index": index, "shard_count": count, "demonstrations": 3, **changes}
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return f'\n[[silo]]\nname = "silo-{index}"\nenvironments = ["{environment}"]\n{lines}\n'


def setting(name, method, extra=""):
    return f'\n[[setting]]\nname = "{name}"\nmethod = "{method}"\n{extra}\n'


SILOS = "".join(silo(index) for index in range(3))


def write(directory: Path, text: str) -> Path:
    path = directory / "experiment.toml"
    path.write_text(text)
    return path


def base(directory: Path) -> Path:
    made = directory / "base"
    if not made.exists():
        made.mkdir(parents=True)
        tiny_base.build(made)
    return made


def runs(directory: Path, text: str):
    loaded = load_experiment(write(directory, text))
    made = base(directory)
    return loaded.runs(base_dir=made, base_sha256=base_sha256(made))
