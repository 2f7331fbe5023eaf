"""A process that kills itself at chosen instants, each once, whatever restarts later.

CHORALE_TEST_DEATHS=<round>:<instant>[:<count>],...   when
CHORALE_TEST_DEATHS_DONE=<file>                       where the deaths so far are noted

The note is on disk before the signal: a death that is noted happened at that very instant.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Deaths:
    def __init__(self, plan: str, done: Path) -> None:
        self._file = done
        self.done = set(done.read_text().split()) if done.exists() else set()
        self._planned = set(filter(None, plan.split(",")))

    @classmethod
    def from_environment(cls) -> Deaths:
        return cls(os.environ["CHORALE_TEST_DEATHS"], Path(os.environ["CHORALE_TEST_DEATHS_DONE"]))

    def due(self, instant: str) -> bool:
        if instant not in self._planned - self.done:
            return False
        # Another process may have died there since this one was started: a standby was.
        return not self._file.exists() or instant not in self._file.read_text().split()

    def at(self, instant: str) -> None:
        if not self.due(instant):
            return
        with self._file.open("a") as file:
            file.write(f"{instant}\n")
            file.flush()
            os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)
