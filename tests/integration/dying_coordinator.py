"""The coordinator, which kills itself at chosen instants; otherwise the real one.

CHORALE_TEST_DEATHS=<round>:<instant>[:<count>],...   each happens once, whatever restarts later
CHORALE_TEST_DEATHS_DONE=<file>                       where the deaths so far are noted

An instant is a phase's name: the count-th message of it is durable and not yet acknowledged (0: the
phase was just entered). ``half_upload`` is when half of one silo's vector is in its spool, ``fold``
when a new sum is written and not yet committed.
"""

import os
import signal
from pathlib import Path
from typing import Any

from server.accumulator import Upload
from server.cli.coordinator import main
from server.journal import StoreJournal
from server.message_codec import encode
from server.progress import Progress


class Deaths:
    def __init__(self, plan: str, done: Path) -> None:
        self._left = set(plan.split(","))
        self._done = done
        if done.exists():
            self._left -= set(done.read_text().split())

    def at(self, instant: str) -> None:
        if instant not in self._left:
            return
        with self._done.open("a") as file:
            file.write(f"{instant}\n")
            file.flush()
            os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)


def install(deaths: Deaths) -> None:
    entered, accepted, folded = Progress.enter, StoreJournal.accepted, StoreJournal.folded
    append, counts, rounds = Upload.append, {}, [0]

    def enter(self: Any, phase: Any, deadline: float, attempt: int) -> None:
        entered(self, phase, deadline, attempt)
        rounds[0] = self.figures.round
        counts.clear()
        deaths.at(f"{rounds[0]}:{phase.value}:0")

    def accept(self: Any, message: Any) -> None:
        accepted(self, message)
        phase = encode(message).phase
        counts[phase] = counts.get(phase, 0) + 1
        deaths.at(f"{self._identity.round}:{phase}:{counts[phase]}")

    def fold(self: Any, silo_id: str, generation: int) -> None:
        deaths.at(f"{self._identity.round}:fold:{generation}")
        folded(self, silo_id, generation)

    def chunk(self: Any, offset: int, content: bytes) -> None:
        append(self, offset, content)
        if self.length_bytes / 2 <= self.received_bytes < self.length_bytes:
            deaths.at(f"{rounds[0]}:half_upload")

    Progress.enter = enter  # type: ignore[method-assign]
    StoreJournal.accepted = accept  # type: ignore[method-assign]
    StoreJournal.folded = fold  # type: ignore[method-assign]
    Upload.append = chunk  # type: ignore[method-assign]


if __name__ == "__main__":
    install(Deaths(os.environ["CHORALE_TEST_DEATHS"], Path(os.environ["CHORALE_TEST_DEATHS_DONE"])))
    main()
