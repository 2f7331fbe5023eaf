"""TextWorld games behind Gymnasium's interface, as an operator would write it.

TextWorld has a `gym` module of its own that follows the older interface; this is the bridge. A seed
chooses one of the games in a directory.
"""

from __future__ import annotations

import string
from pathlib import Path

import gymnasium
import textworld
from gymnasium.spaces import Text

_COMMAND = frozenset(string.ascii_letters + string.digits + " '-")


def generate(directory: Path, seed: int) -> Path:
    """Write one small game, offline."""
    options = textworld.GameOptions()
    options.seeds = seed
    options.nb_rooms, options.nb_objects, options.quest_length = 2, 4, 2
    options.path = str(directory / f"game-{seed}.z8")
    game = textworld.generator.make_game(options)
    return Path(textworld.generator.compile_game(game, options))


class Games(gymnasium.Env):
    """One game a seed."""

    action_space = Text(80, charset=_COMMAND)
    observation_space = Text(100_000)

    def __init__(self, directory: str) -> None:
        self._files = sorted(Path(directory).glob("*.z8"))
        self._game = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.close()
        path = self._files[seed % len(self._files)]
        self._game = textworld.start(str(path), textworld.EnvInfos(won=True, description=True))
        state = self._game.reset()
        return state.feedback, {}

    def step(self, action):
        state, _, done = self._game.step(action)
        return state.feedback, float(bool(state.won)), bool(done), False, {"won": bool(state.won)}

    def close(self):
        if self._game is not None:
            self._game.close()
            self._game = None
