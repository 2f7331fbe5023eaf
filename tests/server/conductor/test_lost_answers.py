"""A commit whose answer is lost, a caller who goes away, a run that cannot be loaded.

Failures are: a run that is noted as driven or queued and that nobody drives, one that goes on after
its end was noted, a queue that waits for ever, a coordinator that does not start.
"""

import asyncio
import contextlib
import threading

import pytest

from server.conductor import storage_faults
from server.errors import BlobError, RunError, StoreError
from server.figures import Phase
from server.run.driver import RunDriver
from server.states import RunState
from server.store.runs import Runs
from tests.kit.server import world as sw
from tests.kit.server.server_runs import (
    details,
    in_phase,
    one_at_a_time,
    settled,
    start,
    states,
    until,
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_faults, "FIRST_PAUSE_S", 0.0)
    with one_at_a_time(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def lose(world, monkeypatch):
    """Make the next commit one whose answer is lost."""
    real, armed = world.store.transaction, []

    @contextlib.contextmanager
    def transaction():
        with real() as connection:
            yield connection
        if armed:
            armed.clear()
            raise StoreError("the database failed: OperationalError")

    monkeypatch.setattr(world.store, "transaction", transaction)
    return lambda: armed.append(True)


def lost(world, lose, change, run_id):
    """An admin's change whose commit is answered to nobody."""

    async def act():
        lose()
        with pytest.raises(StoreError):
            await getattr(world.conductor, change)(run_id, admin="ada")

    return act


def test_a_start_whose_answer_is_lost_is_driven(world, lose):
    async def scenario():
        lose()
        with pytest.raises(StoreError):
            await start(world, "a")
        await settled(world)

    asyncio.run(scenario())
    assert states(world) == ["finished"]


def test_a_start_whose_caller_goes_away_is_driven(tmp_path):
    entered, go = threading.Event(), threading.Event()
    with sw.World(tmp_path, silos=3) as world:
        real = world.context.blobs.put

        def slow(content):
            entered.set()
            assert go.wait(120)
            return real(content)

        async def scenario():
            world.context.blobs.put = slow
            call = asyncio.create_task(start(world, "a"))
            assert await asyncio.to_thread(entered.wait, 30)
            world.context.blobs.put = real
            call.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await call
            await settled(world)

        asyncio.run(scenario())
        assert states(world) == ["finished"]


@pytest.mark.parametrize(
    ("change", "state"), [("abort_run", RunState.ABORTED), ("pause_run", RunState.PAUSED)]
)
def test_an_end_whose_answer_is_lost_is_an_end_and_the_next_run_begins(world, lose, change, state):
    async def scenario():
        run_id, other = await start(world, "a"), await start(world, "b")
        done = in_phase(world, Phase.SHARE_KEYS, lost(world, lose, change, run_id))
        await settled(world)
        await done[0]
        return run_id, other

    run_id, other = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is state
    assert world.store.runs.get(other).state is RunState.FINISHED
    # Nothing of it was released after its end.
    assert [record.kind for record in world.store.records.list(run_id)] == ["initial"]
    assert not world.store.aggregations.unfinished()


def test_a_run_that_is_over_is_no_fault_of_the_storage(world):
    async def scenario():
        run_id = await start(world, "a")
        await settled(world)
        with pytest.raises(RunError, match="is over"):
            world.store.runs.set_state(run_id, RunState.ABORTED)

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [False, True])
def test_a_resumption_whose_answer_is_lost_goes_on(world, lose, again):
    async def scenario():
        run_id = await start(world, "a", rounds=2)
        in_phase(world, Phase.SHARE_KEYS, lambda: world.conductor.pause_run(run_id))
        await settled(world)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        await lost(world, lose, "resume_run", run_id)()
        if again:
            await world.conductor.resume_run(run_id)
        await settled(world)

    asyncio.run(scenario())
    assert states(world) == ["finished"]


def test_a_pause_that_could_not_be_noted_does_not_pause(world, monkeypatch):
    def broken(*_rest, **_named):
        raise StoreError("database is locked")

    async def scenario():
        run_id = await start(world, "a", rounds=2)

        async def pause():
            with monkeypatch.context() as patch:
                patch.setattr(Runs, "set_state", broken)
                with pytest.raises(StoreError):
                    await world.conductor.pause_run(run_id, admin="ada")

        done = in_phase(world, Phase.UNMASK, pause)
        await settled(world)
        await done[0]

    asyncio.run(scenario())
    assert states(world) == ["finished"]


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_pause_whose_answer_is_lost_is_asked_for_again_or_taken_back(world, lose, taken_back):
    async def scenario():
        run_id = await start(world, "a", rounds=2)

        async def pause():
            await lost(world, lose, "pause_run", run_id)()
            assert await world.conductor.pause_run(run_id) is RunState.PAUSING
            if taken_back:
                await lost(world, lose, "resume_run", run_id)()
                await world.conductor.resume_run(run_id)

        done = in_phase(world, Phase.UNMASK, pause)
        await settled(world)
        await done[0]

    asyncio.run(scenario())
    assert states(world) == ["finished" if taken_back else "paused"]


def test_a_run_that_cannot_be_loaded_does_not_keep_the_coordinator_down(world, monkeypatch):
    async def before():
        run_id, other = await start(world, "a", rounds=3), await start(world, "b")
        await until(lambda: len(world.store.records.list(run_id)) > 1)
        await world.conductor.close()
        return run_id, other

    run_id, other = asyncio.run(before())
    world.store.close()
    world._boot()
    real = RunDriver.__init__

    def load(self, *, row, **rest):
        if row.run_id == run_id:
            raise BlobError("the adapter is gone")
        real(self, row=row, **rest)

    async def after():
        monkeypatch.setattr(RunDriver, "__init__", load)
        world.conductor.resume()
        await settled(world)

    asyncio.run(after())
    row = world.store.runs.get(run_id)
    # Its rounds are paid for: it waits for the admin, as one that cannot go on at its turn.
    assert (row.state, row.error) == (RunState.PAUSED, "the adapter is gone")
    assert details(world, "run_paused")[-1]["reason"] == "the adapter is gone"
    assert world.store.runs.get(other).state is RunState.FINISHED
