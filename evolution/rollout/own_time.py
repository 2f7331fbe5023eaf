"""What one try may take of the clock: the time of its own environment, and nobody else's.

Where units are protected, how long one of them takes may cost that unit alone. So an environment's
calls are made on a thread beside this one, and a try that has used its seconds up is left there:
its thread ends whenever the call comes back, and the others go on, on a new thread. The model's
time is not counted: a batch shares it, and a try would pay for its neighbours. It is bounded by
numbers that the plan and the model give (turns, tokens, context).

Invariants:

1. Calls are made one at a time, all on one thread until one is left behind.
2. A call that is left behind has nothing of ours: what it returns or raises is dropped, and what
   asked for it never sees it.
3. Without a limit a call is made right here.

Covered: environments in this process that sleep, wait or loop. Not covered: one that holds the
interpreter's lock without end, or that counts on threads of its own; a busy machine, on which a try
near its limit may be lost by chance, and that try alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Final, TypeVar

from evolution.errors import TryTimeError

__all__ = ["OwnTime"]

T = TypeVar("T")
_NO_TIME_S: Final = 0.0


class OwnTime:
    """The clocks of the tries of one call of ``run_episodes``."""

    def __init__(self, limit_s: float | None) -> None:
        """Each try may take so many seconds; None is no limit."""
        self._limit_s = limit_s
        self._used_s: dict[int, float] = {}
        self._asked: queue.SimpleQueue[Callable[[], None] | None] | None = None

    def call(self, key: int, act: Callable[..., T], *args: object) -> T:
        """Call an environment for the try of this key; what it raises is raised here.

        Raises:
            TryTimeError: The try has no time left; the call, if it was made, goes on unheard.
        """
        if self._limit_s is None:
            return act(*args)
        left_s = self._limit_s - self._used_s.get(key, _NO_TIME_S)
        if left_s <= 0.0:
            raise TryTimeError("this try has used its time up")
        answer: Future[T] = Future()
        context = copy_context()

        def ask() -> None:
            try:
                answer.set_result(context.run(act, *args))
            except BaseException as error:  # noqa: BLE001  # raised where it was asked for
                answer.set_exception(error)

        began_s = time.monotonic()
        self._thread().put(ask)
        wait((answer,), timeout=left_s)
        self._used_s[key] = self._used_s.get(key, _NO_TIME_S) + time.monotonic() - began_s
        if not answer.done():
            # Nobody waits for that thread any more: what comes next gets another one.
            self.close()
            raise TryTimeError("this try's environment did not come back in its time")
        return answer.result()

    def unheard(self, act: Callable[..., object], *args: object) -> None:
        """Call something that nobody waits for; with a limit, on a thread of its own."""
        if self._limit_s is None:
            act(*args)
            return
        threading.Thread(target=act, args=args, name="environment-closing", daemon=True).start()

    def close(self) -> None:
        """Let the thread end when it has nothing to do."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None

    def _thread(self) -> queue.SimpleQueue[Callable[[], None] | None]:
        if self._asked is None:
            self._asked = queue.SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._asked,), name="environment", daemon=True
            ).start()
        return self._asked


def _serve(asked: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (ask := asked.get()) is not None:
        ask()
