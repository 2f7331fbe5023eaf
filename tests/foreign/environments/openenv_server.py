"""A small environment served by the real `openenv` package.

`python openenv_server.py SESSIONS` prints its port and serves at most so many sessions at once.
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State

COLOURS = ("red", "green", "blue")


class Say(Action):
    message: str


class Seen(Observation):
    text: str


class Colour(Environment):
    """Say the colour of the task."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.wanted, self.count = "", 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        del episode_id, kwargs
        self.wanted, self.count = COLOURS[seed % 3], 0
        return Seen(text=f"say {self.wanted}")

    def step(self, action, timeout_s=None, **kwargs):
        del timeout_s, kwargs
        self.count += 1
        if action.message == "fall over":
            raise RuntimeError("asked to")
        right = action.message == self.wanted
        return Seen(text=f"say {self.wanted}", reward=float(right), done=right)

    @property
    def state(self):
        return State(step_count=self.count)


if __name__ == "__main__":
    app = create_fastapi_app(Colour, Say, Seen, max_concurrent_envs=int(sys.argv[1]))
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
