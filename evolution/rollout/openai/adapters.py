"""The adapters a model server loads from a directory that it shares with the silo.

One engine is one *session* with a random name and a directory of its own::

    adapter_dir/                            0700
    └── 3f9c0a1b2c3d4e5f/                   0700, one session
        ├── lock                            held while the engine lives
        └── chorale-3f9c…-000001-<version>/ 0700, a peft directory of 0600 files

Invariants:

1. An adapter's name in the server is its directory's name and is never used twice, not even after a
   restart or a failed load: the server's prefix cache goes by the name, and a name with other
   weights would answer from stale keys and values (vllm-project/vllm#42125).
2. Files stay until the server has let go of their name: it may read them again when it swaps
   adapters.
3. What a killed process left behind is found by its lock that nobody holds, and cleared.

Covered: one server, any number of engines on it. Not covered: a server under another user, who
could not read the files.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import structlog

from evolution.errors import (
    AdapterLoadError,
    EngineRefusalError,
    EngineServerError,
    EngineSetupError,
    EngineUnreachableError,
)
from evolution.rollout.openai.http import Request, ServerClient
from evolution.rollout.openai.reply import models_of
from federation.adapter.export import ExportError, write_peft_adapter

__all__ = ["AdapterShelf"]

_PREFIX = "chorale"
_SESSION = re.compile(r"[0-9a-f]{16}")
_LOCK = "lock"
_LOADS = 2
_GONE = 404
_MAX_VERSION_CHARS = 80

_log = structlog.get_logger(__name__)


class AdapterShelf:
    """See the module."""

    def __init__(self, client: ServerClient, directory: Path, *, base: Path, alpha: float) -> None:
        """Open a session, and clear those of dead processes.

        Raises:
            EngineSetupError: The directory cannot be used.
            EngineServerError: The server cannot be asked what it has.
        """
        self._client = client
        self._base = base
        self._alpha = alpha
        self._session = secrets.token_hex(8)
        self._directory = _private(directory) / self._session
        self._directory.mkdir(mode=0o700)
        self._lock = _locked(self._directory / _LOCK)
        self._count = 0
        self._held: list[str] = []
        """Names that the server may have."""
        try:
            self._clear_dead(directory)
        except BaseException:
            self._leave()
            raise

    def swap(self, version: str, tensors: Mapping[str, np.ndarray]) -> str:
        """Load an adapter and let go of all others; returns the name to ask for.

        The version becomes a part of that name. No tensors load nothing, and the name is empty: it
        stands for the bare base model. Others are LoRA factors under their peft names.

        Raises:
            AdapterLoadError: The tensors are no adapter, or the server does not take it.
            EngineServerError: The server cannot be asked.
        """
        name = self._load(version, tensors) if tensors else ""
        self._let_go([held for held in self._held if held != name])
        return name

    def close(self) -> None:
        """Let go of everything and remove the session's directory; again does nothing."""
        if self._lock < 0:
            return
        self._let_go(list(self._held))
        self._leave()

    def _load(self, version: str, tensors: Mapping[str, np.ndarray]) -> str:
        for attempt in range(_LOADS):
            self._count += 1
            safe = re.sub(r"[^A-Za-z0-9._-]", "-", version)[:_MAX_VERSION_CHARS]
            name = f"{_PREFIX}-{self._session}-{self._count:06d}-{safe}"
            path = self._directory / name
            self._held.append(name)
            self._write(path, version, tensors)
            body = {"lora_name": name, "lora_path": str(path)}
            try:
                self._client.ask(Request(path="/v1/load_lora_adapter", body=body, repeatable=False))
            except EngineRefusalError as error:
                raise AdapterLoadError(str(error)) from error
            except EngineUnreachableError:
                # It may have been loaded: the name is spent, and another one is tried.
                if attempt == _LOADS - 1:
                    raise
            else:
                return name
        raise AdapterLoadError("the adapter was not loaded")

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

    def _let_go(self, names: list[str]) -> None:
        for name in names:
            if self._unload(name):
                self._held.remove(name)
                shutil.rmtree(self._directory / name, ignore_errors=True)

    def _unload(self, name: str) -> bool:
        request = Request(path="/v1/unload_lora_adapter", body={"lora_name": name})
        try:
            self._client.ask(request)
        except EngineRefusalError as error:
            if error.status != _GONE:
                _log.warning("adapter_not_unloaded", adapter=name, status=error.status)
                return False
        except EngineServerError as error:
            _log.warning("adapter_not_unloaded", adapter=name, error=type(error).__name__)
            return False
        return True

    def _clear_dead(self, directory: Path) -> None:
        served = [model.name for model in models_of(self._client.ask(Request(path="/v1/models")))]
        for session, lock in _dead(directory):
            try:
                names = [n for n in served if n.startswith(f"{_PREFIX}-{session.name}-")]
                if all(self._unload(name) for name in names):
                    shutil.rmtree(session, ignore_errors=True)
            finally:
                os.close(lock)

    def _leave(self) -> None:
        # What the server could not be told to let go of is cleared by the next session.
        if not self._held:
            shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


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
