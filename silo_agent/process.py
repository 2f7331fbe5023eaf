"""The daemon's process: its probes, its signals, and what runs beside its loop.

Covered: start and end in order. Not covered: a process that is killed, which the ledger, the spool
and the audit log are made for.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

from federation.probe_tls import ProbeTls
from federation.probes import ADDRESS_FILE, Probes
from silo_agent.config import SiloConfig
from silo_agent.daemon import Daemon
from silo_agent.errors import LocalStoreError
from silo_agent.scrape import Scrape

__all__ = ["require_writable", "run"]


def run(config: SiloConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT, or until the silo leaves."""
    daemon = Daemon(config)
    scrape = Scrape(
        metrics=daemon.metrics,
        audit=daemon.audit.log,
        data_dir=config.data_dir,
        answered_unix_s=lambda: daemon.coordinator.answered_unix_s,
    )
    probes = Probes(
        listen=config.probes_listen,
        registry=daemon.metrics.registry,
        checks={"data directory": lambda: require_writable(config.data_dir)},
        refresh=scrape.refresh,
        tls=ProbeTls.of_files(config.probes_certificate, config.probes_key),
        address_file=config.data_dir / ADDRESS_FILE,
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
        probes.close()


def require_writable(data_dir: Path) -> None:
    """Check that the data directory can be written.

    Args:
        data_dir: The daemon's.

    Raises:
        LocalStoreError: It cannot, or it is gone.
    """
    if not os.access(data_dir, os.W_OK | os.X_OK):
        raise LocalStoreError(f"{data_dir} cannot be written")
