"""What is true of any daemon's process: its time and memory, its log, and the disk it writes to.

Covered: Linux, through ``/proc``. Not covered: other systems, where there are only log and disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ops.logs.setup import failed_writes

__all__ = ["ProcessMetrics"]


class ProcessMetrics:
    """``process_*``, ``python_info``, lines the log lost, and the data directory's free space."""

    def __init__(self, registry: CollectorRegistry, *, prefix: str) -> None:
        """Register in the daemon's registry; the names of our own begin with the prefix."""
        # When each counter began is a third of all series and in no query; for the whole process,
        # as the library has it.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(_Log(f"{prefix}_log_write_failures"))
        self._free = Gauge(
            f"{prefix}_data_free_bytes", "Free bytes where the data are.", registry=registry
        )

    def look(self, data_dir: Path) -> None:
        """Bring the free space for the daemon's data up to date.

        Raises:
            OSError: There is no such directory.
        """
        self._free.set(shutil.disk_usage(data_dir).free)


class _Log(Collector):
    """Counted where lines are written, which is before there is a registry."""

    def __init__(self, name: str) -> None:
        self._name = name

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Say how many."""
        yield CounterMetricFamily(
            self._name, "Log lines that could not be written.", value=failed_writes()
        )
