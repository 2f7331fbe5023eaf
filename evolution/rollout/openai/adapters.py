"""The adapters that model servers load from a directory that they share with the silo.

One engine is one *session* with a random name and a directory of its own::

    adapter_dir/                            0700
    └── 3f9c0a1b2c3d4e5f/                   0700, one session
        ├── lock                            held while the engine lives
        └── chorale-3f9c…-000001-<version>/ 0700, a peft directory of 0600 files

Invariants:

1. An adapter's name in a server is its directory's name and is never used twice, not even after a
   restart or a failed load: the server's prefix cache goes by the name, and a name with other
   weights would answer from stale keys and values (vllm-project/vllm#42125). Each server has a name
   and a directory of its own.
2. Files stay until the server has let go of their name: it may read them again when it swaps
   adapters.
3. What a killed process left behind is found by its lock that nobody holds, and cleared.

4. Of several servers one that cannot be reached is gone on without, and loudly: it is asked for a
   name that it does not have, which it refuses, so it never plays with other weights. Where none
   can be reached loading fails.

Covered: any number of servers, and of engines on each. Not covered: a server under another user,
who could not read the files.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evolution.errors import (
    AdapterLoadError,
    EngineRefusalError,
    EngineServerError,
    EngineSetupError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from evolution.rollout.openai.http import Request, ServerClient
from evolution.rollout.openai.reply import models_of
from federation.adapter.export import ExportError, write_peft_adapter
from federation.adapter.value_head import without_head
from ops.logs.logger import get_logger

__all__ = ["AdapterShelf"]

_PREFIX = "chorale"
_SESSION = re.compile(r"[0-9a-f]{16}")
_LOCK = "lock"
_LOADS = 2
_GONE = 404
_MAX_VERSION_CHARS = 80
_MODELS = Request(path="/v1/models")

_log = get_logger(__name__)


@dataclass(kw_only=True, slots=True)
class _Server:
    """One of the servers."""

    client: ServerClient
    held: list[str] = field(default_factory=list)
    """Names that it may have."""


class AdapterShelf:
    """See the module."""

    def __init__(
        self, clients: Sequence[ServerClient], directory: Path, *, base: Path, alpha: float
    ) -> None:
        """Open a session, and clear those of dead processes.

        Raises:
            EngineSetupError: The directory cannot be used.
            EngineServerError: A server cannot be asked what it has.
        """
        self._servers = [_Server(client=client) for client in clients]
        self._base = base
        self._alpha = alpha
        self._session = secrets.token_hex(8)
        self._directory = _private(directory) / self._session
        self._directory.mkdir(mode=0o700)
        self._lock = _locked(self._directory / _LOCK)
        self._count = 0
        try:
            self._clear_dead(directory)
        except BaseException:
            self._leave()
            raise

    def swap(self, version: str, tensors: Mapping[str, np.ndarray]) -> list[str]:
        """Load an adapter everywhere and let go of all others; returns each server's name for it.

        The version becomes a part of that name. No tensors load nothing, and the names are empty:
        they stand for the bare base model. Others are LoRA factors under their peft names; a value
        head among them is left out.

        Raises:
            AdapterLoadError: The tensors are no adapter, or a server does not take it.
            EngineServerError: No server can be asked.
        """
        tensors = without_head(tensors)
        names: list[str] = []
        failed: list[tuple[str, EngineServerError]] = []
        for server in self._servers:
            if tensors:
                try:
                    self._load(server, version, tensors)
                except (EngineTimeoutError, EngineUnreachableError) as error:
                    failed.append((server.client.url, error))
            names.append(server.held[-1] if tensors else "")
        if failed and len(failed) == len(self._servers):
            raise failed[0][1]
        for url, cause in failed:
            _log.warning("adapter_not_loaded", server=url, error=type(cause).__name__)
        for server, name in zip(self._servers, names, strict=True):
            self._let_go(server, [held for held in server.held if held != name])
        return names

    def close(self) -> None:
        """Let go of everything and remove the session's directory; again does nothing."""
        if self._lock < 0:
            return
        for server in self._servers:
            self._let_go(server, list(server.held))
        self._leave()

    def _load(self, server: _Server, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        for attempt in range(_LOADS):
            self._count += 1
            safe = re.sub(r"[^A-Za-z0-9._-]", "-", version)[:_MAX_VERSION_CHARS]
            name = f"{_PREFIX}-{self._session}-{self._count:06d}-{safe}"
            path = self._directory / name
            server.held.append(name)
            self._write(path, version, tensors)
            body = {"lora_name": name, "lora_path": str(path)}
            request = Request(path="/v1/load_lora_adapter", body=body, repeatable=False)
            try:
                server.client.ask(request)
            except EngineRefusalError as error:
                raise AdapterLoadError(str(error)) from error
            except EngineUnreachableError:
                # It may have been loaded: the name is spent, and another one is tried.
                if attempt == _LOADS - 1:
                    raise
            else:
                return

    def _write(self, path: Path, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        path.mkdir(mode=0o700)
        ranks = {t.shape[0] for name, t in tensors.items() if ".lora_A." in name and t.ndim}
        try:
            write_peft_adapter(
                tensors,
                path,
                base=str(self._base),
                rank=max(ranks, default=0),
                alpha=self._alpha,
                provenance={"version": version},
            )
        except ExportError as error:
            raise AdapterLoadError(str(error)) from error
        for file in path.iterdir():
            file.chmod(0o600)

    def _let_go(self, server: _Server, names: list[str]) -> None:
        for name in names:
            if _unload(server.client, name):
                server.held.remove(name)
                shutil.rmtree(self._directory / name, ignore_errors=True)

    def _clear_dead(self, directory: Path) -> None:
        served = [
            (server.client, [model.name for model in models_of(server.client.ask(_MODELS))])
            for server in self._servers
        ]
        for session, lock in _dead(directory):
            try:
                names = [
                    (client, name)
                    for client, has in served
                    for name in has
                    if name.startswith(f"{_PREFIX}-{session.name}-")
                ]
                gone = [_unload(client, name) for client, name in names]
                if all(gone):
                    shutil.rmtree(session, ignore_errors=True)
            finally:
                os.close(lock)

    def _leave(self) -> None:
        # What the server could not be told to let go of is cleared by the next session.
        if not any(server.held for server in self._servers):
            shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _unload(client: ServerClient, name: str) -> bool:
    request = Request(path="/v1/unload_lora_adapter", body={"lora_name": name})
    try:
        client.ask(request)
    except EngineRefusalError as error:
        if error.status != _GONE:
            _log.warning("adapter_not_unloaded", adapter=name, status=error.status)
            return False
    except EngineServerError as error:
        _log.warning("adapter_not_unloaded", adapter=name, error=type(error).__name__)
        return False
    return True


def _private(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError as error:
        raise EngineSetupError(f"cannot use {directory}: {error.strerror}") from error
    if mode & 0o077:
        raise EngineSetupError(f"{directory} is open to other users: chmod 700 it")
    return directory


def _locked(path: Path) -> int:
    """Open and lock a file.

    Raises:
        BlockingIOError: Somebody else has locked it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _dead(directory: Path) -> Iterator[tuple[Path, int]]:
    """Sessions whose process is gone, with their locks, which the caller closes."""
    for session in sorted(directory.iterdir()):
        if _SESSION.fullmatch(session.name) and not session.is_symlink() and session.is_dir():
            try:
                lock = _locked(session / _LOCK)
            except BlockingIOError:
                continue
            yield session, lock
