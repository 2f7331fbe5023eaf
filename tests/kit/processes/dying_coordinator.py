"""The coordinator, which kills itself at chosen instants (``deaths.py``); otherwise the real one.

An instant is a phase's name: the count-th message of it is durable and not yet acknowledged (0: the
phase was just entered). Besides:

    chosen            whom the round asks is durable, and its task is not signed
    signed            the round's task is signed, and not durable
    sent              the task is durable, and nobody was told
    ready:<count>     the count-th silo said ready, and does not know yet that it was heard
    uncounted         R1 is closed; inviting uploads, and so counting them as charged, is next
    half_upload       half of one silo's vector is in its spool
    fold:<count>      a new sum is written and not yet committed
    opened            the masks are off the sum; nothing of it is published
    adapter_written   adapter and sum are stored, the record is signed and not yet kept
    record_appended   the record is durable, and nobody was told
    issued            a silo's next certificate is durable, and the answer has not left
"""

from __future__ import annotations

from typing import Any

from server.attempt.accumulator import Upload
from server.attempt.attempt import Attempt
from server.attempt.journal import StoreJournal, encode
from server.cli.coordinator import main
from server.figures import Phase
from server.members.renewal import Renewals
from server.run.chain import Chain
from server.run.cohorts import Training
from server.run.driver import RunDriver
from server.run.progress import Progress
from server.run.selection import Selection
from server.store.tasks import Tasks
from tests.kit.processes.deaths import Deaths


def install(deaths: Deaths) -> None:
    rounds = [0]
    _in_training(deaths)
    _in_phases(deaths, rounds)
    _in_uploads(deaths, rounds)
    _in_publishing(deaths)
    _in_renewals(deaths, rounds)


def _in_training(deaths: Deaths) -> None:
    report_ready, note = Training.report_ready, Selection._note
    sign_task, put = Chain.sign_task, Tasks.put

    def chosen(self: Any, round_number: int, choice: Any) -> None:
        note(self, round_number, choice)
        deaths.at(f"{round_number}:chosen")

    def signed(self: Any, *arguments: Any, **said: Any) -> Any:
        task = sign_task(self, *arguments, **said)
        deaths.at(f"{task.round}:signed")
        return task

    def sent(self: Any, row: Any) -> None:
        put(self, row)
        deaths.at(f"{row.task.round}:sent")

    def ready(self: Any, silo_id: str, **said: Any) -> None:
        report_ready(self, silo_id, **said)
        deaths.at(f"{self.task.round}:ready:{len(self.ready)}")

    Training.report_ready = ready  # type: ignore[method-assign]
    Selection._note = chosen  # type: ignore[method-assign]
    Chain.sign_task = signed  # type: ignore[method-assign]
    Tasks.put = sent  # type: ignore[method-assign]


def _in_phases(deaths: Deaths, rounds: list[int]) -> None:
    entered, accepted, counts = Progress.enter, StoreJournal.accepted, {}

    def enter(self: Any, phase: Any, deadline: float, attempt: int) -> None:
        rounds[0] = self.figures.round
        if phase is Phase.MASKED_INPUT:
            deaths.at(f"{rounds[0]}:uncounted")
        entered(self, phase, deadline, attempt)
        counts.clear()
        deaths.at(f"{rounds[0]}:{phase.value}:0")

    def accept(self: Any, message: Any) -> None:
        accepted(self, message)
        phase = encode(message).phase
        counts[phase] = counts.get(phase, 0) + 1
        deaths.at(f"{self._identity.round}:{phase}:{counts[phase]}")

    Progress.enter = enter  # type: ignore[method-assign]
    StoreJournal.accepted = accept  # type: ignore[method-assign]


def _in_uploads(deaths: Deaths, rounds: list[int]) -> None:
    folded, put = StoreJournal.folded, Upload.put

    def fold(self: Any, silo_id: str, generation: int) -> None:
        deaths.at(f"{self._identity.round}:fold:{generation}")
        folded(self, silo_id, generation)

    def chunk(self: Any, checked: Any) -> None:
        put(self, checked)
        if self.length_bytes / 2 <= self.received_bytes < self.length_bytes:
            deaths.at(f"{rounds[0]}:half_upload")

    StoreJournal.folded = fold  # type: ignore[method-assign]
    Upload.put = chunk  # type: ignore[method-assign]


def _in_publishing(deaths: Deaths) -> None:
    unmask, link, closed = Attempt.unmask, Chain.link, RunDriver._closed

    def opened(self: Any) -> Any:
        total = unmask(self)
        deaths.at(f"{self.identity.round}:opened")
        return total

    def linked(self: Any, **said: Any) -> Any:
        record = link(self, **said)
        if said["kind"] == "aggregated":
            deaths.at(f"{record.round}:adapter_written")
        return record

    def appended(self: Any) -> None:
        deaths.at(f"{self.current.round}:record_appended")
        closed(self)

    Attempt.unmask = opened  # type: ignore[method-assign]
    Chain.link = linked  # type: ignore[method-assign]
    RunDriver._closed = appended  # type: ignore[method-assign]


def _in_renewals(deaths: Deaths, rounds: list[int]) -> None:
    renew = Renewals.renew

    def issued(self: Any, *arguments: Any, **said: Any) -> Any:
        answer = renew(self, *arguments, **said)
        # A silo asks at a time of its own: whichever of the rounds so far it was to be.
        for number in range(rounds[0] + 1):
            deaths.at(f"{number}:issued")
        return answer

    Renewals.renew = issued  # type: ignore[method-assign]


if __name__ == "__main__":
    install(Deaths.from_environment())
    main()
