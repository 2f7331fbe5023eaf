"""A silo's daemon, which kills itself at chosen instants (``deaths.py``); otherwise the real one.

CHORALE_TEST_RENEW=<round>,...   it asks for its next certificate when this round's task comes in

    evolve             the round's work is about to begin
    exploring          real methods: a first turn of the episodes is played
    charged            record_local: the training is charged, none of its steps is taken
    step               record_local: the first noisy step is taken
    result_half        half of the finished work is in a file that has no name yet
    result_kept        the finished work is durable, the silo has not said that it is ready
    advertise_keys     the joined identity is durable, the keys have not left
    share_keys         the boxes have not left
    debit_before       nothing of the debit is written
    debit_torn         half of the debit's record is in the file
    debit_after        the debit is durable, nothing is masked
    upload             the masked vector is spooled, none of it has left
    half_upload        a first chunk is on its way
    check_consistency  the mark "survivors signed" is durable, the signature has not left
    unmask             the shares have not left
    adapter_kept       the verified adapter is kept, nothing says so
    adoption_audited   the audit log says that it is adopted, the head has not moved
    key_stored         the next key and certificate are on disk, nothing uses them

A renewal that failed is tried again after a second instead of half a minute, and vectors are sent
in chunks of 64 KiB, so that a small one has two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from silo_agent.books.local_store import LocalStore
from silo_agent.cli.main import main
from silo_agent.daemon.audited import DaemonAudit
from silo_agent.daemon.daemon import Daemon
from silo_agent.identity import renewal
from silo_agent.line import upload
from silo_agent.line.transport import Coordinator
from silo_agent.line.upload import UploadStream
from silo_agent.local_work import held_method
from silo_agent.local_work.reservation import Reservation
from silo_agent.local_work.result_file import ResultFiles
from tests.kit.processes.deaths import Deaths
from tests.system.chaos import witness

CALLS = ("advertise_keys", "share_keys", "upload", "check_consistency", "unmask")
CHUNK_BYTES = 64 << 10
ON_ITS_WAY_S = 0.2


def install(deaths: Deaths) -> None:
    for call in CALLS:
        _instead_of(call, deaths)
    _in_upload(deaths)
    _in_work(deaths)
    _in_results(deaths)
    _in_ledger(deaths)
    _in_adoption(deaths)
    _in_renewal(deaths)


def _instead_of(call: str, deaths: Deaths) -> None:
    real = getattr(Coordinator, call)

    def dying(self: Any, identity: Any, *arguments: Any) -> Any:
        deaths.at(f"{identity.round}:{call}")
        return real(self, identity, *arguments)

    setattr(Coordinator, call, dying)


def _in_upload(deaths: Deaths) -> None:
    leg, upload.CHUNK_BYTES = UploadStream._leg, CHUNK_BYTES

    def cut(self: Any, offset_bytes: int) -> Iterator[Any]:
        instant = f"{self._identity.round}:half_upload"
        for number, part in enumerate(leg(self, offset_bytes)):
            if number == 2 and deaths.due(instant):
                time.sleep(ON_ITS_WAY_S)
                deaths.at(instant)
            yield part

    UploadStream._leg = cut  # type: ignore[method-assign]


def _in_work(deaths: Deaths) -> None:
    make, rounds = held_method.make_evolver, [0]

    def making(setup: Any) -> Any:
        evolver = make(setup)
        evolve = evolver.evolve

        def evolving(asked: Any) -> Any:
            rounds[0] = asked.round
            deaths.at(f"{asked.round}:evolve")
            return evolve(asked)

        evolver.evolve = evolving
        return evolver

    held_method.make_evolver = making
    _in_training(deaths, rounds)


def _in_training(deaths: Deaths, rounds: list[int]) -> None:
    from dp.steps.sgd import DpStep
    from evolution.rollout import episodes

    table = episodes._Table
    play, charge, gradient = table.play_turn, Reservation.__call__, DpStep.gradient

    def played(self: Any, *given: Any) -> None:
        play(self, *given)
        deaths.at(f"{rounds[0]}:exploring")

    def charged(self: Any) -> Any:
        receipt = charge(self)
        deaths.at(f"{self._task.round}:charged")
        return receipt

    def stepped(self: Any, *arguments: Any) -> Any:
        taken = gradient(self, *arguments)
        deaths.at(f"{rounds[0]}:step")
        return taken

    table.play_turn = played  # type: ignore[method-assign]
    Reservation.__call__ = charged  # type: ignore[method-assign]
    DpStep.gradient = stepped  # type: ignore[method-assign]


def _in_results(deaths: Deaths) -> None:
    keep = ResultFiles.keep

    def kept(self: Any, result: Any, task: Any, reservation: Any) -> None:
        if deaths.due(f"{task.round}:result_half"):
            fsync = os.fsync

            def half(descriptor: int) -> None:
                path = Path(f"/proc/self/fd/{descriptor}").readlink()
                if path.parent.name == "results" and path.is_file():
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                    deaths.at(f"{task.round}:result_half")
                fsync(descriptor)

            os.fsync = half
        keep(self, result, task, reservation)
        deaths.at(f"{task.round}:result_kept")

    ResultFiles.keep = kept  # type: ignore[method-assign]


def _in_ledger(deaths: Deaths) -> None:
    from dp.ledger import journal

    append = journal.Journal.append

    def appended(self: Any, fields: dict[str, Any]) -> None:
        if fields["kind"] != "spent":
            append(self, fields)
            return
        deaths.at(f"{fields['round']}:debit_before")
        if deaths.due(f"{fields['round']}:debit_torn"):
            write = os.write

            def half(descriptor: int, frame: bytes) -> int:
                if descriptor == self._fd:
                    write(descriptor, frame[: len(frame) // 2])
                    deaths.at(f"{fields['round']}:debit_torn")
                return write(descriptor, frame)

            os.write = half
        append(self, fields)
        deaths.at(f"{fields['round']}:debit_after")

    journal.Journal.append = appended  # type: ignore[method-assign]


def _in_adoption(deaths: Deaths) -> None:
    adopting, move = DaemonAudit.adopting, LocalStore.set_chain_head

    def audited(self: Any, record: Any) -> None:
        deaths.at(f"{record.round}:adapter_kept")
        adopting(self, record)

    def moved(self: Any, run_id: str, head: Any) -> None:
        deaths.at(f"{head.round}:adoption_audited")
        move(self, run_id, head)

    DaemonAudit.adopting = audited  # type: ignore[method-assign]
    LocalStore.set_chain_head = moved  # type: ignore[method-assign]


def _in_renewal(deaths: Deaths) -> None:
    asks = {int(number) for number in filter(None, os.environ["CHORALE_TEST_RENEW"].split(","))}
    take_task, take, now = Daemon._take_task, renewal.Renewal._take, [0]
    renewal.FIRST_PAUSE_S = 1.0

    def task_taken(self: Any, task: Any, echo: Any) -> None:
        now[0] = task.round
        if task.round in asks and f"{task.round}:key_stored" not in deaths.done:
            asks.discard(task.round)
            # Due as if half of its life were over.
            self.renewal._half_s = self.renewal._not_before_s = 0.0
            self.renewal._wake.set()
        take_task(self, task, echo)

    def used(self: Any, identity: Any) -> None:
        for number in range(now[0] + 1):
            deaths.at(f"{number}:key_stored")
        take(self, identity)

    Daemon._take_task = task_taken  # type: ignore[method-assign]
    renewal.Renewal._take = used  # type: ignore[method-assign]


if __name__ == "__main__":
    witness.of_silo()
    install(Deaths.from_environment())
    main()
