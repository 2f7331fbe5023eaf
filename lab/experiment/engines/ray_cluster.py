"""A Ray cluster of one run, on this machine alone.

Invariants:
    1. It listens on the loopback address only, and answers nobody who lacks its token, which is
       drawn for it: who may give Ray work runs code as this user. If Ray comes up on another
       address, that is an error.
    2. It has no dashboard and sends no usage statistics. Ray's own logs are in the session's
       directory; what it prints itself goes to the run's log (``worker.py``).
    3. Everything in it has one thread of OpenMP, as the process of a run has, so what is computed
       does not depend on where.
    4. It ends with the run, and its directory goes. When the run's process is killed Ray's
       processes end by themselves, and the directory stays in the temporary directory.

Covered: one cluster at a time in a process that has not imported Ray before. Not covered: joining a
cluster that is there, several machines.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from lab.experiment.errors import EngineError

__all__ = ["Cluster"]

_LOOPBACK: Final = "127.0.0.1"
_LEAST_STORE_BYTES: Final = 100 << 20
_PREFIX: Final = "chorale-ray-"
_LONGEST: Final = 40
"""Of the directory's path: Ray's sockets are below it, and a socket's path has 107 bytes."""
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own word for "stay on the loopback address", made for two systems and heeded on all.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # How long what is left of a cluster looks for it when it was killed.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # An actor that was given no GPU sees none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


class Cluster:
    """See the module."""

    def __init__(self, *, actors: int, gpus_per_actor: float, store_bytes: int) -> None:
        """Start it, with room for so many actors and an object store of at least so many bytes.

        Raises:
            EngineError: Ray does not start as it should, or there are too few GPUs.
        """
        if "ray" in sys.modules:
            raise EngineError("Ray was imported before its settings were made: start a new process")
        self._before = {name: os.environ.get(name) for name in (*_SETTINGS, "RAY_AUTH_TOKEN")}
        self._directory = _session_directory()
        os.environ.update(_SETTINGS, RAY_AUTH_TOKEN=secrets.token_hex(32))
        import ray

        self.ray: Any = ray
        try:
            self.ray.init(
                address="local",
                num_cpus=actors,
                num_gpus=None if gpus_per_actor else 0,
                object_store_memory=max(_LEAST_STORE_BYTES, store_bytes),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _node_ip_address=_LOOPBACK,
                _temp_dir=str(self._directory),
            )
            if (address := self.ray.util.get_node_ip_address()) != _LOOPBACK:
                raise EngineError(f"Ray listens on {address}, not on {_LOOPBACK} alone")  # noqa: TRY301
            there = float(self.ray.cluster_resources().get("GPU", 0))
            _require_gpus(there, actors=actors, each=gpus_per_actor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it, and remove what it wrote."""
        self.ray.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _session_directory() -> Path:
    """A new directory of this user's own, with a short path."""
    usual = Path(tempfile.gettempdir())
    long = len(str(usual / _PREFIX)) + 8 > _LONGEST
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp" if long else usual))  # noqa: S108


def _require_gpus(there: float, *, actors: int, each: float) -> None:
    """Ray would wait for ever for GPUs that nobody has."""
    if each == 0:
        return
    # A part of a GPU is always of a single one.
    room = math.floor(1 / each + 1e-9) * there if each <= 1 else there // each
    if room < actors:
        raise EngineError(
            f"{actors} actors with --gpus-per-actor {each:g} need more than the {there:g} GPUs of "
            "this machine: lower --actors or --gpus-per-actor"
        )
