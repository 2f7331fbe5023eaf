"""A real vLLM server on a free loopback port, with its log, its key and its end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from lab.loopback import free_port

READY_S = 600.0


class VllmServer:
    """Started by the Python of its own environment; ended by its process group."""

    def __init__(
        self,
        python: str,
        base: Path,
        directory: Path,
        *,
        max_lora_rank: int = 8,
        adapters: Mapping[str, Path] | None = None,
        logprobs_mode: str = "processed_logprobs",
        dtype: str = "float32",
        most_tokens: int = 1024,
        takes_tools: bool = False,
    ) -> None:
        self.directory = directory
        self.base = base
        self.key_file = directory / "key"
        self.key_file.touch(mode=0o600)
        self.key_file.write_text(secrets.token_urlsafe(24))
        self.log = directory / "server.log"
        self.port = port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environment = os.environ | {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_API_KEY": self.key_file.read_text(),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # The project's sources and plugins are not the server's.
        environment.pop("PYTHONPATH", None)
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        options = {
            "model": base,
            "served-model-name": "base",
            "host": "127.0.0.1",
            "port": port,
            "dtype": dtype,
            "max-model-len": most_tokens,
            "max-lora-rank": max_lora_rank,
            "max-loras": 1,
            "max-cpu-loras": 2,
            "logprobs-mode": logprobs_mode,
        }
        command += [f"--{name}={value}" for name, value in options.items()]
        if adapters:
            command += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
        if takes_tools:
            command += ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]
        started_s = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                # A request with a seed whose prompt is cut in two kills a server on a CPU: vLLM
                # rewinds its generator, which a CPU's cannot ("CPU Generator does not use offset").
                [*command, "--enable-lora", "--no-enable-chunked-prefill"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        self.ready_s = time.monotonic() - started_s

    def kill(self) -> None:
        """End the server and its children at once."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Ask the server to end, and wait for it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self._healthy():
                return
            time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-3_000:]
        raise RuntimeError(f"the server did not become ready:\n{tail}")

    def _healthy(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
