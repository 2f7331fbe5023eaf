"""A Prometheus of one's own, for demonstrations and tests: Debian's package as a child process.

Invariants: it listens on loopback alone, on a free port; it keeps its data where it is told and
changes nothing else; it ends with the block that started it.

Covered: start until it is ready, a configuration that it refuses, its HTTP API, stop. Not covered:
a Prometheus that operators run, which ``deploy/prometheus/coordinator.yml`` and ``silo.yml`` are
for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from lab.loopback import free_port

__all__ = ["Prometheus", "PrometheusError"]

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 30.0


class PrometheusError(Exception):
    """It does not start, does not answer, or refuses a request; the message says why."""


class Prometheus:
    """One process and its data.

    Relative paths in its configuration are below the configuration's own directory. ``data_dir``,
    for its samples and its log, is made if it is not there.
    """

    def __init__(self, config: Path, *, data_dir: Path) -> None:
        self.url = ""
        """Base address; empty while it does not run."""
        self._config = config
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What it wrote so far."""
        path = self._data_dir / "prometheus.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> str:
        """Start it and wait until it answers; returns its base address.

        Raises:
            PrometheusError: It is not installed, refuses its configuration, or is not ready in
                time.
        """
        program = shutil.which("prometheus")
        if program is None:
            raise PrometheusError(
                "prometheus is not installed (Debian: apt-get install prometheus)"
            )
        self._data_dir.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        with (self._data_dir / "prometheus.log").open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._data_dir / 'tsdb'}",
                    f"--web.listen-address={address}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        self.url = f"http://{address}"
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """End it; once it has ended, nothing happens."""
        process, self._process, self.url = self._process, None, ""
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, path: str, **parameters: str) -> Any:
        """The ``data`` of its HTTP API's answer to a path below ``/api/v1/``, such as ``targets``.

        Raises:
            PrometheusError: It refuses the request, or does not answer.
        """
        words = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(  # noqa: S310  # the address was made here
                f"{self.url}/api/v1/{path}?{words}", timeout=ANSWER_TIMEOUT_S
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise PrometheusError(f"{path}: {error.code}: {said[:500]}") from error
        except OSError as error:
            raise PrometheusError(f"{path}: no answer: {error}") from error

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate a PromQL expression of a vector now.

        Its series each have ``metric`` and ``value``.

        Raises:
            PrometheusError: It refuses the expression, or does not answer.
        """
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if process.poll() is not None:
                raise PrometheusError(f"prometheus stopped at start:\n{self.log[-3000:]}")
            try:
                with urllib.request.urlopen(  # noqa: S310  # the address was made here
                    f"{self.url}/-/ready", timeout=2
                ):
                    return
            except OSError:
                # Not yet: it replays what is in its data directory first.
                time.sleep(0.1)
        raise PrometheusError(f"prometheus is not ready after {START_TIMEOUT_S:.0f} s")
