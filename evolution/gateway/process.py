"""A harness's process: started, watched, and ended with everything that it started.

Invariants:

1. The command is a list, never a shell. Its environment is what is given here and nothing of the
   daemon's; it has no input, and what it writes to stderr goes nowhere.
2. It has a process group and an empty working directory of its own. However it ends, the group is
   killed before its leader is reaped, so that its number is nobody else's yet, and the directory is
   deleted.
3. Of its standard output at most ``max_output_bytes`` are kept, and more ends it. Nothing of it is
   logged or part of a message.
4. It is watched by its session's clock, which stands while the model answers.

Covered: POSIX. Not covered: a process that leaves the group (``setsid``, a container's daemon);
what it does to files, network and other processes with the rights of the daemon's user; a daemon
that is killed, whose harnesses find nobody at the endpoint and are left to end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from evolution.errors import (
    HarnessExitError,
    HarnessOutputError,
    HarnessStartError,
    HarnessTimeoutError,
)
from evolution.gateway.session import Session

__all__ = ["PATH", "require_command", "run_harness"]

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a bare name is looked for, and the harness's own PATH."""
_LOOK_S: Final = 0.05
_CHUNK: Final = 1 << 16


def require_command(program: str) -> str:
    """The path of a program, which is there and may be run.

    Raises:
        HarnessStartError: It is not.
    """
    found = shutil.which(program, path=PATH)
    if found is None:
        raise HarnessStartError(
            f"the command {program!r} is not there, or this user may not run it: command of "
            f"silo.toml takes an absolute path, or a name in {PATH}"
        )
    return found


def run_harness(session: Session, variables: Mapping[str, str], limit_s: float) -> None:
    """Run the session's command until it leaves or the session is over; end the session with it."""
    spec = session.spec
    with tempfile.TemporaryDirectory(prefix="chorale-harness-", ignore_cleanup_errors=True) as home:
        try:
            program = require_command(spec.command[0])
            process = subprocess.Popen(
                [program, *spec.command[1:]],
                cwd=home,
                env={
                    "HOME": home,
                    "LANG": "C.UTF-8",
                    "PATH": PATH,
                    "TMPDIR": home,
                    **spec.environment,
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except HarnessStartError as error:
            session.end(error)
            return
        except OSError as error:
            session.end(HarnessStartError(f"the command cannot be started: {error.strerror}"))
            return
        try:
            output = _watched(process, session, limit_s)
        finally:
            _kill(process)
        if output is None:
            return
        if process.returncode:
            session.end(HarnessExitError("the harness left with another status than 0"))
        else:
            session.finish(output)


def _watched(process: subprocess.Popen[bytes], session: Session, limit_s: float) -> bytes | None:
    """What it wrote until it left; None if something else ended the session."""
    stdout: Any = process.stdout
    os.set_blocking(stdout.fileno(), False)
    # Not select, which takes no descriptor beyond 1,023.
    written = select.poll()
    written.register(stdout, select.POLLIN)
    output = bytearray()
    open_ = True
    while not session.over:
        left = _has_left(process)
        if open_:
            if not left:
                written.poll(_LOOK_S * 1_000)
            open_ = _read(stdout.fileno(), output, session.spec.max_output_bytes)
        elif not left:
            session.wait(_LOOK_S)
        if len(output) > session.spec.max_output_bytes:
            session.end(HarnessOutputError("the harness wrote more than it may"))
        elif left:
            return bytes(output)
        elif session.own_s > limit_s:
            session.end(HarnessTimeoutError("the harness took longer than it may"))
    return None


def _read(number: int, output: bytearray, most: int) -> bool:
    """Take what is there; returns whether more may come."""
    while len(output) <= most:
        try:
            chunk = os.read(number, _CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        output += chunk
    return True


def _has_left(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended; it is not reaped yet, so its number stays its own."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
