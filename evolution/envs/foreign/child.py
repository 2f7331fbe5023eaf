r"""A process beside this one for other people's code that may not run in the daemon.

::

    parent -> child   {"question": …}\n
    child -> parent   {"done": …} | {"setup": text} | {"failed": name of an exception}   and \n

The child says ``{"done": null}`` once it is ready. It runs one ``Role``: a module of this folder
whose ``answer`` takes a question and returns what JSON can hold. Invariants:

1. The parent waits ``timeout_s`` for a whole answer, and reads at most ``MAX_REPLY_BYTES`` of it. A
   child that is late, talks too much or dies is killed with all processes that it started, and the
   next question starts another one.
2. Answers are JSON and are checked by whoever asked: nothing of the child's is unpickled.
3. The child has no environment variables but those named here, a fixed hash seed (some packages
   deal tasks out by the order of a set) and its own limits of memory and of written files. It ends
   with its parent, or has ``_WORK_S`` seconds of work left then.
4. A question that nobody waits for any more (``evolution/rollout/own_time.py``) holds nobody else
   up: whoever asks gets a child that is free, and one more than are asked is made ready beside
   them, so that nobody's own time goes into starting what another's question has cost.
5. A question leaves nothing behind that another answer depends on.

Covered: code that hangs, crashes, fills the memory or prints. Not covered: two children that are
lost within the seconds that one takes to start; code that means harm. A child has the rights of the
daemon's user; what it is asked to evaluate is checked before (``reasoning_gym_scorer.py``).
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from evolution.envs.foreign.reply import field_of, json_of
from evolution.errors import (
    EnvironmentFailureError,
    EnvironmentSetupError,
    ForeignReplyError,
    ForeignTimeoutError,
    ForeignUnreachableError,
)

__all__ = ["MAX_REPLY_BYTES", "Child", "Children", "Role", "children_of", "main"]

MAX_REPLY_BYTES: Final = 1 << 20
_MEMORY_BYTES: Final = 2 << 30
"""Beyond what the child has when it is ready."""
_READY_S: Final = 120.0
"""For importing the package."""
_END_S: Final = 5.0
_WORK_S: Final = 600
"""For one answer, on the processor; no table allows a longer ``timeout_s``."""
_MOST_IDLE: Final = 4
_MAX_TEXT: Final = 500
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a child does."""

    module: str
    """With ``answer(question)``; imports the package, and is imported in the child alone."""
    file_bytes: int
    """Largest file that the child may write."""


