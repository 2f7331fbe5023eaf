"""A coordinator that is cut at a commit, and what must hold after it goes on."""

import os
from contextlib import contextmanager
from pathlib import Path

from server.attempt import accumulator
from server.figures import Phase
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from server.store.database import Database
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain, require_exact


def require_one_attempt(world, run_id, rounds=1):
    """The same attempt went on to its end, and nobody noticed more than a pause."""
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_exact(world, tuple(world.silos), rounds)
    assert [record.kind for record in require_chain(world, run_id)][1:] == ["aggregated"] * rounds
    rows = world.store.aggregations.list(run_id)
    assert [(row.identity.round, row.identity.attempt) for row in rows] == [
        (number, 1) for number in range(1, rounds + 1)
    ]
    assert {row.outcome for row in rows} == {AggregationOutcome.RELEASED}
    for silo in world.silos.values():
        assert len(silo.agreed) == rounds
        assert silo.aborted == 0
    require_clean(world)


def require_clean(world):
    """No secret and no scratch file is left."""
    for row in world.store.aggregations.list(world.store.runs.list()[0].run_id):
        stored = world.store.messages.with_secrets(row.identity)
        assert stored == world.store.messages.list(row.identity)
        assert all(message.sealed is None for message in stored)
        assert Phase.UNMASK not in {message.phase for message in stored}
    assert not [path for path in (world.directory / "scratch").rglob("*") if path.is_file()]


class Cut:
    """Counts the instants at which the power may go, and cuts it at one of them."""

    def __init__(self, monkeypatch, world, at=0):
        self.world = world
        self.at = at
        self.count = 0
        self.seen = []
        self.steps = []
        """The step that was current at each instant."""
        self._commits(monkeypatch)
        self._files(monkeypatch)

    def point(self, name):
        if not self.world.started:
            return
        self.count += 1
        self.seen.append(name)
        self.steps.append(self.world.driver.current.step)
        if self.count == self.at:
            raise sw.PowerCut

    def _commits(self, monkeypatch):
        real = Database.transaction

        @contextmanager
        def transaction(database):
            outermost = getattr(database._local, "connection", None) is None
            with real(database) as connection:
                raw = connection.connection.dbapi_connection
                before = raw.total_changes
                yield connection
                wrote = outermost and raw.total_changes > before
                if wrote:
                    self.point("before commit")
            if wrote:
                self.point("after commit")

        monkeypatch.setattr(Database, "transaction", transaction)

    def _files(self, monkeypatch):
        fsync, write = os.fsync, accumulator._write_all

        def synced(descriptor):
            if "scratch" not in Path(f"/proc/self/fd/{descriptor}").readlink().parts:
                fsync(descriptor)
                return
            self.point("before fsync")
            fsync(descriptor)
            self.point("after fsync")

        def torn(file, content):
            write(file, content[: len(content) // 2])
            self.point("half a write")
            write(file, content[len(content) // 2 :])

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(accumulator, "_write_all", torn)


def cut_in(world, *phases, round_number=1, when=lambda: True):
    """Cut the power when the coordinator waits in each of these phases, once each."""
    left = list(phases)

    def before_wait():
        current = world.driver.current
        if left and (current.round, current.phase) == (round_number, left[0]) and when():
            left.pop(0)
            raise sw.PowerCut

    world.before_wait = before_wait
    return left
