"""A run is paused in any phase, and goes on; real driver and sessions."""

import asyncio

import pytest

from federation.errors import FederationError
from secagg.descriptor import SignedDescriptor
from server.errors import RunError, StoreError, UnknownRunError
from server.figures import STEPS, Phase
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from server.store.runs import Runs
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain, require_exact
from tests.kit.server.server_runs import (
    details,
    in_phase,
    settled,
    start,
    states,
    until,
)


def descriptors(world):
    told = [m for silo in world.silos.values() for m in silo.told]
    return [m.descriptor for m in told if isinstance(m, SignedDescriptor)]


def require_identities_once(world):
    """One descriptor for each identity, ever; so no key, mask or noise is asked for twice."""
    by_identity = {}
    for descriptor in descriptors(world):
        assert by_identity.setdefault(descriptor.identity, descriptor.sha256) == descriptor.sha256


@pytest.mark.parametrize("phase", [Phase.TRAINING, *STEPS])
def test_a_run_is_paused_in_any_phase_and_goes_on_to_the_same_adapter(world, phase):
    async def scenario():
        run_id = await start(world, "t", rounds=2)
        asked = in_phase(world, phase, lambda: world.conductor.pause_run(run_id, admin="ada"))
        await settled(world)
        state = await asked[0]
        agreed = phase in STEPS[3:]
        assert state is (RunState.PAUSING if agreed else RunState.PAUSED)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        assert world.conductor.attempt if agreed else world.driver.attempt is None
        # What survivors had agreed on is out, and nothing else is.
        assert [r.kind for r in world.store.records.list(run_id)][1:] == ["aggregated"] * agreed
        charged = world.store.rounds.charged(run_id)
        assert charged.releases == (phase in STEPS[2:])
        for silo in world.silos.values():
            silo.step()
            assert silo._session is None
        world.before_wait = lambda: None
        assert await world.conductor.resume_run(run_id, admin="ada") == ""
        await settled(world)
        return run_id, charged

    run_id, charged = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    kinds = [record.kind for record in require_chain(world, run_id)]
    assert kinds == ["initial", "aggregated", "aggregated"]
    require_exact(world, tuple(world.silos), 2)
    rows = world.store.aggregations.list(run_id)
    ended = [(row.identity.round, row.identity.attempt, row.outcome) for row in rows]
    released, aborted = AggregationOutcome.RELEASED, AggregationOutcome.ABORTED
    if phase in STEPS[:3]:
        assert ended == [(1, 1, aborted), (1, 2, released), (2, 1, released)]
    else:
        assert ended == [(1, 1, released), (2, 1, released)]
    require_identities_once(world)
    # What was charged stays charged.
    assert world.store.rounds.charged(run_id).releases == 2 + (phase is STEPS[2])
    assert charged.releases <= world.store.rounds.charged(run_id).releases
    events = world.events()
    assert [e for e in events if e in {"run_paused", "run_unpaused", "run_continued"}] == [
        "run_paused", "run_unpaused", "run_continued",
    ]  # fmt: skip
    assert events.count("run_started") == 1
    assert "run_resumed" not in events


def test_while_a_run_is_paused_the_others_go_on_and_it_comes_back_first(world):
    async def scenario():
        first = await start(world, "a", rounds=2)
        paused = in_phase(world, Phase.SHARE_KEYS, lambda: world.conductor.pause_run(first))
        second, third = await start(world, "b", rounds=2), await start(world, "c")
        await until(lambda: world.conductor.driver.row.run_id != first)
        assert len(paused) == 1
        assert states(world) == ["paused", "running", "queued"]
        assert await world.conductor.resume_run(first) == second
        assert [row.run_id for row in world.store.runs.queued()] == [first, third]
        # Again it is no error, and changes nothing.
        assert await world.conductor.resume_run(first) == second
        await settled(world)
        return first, second, third

    runs = asyncio.run(scenario())
    assert states(world) == ["finished"] * 3
    order = [each["run"] for each in details(world, "run_finished")]
    assert order == [runs[1], runs[0], runs[2]]
    for run_id in runs:
        require_chain(world, run_id)
    require_identities_once(world)


def test_a_queued_run_can_be_paused_and_aborted(world):
    async def scenario():
        first, second, third = [await start(world, token) for token in "abc"]
        assert await world.conductor.pause_run(second) is RunState.PAUSED
        assert await world.conductor.pause_run(second) is RunState.PAUSED
        await world.conductor.abort_run(third, admin="ada")
        assert states(world) == ["running", "paused", "aborted"]
        await settled(world)
        assert states(world) == ["finished", "paused", "aborted"]
        await world.conductor.abort_run(second)
        for over in (first, second, third):
            with pytest.raises(RunError, match="over"):
                await world.conductor.pause_run(over)
            with pytest.raises(RunError, match="over"):
                await world.conductor.resume_run(over)
            with pytest.raises(RunError, match="over"):
                await world.conductor.abort_run(over)
        for change in (world.conductor.pause_run, world.conductor.resume_run):
            with pytest.raises(UnknownRunError):
                await change("nothing")

    asyncio.run(scenario())
    assert states(world) == ["finished", "aborted", "aborted"]
    assert details(world, "run_aborted")[0]["admin"] == "ada"


