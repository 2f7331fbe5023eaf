"""The loop: it never ends of failures, never spins, and asks again for what may pass."""

import threading
import time
from types import SimpleNamespace

import pytest

from secagg.errors import UnexpectedMessageError
from silo_agent.daemon import polling
from silo_agent.daemon.polling import MAX_PAUSE_S, Polling, pause_s
from silo_agent.errors import NotReadyError, PolicyRefusalError, TransportError
from silo_agent.line.instruction import Idle, Instruction

LATE = TransportError("FAILED_PRECONDITION", reason="wrong_phase", refused=True)
AWAY = TransportError("UNAVAILABLE")


class Loop:
    """A loop that answers ``polls`` polls with fresh ids at once, then stops."""

    def __init__(
        self, *, polls, obey=lambda _i: False, answer=lambda n: Idle(), settle=lambda: None,
        refuse=None,
    ):  # fmt: skip
        self.asked, self.waited, self.failed, self.refused = [], [], [], []
        self._stopping = threading.Event()
        self._stopping.wait = lambda seconds=None: self.waited.append(seconds)
        self._polls, self._answer = polls, answer
        Polling(
            SimpleNamespace(poll=self._poll),
            stopping=self._stopping,
            obey=obey,
            refuse=refuse or self.refused.append,
            survive=lambda error, _instruction: self.failed.append(error),
            settle=settle,
        ).serve()

    def _poll(self, last_id, *, wait_s):
        assert wait_s > 0
        self.asked.append(last_id)
        if len(self.asked) == self._polls:
            self._stopping.set()
        said = self._answer(len(self.asked))
        if isinstance(said, Exception):
            raise said
        return said and Instruction(
            instruction_id=str(len(self.asked)), identity=None, payload=said
        )


def test_no_number_of_failures_ends_the_loop():
    loop = Loop(polls=9000, answer=lambda _n: AWAY)
    assert len(loop.failed) == 9000
    # The coordinator is away for three days.
    assert sum(loop.waited) > 3 * 86_400
    assert loop.waited[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert max(loop.waited) == MAX_PAUSE_S
    assert pause_s(10**9) == MAX_PAUSE_S


DEFECTS = (RecursionError("deep"), MemoryError(), KeyError("x"), ValueError("y"), OSError(28, "z"))


def raising(error):
    """Something that fails whenever it is called."""

    def call(*_arguments, **_named):
        raise error

    return call


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
def test_no_kind_of_failure_ends_the_loop(error):
    """A coordinator that finds a defect in what obeys it stops nothing, and is paused for."""
    loop = Loop(polls=6, obey=raising(error))
    assert loop.failed == [error] * 6
    assert loop.waited[:3] == [1, 2, 4]
    assert loop.asked == ["", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("part", ["refuse", "settle"])
def test_nor_does_a_failure_of_what_follows_an_instruction(part, error):
    refusal = PolicyRefusalError(rule="rule", public_reason="policy", detail="")
    loop = Loop(polls=3, obey=raising(refusal), **{part: raising(error)})
    assert loop.failed == [error] * 3
    assert loop.waited.count(1) == 3


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_the_process_is_not_survived(stop):
    with pytest.raises(stop):
        Loop(polls=3, obey=raising(stop()))


def test_a_failure_that_cannot_be_survived_ends_the_loop():
    """The ledger failed and cannot be opened again: nothing may go on without it."""

    def survive(error, _instruction):
        raise error

    with pytest.raises(MemoryError):
        Polling(
            SimpleNamespace(poll=raising(MemoryError())),
            stopping=threading.Event(),
            obey=lambda _i: True,
            refuse=lambda _r: None,
            survive=survive,
            settle=lambda: None,
        ).serve()


def test_a_success_starts_the_pauses_anew():
    loop = Loop(polls=5, answer=lambda n: Idle() if n == 3 else AWAY, obey=lambda _i: True)
    assert loop.waited == [1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["nothing to do", "unchanged", "refused"])
def test_polls_that_bring_nothing_are_apart(kind, monkeypatch):
    # A clock of its own: on a busy machine the loop itself may take longer than the pause.
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: 0.0))

    def obey(_instruction):
        if kind == "refused":
            raise PolicyRefusalError(rule="rule", public_reason="policy", detail="")
        return False

    loop = Loop(polls=5, obey=obey, answer=lambda _n: None if kind == "unchanged" else Idle())
    assert len(loop.waited) == 5
    assert all(0.1 < seconds <= 0.2 for seconds in loop.waited)


def test_a_long_poll_and_a_step_are_followed_by_no_pause():
    assert Loop(polls=5, obey=lambda _i: True).waited == []

    def slowly(_number):
        time.sleep(0.25)

    assert Loop(polls=1, answer=slowly).waited == []


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (AWAY, ["", "", "2"]),
        (LATE, ["", "1", "2"]),
        (UnexpectedMessageError("wrong"), ["", "1", "2"]),
    ],
)
def test_only_what_may_pass_is_asked_for_again(error, asked):
    failing = [error]

    def obey(_instruction):
        if failing:
            raise failing.pop()
        return True

    loop = Loop(polls=3, obey=obey)
    assert loop.asked == asked
    assert loop.failed == [error]


def test_what_is_not_ready_is_asked_for_again_at_once_and_is_no_failure():
    """The same instruction comes again, without a pause, a count or an acknowledgement."""
    told = []

    def obey(instruction):
        told.append(instruction.instruction_id)
        if len(told) < 4:
            raise NotReadyError("still computing")
        return True

    loop = Loop(polls=5, obey=obey)
    assert loop.asked == ["", "", "", "", "4"]
    assert loop.failed == []
    assert loop.refused == []
    assert loop.waited == []
