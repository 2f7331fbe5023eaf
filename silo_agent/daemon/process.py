"""The daemon's process: its probes, its signals, and what runs beside its loop.

Invariant: a scrape changes nothing, loads nothing, and answers while the silo trains. It looks up,
beside what was counted as it happened, the coordinator's last answer, free space, the audit log's
head, and memory of GPUs that this process uses already.

Covered: start and end in order. Not covered: a process that is killed, which the ledger, the spool
and the audit log are made for; GPUs that only a vLLM server or other processes use, which the
exporter of their maker shows.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ops.address import ADDRESS_FILE, split_address
from ops.deploy.hardening import harden_process
from ops.files import prove_writable
from ops.logs.logger import get_logger
from ops.probes.metrics import MetricsAccess
from ops.probes.server import Probes, Spaced
from ops.probes.tls import ProbeTls
from silo_agent.books.audit import AuditLog
from silo_agent.config import SiloConfig
from silo_agent.daemon.daemon import Daemon
from silo_agent.metrics import SiloMetrics

__all__ = ["Scrape", "run"]

log = get_logger(__name__)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrape:
    """One silo, looked at."""

    metrics: SiloMetrics
    audit: AuditLog
    data_dir: Path
    answered_unix_s: Callable[[], float]
    """When the coordinator last answered; 0 before."""

    def refresh(self) -> None:
        """Bring the metrics up to date. Called from threads of the probe port."""
        self.metrics.audit_head.set(self.audit.head_index)
        self.metrics.coordinator_contact.set(self.answered_unix_s())
        try:
            self.metrics.process.look(self.data_dir)
        except OSError as error:
            log.warning("scrape_incomplete", part="data_dir", reason=error)
        # Loading torch is for the work to do, which may want it otherwise set up.
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            self.metrics.gpu_memory_used.labels(device=str(index)).set(total - free)
            self.metrics.gpu_memory_total.labels(device=str(index)).set(total)