def test_a_run_that_is_paused_may_be_aborted_while_it_is_pausing(world):
    async def scenario():
        run_id = await start(world, "t", rounds=2)

        async def both():
            assert await world.conductor.pause_run(run_id) is RunState.PAUSING
            await world.conductor.abort_run(run_id)

        asked = in_phase(world, Phase.UNMASK, both)
        await settled(world)
        await asked[0]
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.ABORTED
    (row,) = world.store.aggregations.list(run_id)
    assert row.outcome is AggregationOutcome.SKIPPED


def test_a_pause_that_is_taken_back_before_the_release_is_closed_changes_nothing(world):
    async def scenario():
        run_id = await start(world, "t", rounds=2)

        async def both():
            assert await world.conductor.pause_run(run_id) is RunState.PAUSING
            assert await world.conductor.resume_run(run_id) == ""

        asked = in_phase(world, Phase.CONSISTENCY_CHECK, both)
        await settled(world)
        await asked[0]
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert "run_paused" not in world.events()


@pytest.mark.parametrize("phase", STEPS[3:])
def test_a_power_cut_while_pausing_loses_neither_the_sum_nor_the_pause(world, phase):
    async def scenario():
        run_id = await start(world, "t", rounds=2)

        def cut():
            raise sw.PowerCut

        async def pause_and_cut():
            assert await world.conductor.pause_run(run_id) is RunState.PAUSING
            world.before_wait = cut

        in_phase(world, phase, pause_and_cut)
        with pytest.raises(sw.PowerCut):
            await settled(world)
        world.store.close()
        world._boot()
        world.before_wait = lambda: None
        world.conductor.resume()
        await settled(world)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        assert [r.kind for r in world.store.records.list(run_id)] == ["initial", "aggregated"]
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_exact(world, tuple(world.silos), 2)
    require_identities_once(world)


def test_a_release_that_is_skipped_while_pausing_is_closed_before_the_pause(world):
    async def scenario():
        run_id = await start(world, "t", rounds=2)

        async def pause():
            await world.conductor.pause_run(run_id)
            for silo in list(world.silos.values())[1:]:
                silo.die_at = ("unmask", 1)

        in_phase(world, Phase.UNMASK, pause)
        await settled(world)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        assert [r.kind for r in world.store.records.list(run_id)] == ["initial", "skipped"]
        for silo in world.silos.values():
            silo.come_back()
        world.before_wait = lambda: None
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    kinds = [record.kind for record in require_chain(world, run_id)]
    assert kinds == ["initial", "skipped", "aggregated"]
    require_exact(world, tuple(world.silos))


@pytest.mark.parametrize("change", ["pause_run", "abort_run"])
def test_a_change_that_cannot_be_written_has_not_happened(world, monkeypatch, change):
    real, failed = Runs.set_state, []

    def set_state(self, run_id, state, *rest, **named):
        if state in {RunState.PAUSED, RunState.ABORTED} and not failed:
            failed.append(state)
            raise StoreError("the disk is away")
        real(self, run_id, state, *rest, **named)

    async def scenario():
        run_id = await start(world, "t", rounds=2)
        monkeypatch.setattr(Runs, "set_state", set_state)
        asked = in_phase(
            world, Phase.MASKED_INPUT, lambda: getattr(world.conductor, change)(run_id)
        )
        await settled(world)
        with pytest.raises(StoreError):
            await asked[0]
        return run_id

    run_id = asyncio.run(scenario())
    assert len(failed) == 1
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_exact(world, tuple(world.silos), 2)
    # It went on in the very attempt that was open.
    rows = world.store.aggregations.list(run_id)
    assert [row.outcome for row in rows] == ["released", "released"]


def test_between_two_steps_of_a_round_a_pause_costs_no_attempt(world):
    """The silos worked for another run meanwhile: they are asked, not taken for granted."""

    async def scenario():
        run_id = await world.conductor.start_run(sw.stepped_toml(), sw.INITIAL, "t")
        asked = in_phase(world, Phase.UNMASK, lambda: world.conductor.pause_run(run_id))
        await settled(world)
        await asked[0]
        assert world.store.records.list(run_id)[-1].place == (1, 0)
        world.before_wait = lambda: None
        await world.conductor.resume_run(run_id)
        await asyncio.sleep(0)
        assert world.driver.current.phase is Phase.TRAINING
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    rows = world.store.aggregations.list(run_id)
    assert [(row.identity.step, row.identity.attempt) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert {row.outcome for row in rows} == {AggregationOutcome.RELEASED}


def test_a_paused_run_that_no_longer_fits_the_roster_stays_paused(world, monkeypatch):
    def refuse(*_):
        raise FederationError("n_min is 3 and the roster has 2 silos")

    async def scenario():
        run_id = await start(world, "t", rounds=2)
        other = await start(world, "other")
        in_phase(world, Phase.SHARE_KEYS, lambda: world.conductor.pause_run(run_id))
        await until(lambda: world.conductor.driver.row.run_id != run_id)
        with monkeypatch.context() as patch:
            patch.setattr("server.conductor.queue.require_feasible", refuse)
            with pytest.raises(FederationError, match="n_min"):
                await world.conductor.resume_run(run_id)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        assert await world.conductor.resume_run(run_id) == other
        # And so it does when only its turn shows it: its rounds are paid for.
        with monkeypatch.context() as patch:
            patch.setattr("server.conductor.queue.require_feasible", refuse)
            await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    row = world.store.runs.get(run_id)
    assert (row.state, row.error) == (RunState.PAUSED, "n_min is 3 and the roster has 2 silos")
