"""What is looked up when the silo's Prometheus asks, beside what was counted as it happened.

Invariants: a scrape changes nothing, loads nothing, and answers while the silo trains.

Covered: the coordinator's last answer, free space, the audit log's head, memory of GPUs that this
process uses already. Not covered: GPUs that only a vLLM server or other processes use, which the
exporter of their maker shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from silo_agent.books.audit import AuditLog
from silo_agent.metrics import SiloMetrics

__all__ = ["Scrape"]

log = structlog.get_logger(__name__)


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
