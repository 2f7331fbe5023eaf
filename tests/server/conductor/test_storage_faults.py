"""A full disk or a database that is away pauses a run; nothing is lost or counted twice."""

import asyncio
import errno

import pytest

from server.attempt.accumulator import Accumulator
from server.audit import AuditLog
from server.conductor import storage_faults
from server.conductor.conductor import Conductor
from server.errors import StorageFullError, StoreError
from server.figures import Phase, RoundFigures
from server.run.driver import RunDriver
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from server.store.blobs.directory import BlobStore
from server.store.runs import Runs
from tests.kit.server import world as sw
from tests.kit.server.cuts import cut_in, require_clean, require_one_attempt
from tests.kit.server.run_checks import require_chain, require_exact
from tests.kit.server.storage_faults import Fault

SHARDS = 4


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(storage_faults, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=3) as made:
        yield made


def failing(monkeypatch, owner, name, error, times=2):
    """The first calls fail."""
    real, left = getattr(owner, name), [error] * times

    def call(*arguments, **named):
        if left:
            raise left.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return left


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "fault",
    [
        (BlobStore, "put", FULL),
        (Accumulator, "release", StorageFullError("no space")),
        (Accumulator, "__init__", StorageFullError("no space")),
        (AuditLog, "append", FULL),
    ],
)
def test_a_fault_that_passes_costs_a_pause_and_nothing_else(world, monkeypatch, fault, capsys):
    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        left = failing(monkeypatch, *fault)
        await world.ended()
        assert left == []
        return run_id

    run_id = asyncio.run(scenario())
    require_one_attempt(world, run_id)
    (row,) = world.store.rounds.finished(run_id)
    uploads = RoundFigures.from_json(row.figures_json).upload_bytes
    assert uploads == 4 * (sw.DIMENSION + 3) * 3
    assert len(world.driver.finished) == 1
    assert world.value("chorale_storage_faults_total") == 2
    assert "run_failed" not in world.events()
    assert capsys.readouterr().out.count("storage_failed") == 2


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(
    "shard", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, SHARDS))]
)
def test_any_commit_may_fail(tmp_path_factory, monkeypatch, shard, committed):
    at = 1 + shard
    while True:
        directory = tmp_path_factory.mktemp("fault")
        with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
            fault = Fault(patch, world, at, committed=committed)
            run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), cuts=0))
            if fault.count < at:
                break
            assert world.store.runs.get(run_id).state is RunState.FINISHED
            require_exact(world, tuple(world.silos))
            assert [record.kind for record in require_chain(world, run_id)][1:] == ["aggregated"]
            assert len(world.driver.finished) == 1
            outcomes = [row.outcome for row in world.store.aggregations.list(run_id)]
            assert outcomes.count(AggregationOutcome.RELEASED) == 1
            # Only an opening whose answer was lost is followed by another attempt.
            assert len(outcomes) == 1 or (committed and len(outcomes) == 2)
        at += SHARDS
    assert at > 25


def test_a_run_that_stops_while_the_database_is_away_is_shown_as_failed_once_it_is_back(
    world, monkeypatch
):
    shown = []
    real = Runs.set_state

    def set_state(runs, run_id, state, error="", **named):
        if state is RunState.FAILED and len(shown) < 3:
            shown.append((world.driver.attempt, world.driver.training))
            raise StoreError("the database failed")
        real(runs, run_id, state, error, **named)

    monkeypatch.setattr(Runs, "set_state", set_state)
    for silo in list(world.silos.values())[1:]:
        silo.refuses = "budget"
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert shown == [(None, None)] * 3
    assert world.store.runs.get(run_id).state is RunState.FAILED
    assert world.events()[-1] == "run_failed"


def test_a_full_disk_at_the_start_keys_an_attempt_anew_whose_files_are_gone(world, monkeypatch):
    left = cut_in(world, Phase.SHARE_KEYS)
    boot, faults = world._boot, []

    def without_scratch():
        for path in sorted((world.directory / "scratch").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        faults.append(failing(monkeypatch, Accumulator, "__init__", StorageFullError("full"), 1))
        boot()

    world._boot = without_scratch
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml()))
    assert (left, faults) == ([], [[]])
    outcomes = [row.outcome for row in world.store.aggregations.list(run_id)]
    assert outcomes == [AggregationOutcome.ABORTED, AggregationOutcome.RELEASED]
    require_exact(world, tuple(world.silos))
    require_clean(world)


@pytest.mark.parametrize("broken", ["_next", "_stop"])
def test_a_defect_of_driving_itself_leaves_no_run_that_nobody_drives(world, monkeypatch, broken):
    """Neither one while a run is fetched, nor one while another defect's run is shown as failed."""
    if broken == "_stop":
        failing(monkeypatch, RunDriver, "drive", ZeroDivisionError(), 99)
    left = failing(monkeypatch, Conductor, broken, ZeroDivisionError())

    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        async with asyncio.timeout(20):
            await world.ended()
        return run_id

    run_id = asyncio.run(scenario())
    assert left == []
    expected = RunState.FAILED if broken == "_stop" else RunState.FINISHED
    assert world.store.runs.get(run_id).state is expected
    assert world.value("chorale_driver_failures_total") == 2
