"""The daemon's process: its probes, its signals, and what runs beside its loop.

Covered: start and end in order. Not covered: a process that is killed, which the ledger, the spool
and the audit log are made for.
"""

from __future__ import annotations

import signal
from types import FrameType

from silo_agent.config import SiloConfig
from silo_agent.daemon import Daemon
from silo_agent.probes import Probes

__all__ = ["run"]


def run(config: SiloConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT, or until the silo leaves."""
    daemon = Daemon(config)
    probes = Probes(
        listen=config.probes_listen, registry=daemon.metrics.registry, data_dir=config.data_dir
    )

    def stop(_signal: int, _frame: FrameType | None) -> None:
        daemon.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    probes.start()
    daemon.renewal.start()
    daemon.gate.watch(daemon.stopping, lambda: daemon.attempt_open)
    try:
        daemon.serve()
    finally:
        daemon.close()
        daemon.renewal.close()
        probes.stop()
