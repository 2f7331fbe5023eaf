"""What one try may take of the clock: the time of its own environment, and nobody else's.

Where units are protected, how long one of them takes may cost that unit alone. So an environment's
calls are made on a thread beside this one, and a try that has used its seconds up is left there:
its thread ends whenever the call comes back, and the others go on, on a new thread. The model's
time is not counted: a batch shares it, and a try would pay for its neighbours. It is bounded by
numbers that the plan and the model give (turns, tokens, context).

Environments that wait for somebody else (``Environment.waits``) are called together, each on a
thread of its own, so that many of them take as long as one. Invariants:

1. ``call`` makes one call at a time, all on one thread until one is left behind; without a limit
   it is made right here.
2. ``call_together`` has at most ``AT_ONCE`` calls under way. One that waits for a thread uses none
   of its try's time.
3. A call that is left behind has nothing of ours: what it returns or raises is dropped, and what
   asked for it never sees it.

Covered: environments in this process that sleep, wait or loop. Not covered: one that holds the
interpreter's lock without end, or that counts on threads of its own; a busy machine, on which a try
near its limit may be lost by chance, and that try alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from evolution.errors import TryTimeError

__all__ = ["AT_ONCE", "OwnTime"]

T = TypeVar("T")
AT_ONCE: Final = 32
"""Calls under way together: what one environment's server may be asked at once."""
_NO_TIME_S: Final = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _UnderWay:
    """One call on a thread."""

    key: int
    answer: Future[Any]
    """Where whoever asked looks."""
    began_s: float
    ends_s: float | None
    """When its try has used its time up."""
    thread: _Thread


class OwnTime:
    """The clocks of the tries of one call of ``run_episodes``."""

    def __init__(self, limit_s: float | None) -> None:
        """Each try may take so many seconds; None is no limit."""
        self._limit_s = limit_s
        self._used_s: dict[int, float] = {}
        self._alone: list[_Thread] = []
        """At most the one that ``call`` uses."""
        self._idle: list[_Thread] = []

    def call(self, key: int, act: Callable[..., T], *args: object) -> T:
        """Call an environment for the try of this key; what it raises is raised here.

        Raises:
            TryTimeError: The try has no time left; the call, if it was made, goes on unheard.
        """
        if self._limit_s is None:
            return act(*args)
        (answer,) = self._together([(key, partial(act, *args))], self._alone)
        return answer.result()

    def call_together(self, calls: Sequence[tuple[int, Callable[[], T]]]) -> list[Future[T]]:
        """Call several environments, each for the try of its key, and wait for all of them.

        What came of a call, an error included, is in its future, which is done.
        """
        return self._together(calls, self._idle)

    def unheard(self, act: Callable[..., object], *args: object) -> None:
        """Call something that nobody waits for; with a limit, on a thread of its own."""
        if self._limit_s is None:
            act(*args)
            return
        threading.Thread(target=act, args=args, name="environment-closing", daemon=True).start()

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for thread in (*self._alone, *self._idle):
            thread.let_go()
        self._alone, self._idle = [], []

    def _together(
        self, calls: Sequence[tuple[int, Callable[[], T]]], idle: list[_Thread]
    ) -> list[Future[T]]:
        answers: list[Future[T]] = [Future() for _ in calls]
        waiting = deque(zip(calls, answers, strict=True))
        under_way: dict[Future[Any], _UnderWay] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AT_ONCE:
                    (key, act), answer = waiting.popleft()
                    under_way |= self._begun(key, act, answer, idle)
                self._hear(under_way, idle)
        finally:
            # Whoever interrupts this waits for nobody.
            for each in under_way.values():
                each.thread.let_go()
        return answers

    def _begun(
        self, key: int, act: Callable[[], T], answer: Future[T], idle: list[_Thread]
    ) -> dict[Future[Any], _UnderWay]:
        """Begin a call; nothing is under way where its try has no time left."""
        began_s, ends_s = time.monotonic(), None
        if self._limit_s is not None:
            left_s = self._limit_s - self._used_s.get(key, _NO_TIME_S)
            if left_s <= 0.0:
                answer.set_exception(TryTimeError("this try has used its time up"))
                return {}
            ends_s = began_s + left_s
        thread = idle.pop() if idle else _Thread()
        # A future of its own: what a call that is left behind returns goes where nobody looks.
        own: Future[T] = Future()
        thread.do(own, act)
        return {
            own: _UnderWay(key=key, answer=answer, began_s=began_s, ends_s=ends_s, thread=thread)
        }

    def _hear(self, under_way: dict[Future[Any], _UnderWay], idle: list[_Thread]) -> None:
        """Wait until a call comes back or has used its try's time up."""
        ends = [each.ends_s for each in under_way.values() if each.ends_s is not None]
        timeout_s = max(_NO_TIME_S, min(ends) - time.monotonic()) if ends else None
        wait(under_way, timeout=timeout_s, return_when=FIRST_COMPLETED)
        now_s = time.monotonic()
        for own, each in list(under_way.items()):
            over = each.ends_s is not None and now_s >= each.ends_s
            if not own.done() and not over:
                continue
            del under_way[own]
            self._used_s[each.key] = self._used_s.get(each.key, _NO_TIME_S) + now_s - each.began_s
            if own.done():
                idle.append(each.thread)
                _pass_on(own, each.answer)
            else:
                # Nobody waits for that thread any more: what comes next gets another one.
                each.thread.let_go()
                each.answer.set_exception(
                    TryTimeError("this try's environment did not come back in its time")
                )


class _Thread:
    """A thread that makes one call after the other; it holds up no process that ends."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(
            target=_serve, args=(self._asked,), name="environment", daemon=True
        ).start()

    def do(self, answer: Future[Any], act: Callable[[], Any]) -> None:
        context = copy_context()

        def ask() -> None:
            try:
                answer.set_result(context.run(act))
            except BaseException as error:  # noqa: BLE001  # raised where it was asked for
                answer.set_exception(error)

        self._asked.put(ask)

    def let_go(self) -> None:
        self._asked.put(None)


def _serve(asked: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (ask := asked.get()) is not None:
        ask()


def _pass_on(done: Future[T], answer: Future[T]) -> None:
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
