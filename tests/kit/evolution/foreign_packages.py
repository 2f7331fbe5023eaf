"""Small packages of the names and the form of reasoning-gym and textworld, for a directory.

They stand in where the real ones are not installed; `tests/foreign/environments` plays the real
ones.
"""

from __future__ import annotations

from pathlib import Path

REASONING_GYM = '''
import time
from dataclasses import dataclass, field


@dataclass
class Settings:
    longest: int = 5
    words: list[str] = field(default_factory=lambda: ["a", "b"])
    rate: float = 0.5
    pair: tuple[int, ...] = (1, 2)
    names: tuple[str] = ("x", "y")
    loud: bool = False
    seed: int = 0
    size: int = 500

    def validate(self):
        assert self.longest > 0, "longest must be positive"


class Numbers:
    """The answer is the seed."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        seed = self.config.seed
        if self.config.words == ["long"]:
            return {"question": "x" * 4001, "answer": ""}
        question = f"say {seed} {self.config.words} {self.config.pair}"
        return {"question": question, "answer": str(seed), "metadata": {}}

    def score_answer(self, answer, entry):
        if answer == "wait":
            time.sleep(100)
        if answer == "more than all":
            return 1.5
        return {entry["answer"]: 1.0, "near": 0.25}.get(answer) or float(int(answer) * 0)


def _helper(answer):
    return eval(answer)


class Evaluates(Numbers):
    def score_answer(self, answer, entry):
        if answer is None:
            return 0.125
        return float(_helper(answer) == eval(entry["answer"]))


DATASETS = {
    "numbers": (Numbers, Settings),
    "n_queens": (Evaluates, Settings),
    "puzzle24": (Evaluates, Settings),
    "unheard_of": (Evaluates, Settings),
    "composite": (Numbers, Settings),
}


def create_dataset(name, **options):
    made, settings = DATASETS[name]
    config = settings(**options)
    config.validate()
    return made(config)
'''

TEXTWORLD = """
import json
import os
import time
from types import SimpleNamespace

from textworld import generator

made = []
played = []


class GameOptions:
    pass


class EnvInfos:
    def __init__(self, **asked):
        self.asked = asked


class Game:
    def __init__(self, path):
        with open(path) as file:
            self.seed = json.load(file)["seed"]
        self.said = []

    def _state(self, feedback, won=False):
        return SimpleNamespace(
            objective="Take the lamp.",
            description="-= Cellar =-\\n\\n\\n\\nDark.",
            feedback=feedback + "\\n\\n>      -= Cellar =-0/1",
            verbs=["take", "drop", "examine"],
            admissible_commands=["drop coin", "take lamp"],
            won=won,
        )

    def reset(self):
        return self._state("banner")

    def step(self, command):
        played.append(command)
        if command == "drop floor":
            raise ValueError(command)
        won = command == "take lamp"
        return self._state(f"Taken {self.seed}." if won else "No.", won), 0, won

    def close(self):
        played.append("(closed)")


def start(path, infos):
    return Game(path)
"""

GENERATOR = """
import json
import os
import time


def make_game(options):
    if options.nb_rooms == 13:
        raise RuntimeError("no such quest")
    if options.nb_rooms == 14:
        time.sleep(100)
    return options


def compile_game(game, options):
    for ending in ("z8", "json", "ni"):
        # The ending alone: a directory of a chance name may hold "z8" as well.
        with open(options.path.removesuffix("z8") + ending, "w") as file:
            json.dump({"seed": options.seeds, "rooms": options.nb_rooms, "by": os.getpid()}, file)
    return options.path
"""


def write_reasoning_gym(directory: Path) -> None:
    package = directory / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "factory.py").write_text(REASONING_GYM)


def write_textworld(directory: Path) -> None:
    package = directory / "textworld"
    package.mkdir()
    (package / "__init__.py").write_text(TEXTWORLD)
    (package / "generator.py").write_text(GENERATOR)
    about = directory / "textworld-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: textworld\nVersion: 0\n")