class Child:
    """The parent's end; see the module. One thread at a time may ask."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Mapping[str, Any], *, timeout_s: float) -> Any:
        """The answer to one question.

        Raises:
            EnvironmentSetupError: The child says that the operator's table does not fit.
            ForeignTimeoutError: There was no whole answer in time.
            ForeignUnreachableError: The child died.
            ForeignReplyError: It failed, or its answer is too large or not of the form.
        """
        message = json.dumps({"question": question}, ensure_ascii=False).encode("utf-8", "replace")
        self.start()
        return _value(self._exchange(message + b"\n", timeout_s))

    @property
    def ready(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Have it ready; raises what ``ask`` does."""
        if not self.ready:
            self._start()

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        # Also where it has ended: what it started may be left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self) -> None:
        self._kill()
        variables = {
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, self._role.module, str(self._role.file_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=variables,
            # A group of its own: Ctrl-C is the parent's to answer, and all of it can be killed.
            start_new_session=True,
        )
        _value(self._exchange(b"", _READY_S))

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.close()

    def _exchange(self, message: bytes, timeout_s: float) -> bytes:
        try:
            return self._line(message, timeout_s)
        except (ForeignTimeoutError, ForeignUnreachableError, ForeignReplyError):
            # A late answer would be taken for that to the next question.
            self._kill()
            raise

    def _line(self, message: bytes, timeout_s: float) -> bytes:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ForeignUnreachableError("the package's process did not start")
        until_s = time.monotonic() + timeout_s
        reply = bytearray()
        try:
            process.stdin.write(message)
            process.stdin.flush()
            while not reply.endswith(b"\n"):
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                    raise ForeignTimeoutError("the package did not answer in time")
                part = os.read(process.stdout.fileno(), _CHUNK)
                if not part:
                    raise ForeignUnreachableError("the package's process died")
                reply += part
                if len(reply) > MAX_REPLY_BYTES:
                    raise ForeignReplyError("the answer is too large")
        except OSError as error:
            raise ForeignUnreachableError("the package's process died") from error
        return bytes(reply)


class Children:
    """As many children of a role as are asked at once, and one that waits."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._idle: list[Child] = []
        self._next: threading.Thread | None = None
        self._turn = threading.Lock()

    def ask(self, question: Mapping[str, Any], *, timeout_s: float) -> Any:
        """The answer to one question; raises what ``Child.ask`` does."""
        with self._turn:
            child = self._idle.pop() if self._idle else Child(self._role)
            if not self._idle and (self._next is None or not self._next.is_alive()):
                self._next = threading.Thread(target=self._add, name="child", daemon=True)
                self._next.start()
        try:
            return child.ask(question, timeout_s=timeout_s)
        finally:
            self._keep(child)

    def close(self) -> None:
        """End those that are not being asked."""
        if self._next is not None:
            self._next.join()
        with self._turn:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _add(self) -> None:
        child = Child(self._role)
        # What is wrong with the package is said by the child that is asked.
        with suppress(EnvironmentFailureError, OSError):
            child.start()
        self._keep(child)

    def _keep(self, child: Child) -> None:
        with self._turn:
            kept = child.ready and len(self._idle) < _MOST_IDLE
            if kept:
                self._idle.append(child)
        if not kept:
            child.close()


@cache
def children_of(role: Role) -> Children:
    """This process's children of a role; they end with the process."""
    children = Children(role)
    atexit.register(children.close)
    return children


def main(module: str, file_bytes: int) -> None:
    """A child's life: answer until the parent hangs up."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # What the package prints is no answer.
    os.dup2(2, 1)
    try:
        answer = importlib.import_module(module).answer
        _limit(file_bytes)
        _say(answers, {"done": None})
        for line in questions:
            _limit_work()
            _say(answers, _reply(answer, line))
    except ImportError as error:
        _say(answers, {"setup": f"the package cannot be imported: {error}"[:_MAX_TEXT]})


def _reply(answer: Any, line: bytes) -> dict[str, Any]:
    try:
        return {"done": answer(json.loads(line)["question"])}
    except EnvironmentSetupError as error:
        return {"setup": str(error)[:_MAX_TEXT]}
    except Exception as error:  # noqa: BLE001  # foreign code; one question, one answer
        return {"failed": type(error).__name__}


def _say(answers: Any, reply: dict[str, Any]) -> None:
    answers.write(json.dumps(reply).encode() + b"\n")
    answers.flush()


def _limit(file_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory_bytes = pages * resource.getpagesize() + _MEMORY_BYTES
    for kind, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_FSIZE, file_bytes)):
        least = _within(kind, most)
        resource.setrlimit(kind, (least, least))


def _limit_work() -> None:
    """Killed where a parent that died cannot do it any more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    work_s = _within(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + _WORK_S)
    resource.setrlimit(resource.RLIMIT_CPU, (work_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _within(kind: int, most: int) -> int:
    """No more than what the service itself was given."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def _value(reply: bytes) -> Any:
    answer = json_of(reply)
    if not isinstance(answer, dict) or len(answer) != 1:
        raise ForeignReplyError("the package's process did not answer in its form")
    if "setup" in answer:
        raise EnvironmentSetupError(str(answer["setup"]))
    if "failed" in answer:
        raise ForeignReplyError("the package raised an exception")
    return field_of(answer, "done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
