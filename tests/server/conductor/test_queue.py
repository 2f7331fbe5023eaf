"""Several runs in one federation: queue, turn, restart; real driver and sessions."""

import asyncio

from chorale.v1 import round_pb2
from server.conductor import instructions
from server.conductor.queue import places_behind
from server.errors import StoreError
from server.figures import Phase
from server.run import attempts
from server.states import RunState
from tests.kit.secagg.secagg_samples import make_roster, signed_roster
from tests.kit.server.run_checks import require_chain, require_exact
from tests.kit.server.server_runs import (
    details,
    in_phase,
    settled,
    start,
    states,
    until,
)


def test_runs_go_one_after_the_other_in_the_order_of_their_start(world):
    shown = []

    def before_wait():
        driver = world.conductor.driver
        if driver.attempt is not None or driver.training is not None:
            shown.append(driver.row.run_id)

    world.before_wait = before_wait

    async def scenario():
        runs = [await start(world, token) for token in "abc"]
        assert states(world) == ["running", "queued", "queued"]
        assert places_behind(world.store) == {runs[1]: runs[0], runs[2]: runs[1]}
        await settled(world)
        return runs

    runs = asyncio.run(scenario())
    assert list(dict.fromkeys(shown)) == runs
    assert states(world) == ["finished"] * 3
    events = [event for event in world.events() if event.startswith("run_")]
    assert events == [
        "run_started", "run_queued", "run_queued", "run_finished", "run_started", "run_finished",
        "run_started", "run_finished",
    ]  # fmt: skip
    assert [each["admin"] for each in details(world, "run_queued")] == ["ada", "ada"]
    for run_id in runs:
        require_chain(world, run_id)


def test_the_next_run_begins_when_one_fails_and_when_one_is_aborted(world, monkeypatch):
    real, broken = attempts.build_descriptor, []

    def build(**arguments):
        if not broken:
            broken.append(arguments["identity"].run_id)
            raise ZeroDivisionError
        return real(**arguments)

    async def scenario():
        monkeypatch.setattr(attempts, "build_descriptor", build)
        runs = [await start(world, token) for token in "abc"]
        aborted = in_phase(world, Phase.UNMASK, lambda: world.conductor.abort_run(runs[1]))
        await settled(world)
        assert len(aborted) == 1
        return runs

    runs = asyncio.run(scenario())
    assert broken == runs[:1]
    assert states(world) == ["failed", "aborted", "finished"]
    assert world.driver.row.run_id == runs[2]
    require_exact(world, tuple(world.silos))


def test_a_run_that_no_longer_fits_the_roster_fails_at_its_turn_and_the_next_one_begins(world):
    """Four silos when it was submitted, three when it would begin."""

    def publish(silos, epoch):
        roster = signed_roster(make_roster(silos, 1, epoch=epoch))
        world.store.rosters.publish(roster, at_unix_s=epoch)
        return roster

    async def scenario():
        publish(4, 4)
        await start(world, "first")
        await world.conductor.close()
        large = await start(world, "large", n_min=4, quorum=4)
        small = await start(world, "small")
        world.roster = publish(3, 5)
        # Submitting took the run up again; who dies drives no more.
        await world.conductor.close()
        world.store.close()
        world._boot()
        world.conductor.resume()
        await settled(world)
        return large, small

    large, small = asyncio.run(scenario())
    row = world.store.runs.get(large)
    assert row.state is RunState.FAILED
    assert "n_min" in row.error
    assert details(world, "run_failed") == [{"run": large, "reason": row.error}]
    assert world.store.runs.get(small).state is RunState.FINISHED


def test_a_defect_at_its_turn_fails_one_run_and_not_the_queue(world, monkeypatch):
    real = world.conductor._queue.require_feasible_now
    broken = []

    def require(row):
        if not broken:
            broken.append(row.run_id)
            raise ZeroDivisionError
        real(row)

    async def scenario():
        runs = [await start(world, token) for token in "abc"]
        monkeypatch.setattr(world.conductor._queue, "require_feasible_now", require)
        await settled(world)
        return runs

    runs = asyncio.run(scenario())
    assert broken == [runs[1]]
    assert states(world) == ["finished", "failed", "finished"]


def test_a_beginning_whose_answer_is_lost_is_driven_once(world, monkeypatch):
    lost = []

    async def scenario():
        first, second = await start(world, "a"), await start(world, "b")
        begin = world.conductor._queue.begin

        def begun(row):
            begin(row)
            lost.append(row.run_id)
            raise StoreError("the connection is gone")

        monkeypatch.setattr(world.conductor._queue, "begin", begun)
        monkeypatch.setattr("server.conductor.storage_faults.FIRST_PAUSE_S", 0.0)
        await settled(world)
        return first, second

    first, second = asyncio.run(scenario())
    assert lost == [second]
    assert states(world) == ["finished", "finished"]
    assert [each["run"] for each in details(world, "run_finished")] == [first, second]


def test_after_a_restart_queue_and_paused_runs_are_as_before(world):
    async def before():
        runs = [await start(world, token, rounds=3) for token in "abcd"]
        await world.conductor.pause_run(runs[2])
        await world.conductor.close()
        return runs

    runs = asyncio.run(before())
    world.store.close()
    world._boot()
    assert states(world) == ["running", "queued", "paused", "queued"]
    assert places_behind(world.store) == {runs[1]: runs[0], runs[3]: runs[1]}

    async def after():
        world.conductor.resume()
        await settled(world)
        assert states(world) == ["finished", "finished", "paused", "finished"]
        world.store.close()
        world._boot()
        # Nothing begins by itself that an admin has paused.
        world.conductor.resume()
        await settled(world)
        assert world.store.runs.get(runs[2]).state is RunState.PAUSED
        await world.conductor.resume_run(runs[2])
        await settled(world)

    asyncio.run(after())
    assert states(world) == ["finished"] * 4


def test_a_coordinator_that_stops_between_two_runs_goes_on_with_the_next(world):
    async def before():
        first = await start(world, "a")
        await start(world, "b")
        await until(lambda: world.store.runs.get(first).state is RunState.FINISHED)
        await world.conductor.close()

    asyncio.run(before())
    assert states(world) == ["finished", "queued"]
    world.store.close()
    world._boot()

    async def after():
        world.conductor.resume()
        await settled(world)

    asyncio.run(after())
    assert states(world) == ["finished", "finished"]


def test_before_the_next_run_is_shown_every_silo_has_the_last_record(world, monkeypatch):
    """Silos ask over the service; one of them is slow, and one never asks."""
    monkeypatch.setattr(instructions, "HAND_OVER_S", 30.0)
    names = tuple(world.silos)

    async def scenario():
        conductor = world.conductor
        first, second = await start(world, "a"), await start(world, "b")
        await until(lambda: world.store.runs.get(first).state is RunState.FINISHED)
        over_at = world.clock.now
        for silo in world.silos.values():
            silo.dead = True
        for name in names[:2]:
            told = round_pb2.PollResponse.FromString(await conductor.poll(name, "", 0))
            assert told.round_result.record.run_id == first
            # It has dealt with it when it asks again.
            assert conductor.driver.row.run_id == first
            await conductor.poll(name, told.instruction_id, 0)
        # The third is alive for a while, and is waited for no longer than that.
        await until(lambda: conductor.driver.row.run_id != first)
        waited_s = world.clock.now - over_at
        await conductor.close()
        return second, waited_s

    second, waited_s = asyncio.run(scenario())
    assert world.driver.row.run_id == second
    assert 1 <= waited_s <= 31
