"""The daemon's process: its probes, its signals, and what runs beside its loop.

Covered: start and end in order. Not covered: a process that is killed, which the ledger, the spool
and the audit log are made for.
"""

from __future__ import annotations

import signal
from functools import partial
from types import FrameType

import structlog

from ops.address import split_address
from ops.files import prove_writable
from ops.hardening import harden_process
from ops.probes.metrics import MetricsAccess
from ops.probes.server import ADDRESS_FILE, Probes, Spaced
from ops.probes.tls import ProbeTls
from silo_agent.config import SiloConfig
from silo_agent.daemon.daemon import Daemon
from silo_agent.daemon.scrape import Scrape

__all__ = ["run"]

log = structlog.get_logger(__name__)


def run(config: SiloConfig) -> None:
    """Run the daemon until SIGTERM or SIGINT, or until the silo leaves."""
    harden_process()
    daemon = Daemon(config)
    scrape = Scrape(
        metrics=daemon.metrics,
        audit=daemon.audit.log,
        data_dir=config.data_dir,
        answered_unix_s=lambda: daemon.coordinator.answered_unix_s,
    )
    tls = ProbeTls.of_files(config.probes_certificate, config.probes_key)
    shown_to = MetricsAccess(
        host=split_address(config.probes_listen)[0],
        encrypted=tls is not None,
        token_file=config.probes_token_file,
    )
    if not shown_to.is_shown:
        log.warning("metrics_not_shown", listen=config.probes_listen)
    probes = Probes(
        listen=config.probes_listen,
        registry=daemon.metrics.registry,
        checks={"data directory": Spaced(partial(prove_writable, config.data_dir))},
        refresh=scrape.refresh,
        metrics=shown_to,
        tls=tls,
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
