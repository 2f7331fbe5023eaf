"""What is true of any daemon's process: its processor time, its memory, and the disk it writes to.

Covered: Linux, through ``/proc``. Not covered: other systems, where there is only the disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector

__all__ = ["ProcessMetrics"]


class ProcessMetrics:
    """``process_*``, ``python_info`` and the free space where the data directory is."""

    def __init__(self, registry: CollectorRegistry, *, free_bytes_name: str) -> None:
        """Register.

        Args:
            registry: Of the daemon.
            free_bytes_name: What the free space is called.
        """
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._free = Gauge(free_bytes_name, "Free bytes where the data are.", registry=registry)

    def look(self, data_dir: Path) -> None:
        """Bring the free space up to date.

        Args:
            data_dir: The daemon's.

        Raises:
            OSError: There is no such directory.
        """
        self._free.set(shutil.disk_usage(data_dir).free)
