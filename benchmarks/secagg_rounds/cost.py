"""What one round cost each role, and the clock that finds out.

Wall-clock seconds depend on what else the machine does; CPU seconds, all threads of this process
together, hardly do, and their ratio is what a machine with one core would show.

Covered: one process on this machine. Not covered: transport.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatVector = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCost:
    """One round of one implementation."""

    client_s: float
    """All work of one silo that stayed to the end: the mean over those."""
    server_s: float
    """All work of the server."""
    client_cpu_s: float
    """CPU seconds of the same work."""
    server_cpu_s: float
    mean: FloatVector
    """What the server published: the mean over the silos that stayed."""
    digest_s: float = 0.0
    """SHA-256 over one client's messages, where it is not in the two figures above."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The server's seconds by step, where they are known."""


class Stopwatch:
    """Seconds by name, summed over many sections; sections of one name do not nest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Charge the section to a name."""
        start, start_cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.charge(name, time.perf_counter() - start, time.process_time() - start_cpu)

    def charge(self, name: str, seconds: float, cpu_seconds: float) -> None:
        """Add seconds to a name."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + cpu_seconds

    def mean(self, names: Collection[str]) -> tuple[float, float]:
        """Mean wall-clock and CPU seconds over some names."""
        wall, cpu = (
            sum(spent[name] for name in names) / len(names)
            for spent in (self.seconds, self.cpu_seconds)
        )
        return wall, cpu

    def total(self, prefix: str) -> tuple[float, float]:
        """Wall-clock and CPU seconds, summed over the names with a prefix."""
        wall, cpu = (
            sum(seconds for name, seconds in spent.items() if name.startswith(prefix))
            for spent in (self.seconds, self.cpu_seconds)
        )
        return wall, cpu
