"""A coordinator and its silos in one process and one thread, on a clock that only tests move.

The store, the audit log, the conductor, the run driver, the silos' sessions and their ledgers are
the real ones, and what a silo is told passes through its protobuf form. Only gRPC and time are
replaced: whenever the coordinator waits, each silo acts once, and when none had anything to do the
clock moves on.

A power cut ends the coordinator wherever it happens. A call that it interrupts is made again after
the restart, as the silo's transport does while the coordinator is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from secagg import hybrid
from server.advisor.endpoint import Endpoint
from server.audit import AuditLog
from server.conductor.conductor import Conductor
from server.context import Liveness, RunContext, Signal
from server.metrics import CoordinatorMetrics
from server.run.driver import RunDriver
from server.store import Store
from server.store.blobs.directory import BlobStore
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, make_roster, signed_roster
from tests.kit.server.world_plan import (
    CLIP,
    DIMENSION,
    GRID,
    INITIAL,
    expected_adapter,
    initial_tensors,
    parsed,
    plan_toml,
    stepped_toml,
)
from tests.kit.server.world_silo import PowerCut, Silo, told

__all__ = [
    "CLIP",
    "DIMENSION",
    "GRID",
    "INITIAL",
    "Clock",
    "PowerCut",
    "Silo",
    "World",
    "expected_adapter",
    "initial_tensors",
    "parsed",
    "plan_toml",
    "stepped_toml",
    "told",
]


class Clock:
    """Unix time as the test says."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class SteppedSignal(Signal):
    """Waiting lets every silo act once; the clock moves when none had anything to do."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self._world.before_wait()
        acted = False
        for silo in self._world.silos.values():
            acted |= silo.step()
            if self._world.crashed:
                raise PowerCut
        if not acted:
            self._world.clock.now += min(max(timeout_s, 0.01), 1.0)


class World:
    """One coordinator with its directory, and its silos."""

    def __init__(
        self,
        directory: Path,
        *,
        silos: int = 4,
        colluding: int = 1,
        suite: int = hybrid.SUITE,
        advisor: Endpoint | None = None,
    ) -> None:
        self.directory = directory
        self.advisor = advisor
        self.suite = suite
        self.clock = Clock()
        self.roster = signed_roster(make_roster(silos, colluding))
        self.before_wait: Callable[[], None] = lambda: None
        self.started = False
        self._boot()
        self.store.rosters.publish(self.roster, at_unix_s=1)
        self.silos = {name: Silo(self, name) for name in self.roster.roster.silo_ids}

    def _boot(self) -> None:
        """What one coordinator process has in memory."""
        self.crashed = False
        self.metrics = CoordinatorMetrics()
        self.store = Store(f"sqlite:///{self.directory}/coordinator.db", create=True)
        self.audit = AuditLog(self.directory / "audit.jsonl", self.clock)
        self.context = RunContext(
            store=self.store,
            blobs=BlobStore(self.directory / "blobs"),
            audit=self.audit,
            metrics=self.metrics,
            signing_key=COORDINATOR_KEY,
            liveness=Liveness(self.clock),
            changed=SteppedSignal(self),
            scratch=self.directory / "scratch",
            clock=self.clock,
            advisor=self.advisor,
        )
        self.conductor = Conductor(self.context)
        start = partial(self.conductor.start_run, suite=self.suite)
        self.conductor.start_run = start  # type: ignore[method-assign]

    async def run_over_power_cuts(self, plan: bytes, cuts: int = 1, down_s: float = 0.0) -> str:
        """Start a run and wait for its end; a coordinator that is cut off starts again."""
        run_id = await self.conductor.start_run(plan, INITIAL, "t")
        self.started = True
        for left in range(cuts, -1, -1):
            try:
                await self.ended()
                break
            except PowerCut:
                assert left, "one power cut too many"
                self.store.close()
                self.clock.now += down_s
                self._boot()
                self.conductor.resume()
                if self.conductor._task is None:
                    # It was cut off after its last word.
                    break
        return run_id

    def close(self) -> None:
        for silo in self.silos.values():
            silo.end_session()
            silo.ledger.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def run(self, plan: bytes, token: str = "t") -> str:
        """Start a run and wait for its end, whatever it is."""
        run_id = await self.conductor.start_run(plan, INITIAL, token)
        await self.ended()
        return run_id

    async def ended(self) -> None:
        task = self.conductor._task
        assert task is not None
        await task

    @property
    def driver(self) -> RunDriver:
        driver = self.conductor.driver
        assert driver is not None
        return driver

    def events(self) -> list[str]:
        import json

        return [json.loads(line)["event"] for line in self.audit.tail(1000)]

    def value(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value
