"""A whole federation of real processes on the loopback interface.

The consortium root, the coordinator and each silo are separate processes with directories of their
own, started through the same command lines that operators use. The demo and the integration tests
stand on this file, so what they show is what the commands do.

Covered: enrolment, roster signing by a root the coordinator cannot read, start, kill, restart.
Not covered: several hosts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["LoopbackError", "LoopbackFederation", "free_port"]

START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 120.0


class LoopbackError(Exception):
    """A process of the loopback federation failed; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on, and that nobody else is given.

    A port that the system chooses may be given to a client before its server binds it, or while
    the server is started again. So these are below the ones that Linux and macOS choose from, and
    each process has a block of its own.

    Raises:
        LoopbackError: all are taken.
    """
    for port in itertools.islice(_own_ports(), _BLOCK):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LoopbackError(f"all {_BLOCK} ports of this process are taken")


_PORTS: Final = range(10_240, 32_768)
_BLOCK: Final = 128


@functools.cache
def _own_ports() -> Iterator[int]:
    """The ports of this process, over and over."""
    for first in _PORTS[::_BLOCK]:
        # Bound until this process ends: the sign that the block has an owner.
        sign = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sign.bind(("127.0.0.1", first))
        except OSError:
            sign.close()
            continue
        sign.detach()
        return itertools.cycle(range(first, first + _BLOCK))
    raise LoopbackError("other processes hold all blocks of ports")


@dataclass(kw_only=True, slots=True)
class _Process:
    """One daemon with its log."""

    popen: subprocess.Popen[bytes]
    log: Path


@dataclass(kw_only=True, slots=True)
class LoopbackFederation:
    """Directories, ports and processes of one federation."""

    directory: Path
    federation: str = "demo"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every process."""
    port: int = field(default_factory=free_port)
    enrol_port: int = field(default_factory=free_port)
    probes_port: int = field(default_factory=free_port)
    _processes: dict[str, _Process] = field(default_factory=dict)

    @property
    def root_dir(self) -> Path:
        """The consortium root's directory: no other process reads it."""
        return self.directory / "root"

    @property
    def data_dir(self) -> Path:
        """The coordinator's directory."""
        return self.directory / "coordinator"

    def silo_dir(self, silo_id: str) -> Path:
        """One silo's directory."""
        return self.directory / "silos" / silo_id

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process this federation started."""
        self.stop()

    # Commands -------------------------------------------------------------------------------------

    def chorale(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        """Run ``chorale ARGUMENTS --format json`` and return the envelope's data.

        Raises:
            LoopbackError: the command failed, or took longer.
        """
        return self._command("coordinator", "server.cli.main", arguments, timeout_s)

    def silo(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        """Run ``chorale-silo ARGUMENTS --format json`` and return the envelope's data.

        Raises:
            LoopbackError: the command failed, or took longer.
        """
        silo_id = Path(arguments[arguments.index("--data") + 1]).name
        return self._command(silo_id, "silo_agent.cli.main", arguments, timeout_s)

    def python(self, party: str) -> tuple[str, ...]:
        """How the Python of ``coordinator`` or of a silo, by its id, is started.

        Every party has this one unless a test says otherwise.
        """
        del party
        return (sys.executable,)

    def _command(
        self, party: str, module: str, arguments: tuple[str, ...], timeout_s: float
    ) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [*self.python(party), "-m", module, *arguments, "--format", "json"],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=self._environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LoopbackError(
                f"{module} {' '.join(arguments[:3])} took longer than {timeout_s:g} s"
            ) from None
        if done.returncode != 0:
            raise LoopbackError(
                f"{module} {' '.join(arguments[:3])} exited with {done.returncode}:\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        envelope = json.loads(done.stdout)
        data: dict[str, Any] = envelope["data"]
        return data

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            # Runs are started as soon as the silos' processes are, or before.
            "CHORALE_AWAIT_SILOS": "1",
            # Nor are the silos asked: some are stopped, and some are to refuse a task.
            "CHORALE_WITHOUT_PREFLIGHT": "1",
            **self.environment,
        }

    # Setting up -----------------------------------------------------------------------------------

    def found(self) -> None:
        """Make the root, in a process of its own, and the coordinator's directory."""
        self.chorale("root", "init", "--dir", str(self.root_dir))
        self.chorale(
            "init",
            "--federation", self.federation,
            "--host", "127.0.0.1",
            "--root-public-key", str(self.root_dir / "root.pub"),
            "--data", str(self.data_dir),
            "--listen", f"127.0.0.1:{self.port}",
            "--enrol-listen", f"127.0.0.1:{self.enrol_port}",
            "--probes-listen", f"127.0.0.1:{self.probes_port}",
        )  # fmt: skip

    def enrol(self, silo_id: str, *, base_model: Path | None = None) -> None:
        """Invite one silo and let it join."""
        made = self.chorale("invite", self.federation, silo_id, "--data", str(self.data_dir))
        arguments = ["join", made["invite"], "--data", str(self.silo_dir(silo_id))]
        if base_model is not None:
            arguments += ["--base-model", str(base_model)]
        self.silo(*arguments)

    def publish_roster(self, *, colluding: int = 1) -> None:
        """Propose, sign in the root's own process, publish."""
        proposed, signed = self.directory / "roster.json", self.directory / "roster.signed.json"
        self.chorale(
            "roster", "propose", "--colluding", str(colluding), "--out", str(proposed),
            "--data", str(self.data_dir),
        )  # fmt: skip
        self.chorale(
            "root", "sign", str(proposed), "--dir", str(self.root_dir), "--out", str(signed),
            "--yes",
        )  # fmt: skip
        self.chorale("roster", "publish", str(signed), "--data", str(self.data_dir))

    # Processes ------------------------------------------------------------------------------------

    def start_coordinator(self, *, module: str = "server.cli.coordinator") -> None:
        """Start the coordinator and wait until it is ready."""
        self._start("coordinator", module, "serve", "--data", str(self.data_dir))
        self._await_http(f"http://127.0.0.1:{self.probes_port}/readyz", "coordinator")

    def start_silo(self, silo_id: str, *, module: str = "silo_agent.cli.main") -> None:
        """Start one silo's daemon."""
        self._start(silo_id, module, "run", "--data", str(self.silo_dir(silo_id)))

    def kill(self, name: str) -> None:
        """SIGKILL one process, as a power cut would."""
        process = self._processes.pop(name)
        process.popen.kill()
        process.popen.wait()

    def pid(self, name: str) -> int:
        """Process id of a daemon."""
        return self._processes[name].popen.pid

    def alive(self, name: str) -> bool:
        """Whether a daemon's process runs."""
        process = self._processes.get(name)
        return process is not None and process.popen.poll() is None

    def log(self, name: str) -> str:
        """What a daemon wrote so far."""
        return (self.directory / "logs" / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Ask every process to stop, and kill those that do not."""
        for process in self._processes.values():
            process.popen.terminate()
        for process in self._processes.values():
            try:
                process.popen.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self._processes.clear()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        log = self.directory / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as sink:
            popen = subprocess.Popen(
                [*self.python(name), "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        self._processes[name] = _Process(popen=popen, log=log)

    def _await_http(self, url: str, name: str) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if not self.alive(name):
                raise LoopbackError(f"{name} stopped at start:\n{self.log(name)[-3000:]}")
            with (
                contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
                urllib.request.urlopen(url, timeout=2) as answer,  # noqa: S310  # loopback
            ):
                if answer.status == 200:
                    return
            time.sleep(0.1)
        raise LoopbackError(f"{name} is not ready after {START_TIMEOUT_S:.0f} s")

    def metrics(self, name: str) -> dict[str, float]:
        """Samples of a daemon's own /metrics, by name with labels."""
        if name == "coordinator":
            address = f"127.0.0.1:{self.probes_port}"
        else:
            address = (self.silo_dir(name) / "probes.address").read_text().strip()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:  # loopback
            text = answer.read().decode()
        samples: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.rpartition(" ")
                samples[key] = float(value)
        return samples

    # Runs -----------------------------------------------------------------------------------------

    def start_run(self, plan: Path, adapter: Path, *, token: str, suite: str = "") -> str:
        """Start a run, of the coordinator's own suite if none is named; returns its id."""
        data = self.chorale(
            "run", "start", str(plan), "--adapter", str(adapter), "--submit-token", token,
            *(("--suite", suite) if suite else ()), "--data", str(self.data_dir),
        )  # fmt: skip
        run_id: str = data["run_id"]
        return run_id

    def watch(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Statuses of a run as ``chorale run watch --format jsonl`` prints them, to its end."""
        with subprocess.Popen(
            [
                *self.python("coordinator"), "-m", "server.cli.main", "run", "watch", run_id,
                "--data", str(self.data_dir), "--format", "jsonl",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment(),
        ) as popen:  # fmt: skip
            try:
                if popen.stdout is not None:
                    for line in popen.stdout:
                        yield json.loads(line)
            finally:
                popen.terminate()
