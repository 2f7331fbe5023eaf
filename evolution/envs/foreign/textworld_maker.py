"""What runs beside the daemon for ``textworld:``: making one game out of a seed.

::

    {"seed", "rooms", "objects", "quest_length", "directory"}   -> name of the game's file

The package writes a story file and a JSON file beside it into the directory. It runs in a process
of its own because a large world takes half a minute and nothing in the package has a time limit.

Covered: the package's general generator, offline. Not covered: its challenges (cooking, coin
collector).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import textworld
import textworld.generator

__all__ = ["answer"]


def answer(question: dict[str, Any]) -> str:
    """Make the game."""
    options = textworld.GameOptions()
    options.seeds = question["seed"]
    options.nb_rooms = question["rooms"]
    options.nb_objects = question["objects"]
    options.quest_length = question["quest_length"]
    options.path = str(Path(question["directory"]) / "game.z8")
    game = textworld.generator.make_game(options)
    return Path(textworld.generator.compile_game(game, options)).name
