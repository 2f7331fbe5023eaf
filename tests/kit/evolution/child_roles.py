"""What a child process may be asked for in tests: to answer, and to misbehave."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evolution.errors import EnvironmentSetupError

seen: list[Any] = []
since_s = time.time()


def answer(question: dict[str, Any]) -> Any:
    seen.append(question)
    return _DEEDS[question["do"]](question)


def _raise(error: BaseException) -> None:
    raise error


def _print(question: dict[str, Any]) -> str:
    print('{"done": "printed"}', flush=True)
    os.write(1, b'{"done": "written"}\n')
    return question["text"]


def _start(question: dict[str, Any]) -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid


def _await(question: dict[str, Any]) -> None:
    Path(question["asked"]).touch()
    while not Path(question["path"]).exists():
        time.sleep(0.01)


_DEEDS = {
    "await": _await,
    "count": lambda q: len(seen),
    "die": lambda q: os._exit(3),
    "echo": lambda q: q["text"],
    "fill": lambda q: len(bytearray(3 << 30)),
    "hang": lambda q: time.sleep(100),
    "limit": lambda q: resource.getrlimit(resource.RLIMIT_CPU),
    "print": _print,
    "raise": lambda q: _raise(KeyError(q["text"])),
    "since": lambda q: since_s,
    "setup": lambda q: _raise(EnvironmentSetupError(q["text"])),
    "start": _start,
    "surround": lambda q: {**os.environ},
    "talk": lambda q: "x" * (2 << 20),
    "unjson": lambda q: object(),
    "write": lambda q: Path(q["path"]).write_bytes(b"x" * q["size"]),
}
