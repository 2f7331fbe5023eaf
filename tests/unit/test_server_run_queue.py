"""Several runs in one federation: queue, pause, resume, restart; real driver and sessions."""

import asyncio
import json

import pytest

from chorale.v1 import round_pb2
from federation.adapter import encode_adapter
from federation.errors import FederationError
from secagg.descriptor import SignedDescriptor
from server import attempts, handover
from server.errors import RunError, StoreError, SubmitTokenError, UnknownRunError
from server.round import STEPS, Phase
from server.run_queue import places_behind
from server.store.aggregations import AggregationOutcome
from server.store.runs import Runs, RunState
from tests.unit import server_world as sw
from tests.unit.secagg_samples import make_roster, signed_roster
from tests.unit.test_server_run import require_chain, require_exact


@pytest.fixture
def world(tmp_path, monkeypatch):
    async def at_once(work, *arguments, **named):
        return work(*arguments, **named)

    # Time here moves only when the coordinator waits; a thread would let it run while one is asked.
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    with sw.World(tmp_path, silos=3) as made:
        yield made


async def until(condition):
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def settled(world):
    """Until nothing is driven; a task that an admin ended is no failure."""
    while not world.conductor._idle:
        (result,) = await asyncio.gather(world.conductor._task, return_exceptions=True)
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
        await asyncio.sleep(0)


def in_phase(world, phase, act, *, round_number=1):
    """Call ``act`` once, while the coordinator waits in this phase and no silo has answered."""
    done = []

    async def held():
        try:
            return await act()
        finally:
            for silo in world.silos.values():
                silo.dead = False

    def before_wait():
        driver = world.conductor.driver
        here = (driver.current.round, driver.current.phase) == (round_number, phase)
        if here and not done:
            for silo in world.silos.values():
                silo.dead = True
            done.append(asyncio.ensure_future(held()))

    world.before_wait = before_wait
    return done


def states(world):
    return [row.state for row in world.store.runs.list()]


def start(world, token, **plan):
    return world.conductor.start_run(sw.plan_toml(**plan), sw.INITIAL, token, admin="ada")


def details(world, event):
    lines = [json.loads(line) for line in world.audit.tail(1000)]
    return [line["details"] for line in lines if line["event"] == event]


# The queue ---------------------------------------------------------------------------------------


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
        monkeypatch.setattr("server.storage_faults.FIRST_PAUSE_S", 0.0)
        await settled(world)
        return first, second

    first, second = asyncio.run(scenario())
    assert lost == [second]
    assert states(world) == ["finished", "finished"]
    assert [each["run"] for each in details(world, "run_finished")] == [first, second]


def test_after_a_restart_queue_and_paused_runs_are_as_before(world):
    async def before():
        runs = [await start(world, token) for token in "abcd"]
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
    monkeypatch.setattr(handover, "HAND_OVER_S", 30.0)
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


# Pausing -----------------------------------------------------------------------------------------


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
        second, third = await start(world, "b", rounds=2), await start(world, "c")
        paused = in_phase(world, Phase.SHARE_KEYS, lambda: world.conductor.pause_run(first))
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
            patch.setattr("server.run_queue.require_feasible", refuse)
            with pytest.raises(FederationError, match="n_min"):
                await world.conductor.resume_run(run_id)
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        assert await world.conductor.resume_run(run_id) == other
        # And so it does when only its turn shows it: its rounds are paid for.
        with monkeypatch.context() as patch:
            patch.setattr("server.run_queue.require_feasible", refuse)
            await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    row = world.store.runs.get(run_id)
    assert (row.state, row.error) == (RunState.PAUSED, "n_min is 3 and the roster has 2 silos")


# Submit tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", " ", "a b", "x" * 129, "käse", "a\n", "../x", "-a"])
def test_a_token_is_bounded(world, token):
    with pytest.raises(SubmitTokenError, match="1 to 128"):
        asyncio.run(start(world, token))
    assert states(world) == []


@pytest.mark.parametrize("token", ["x" * 128, "ci-2026.01/run:7", "a_b=+"])
def test_ordinary_tokens_are_taken(world, token):
    async def scenario():
        await start(world, token)
        await world.conductor.close()

    asyncio.run(scenario())
    assert states(world) == ["running"]


def test_a_token_with_another_plan_or_adapter_is_refused(world):
    async def scenario():
        run_id = await start(world, "t")
        with pytest.raises(SubmitTokenError, match=f"{run_id} with another plan"):
            await start(world, "t", rounds=2)
        other = {name: part + 1 for name, part in sw.initial_tensors().items()}
        with pytest.raises(SubmitTokenError, match="another initial adapter"):
            await world.conductor.start_run(sw.plan_toml(), encode_adapter(other), "t")
        with pytest.raises(SubmitTokenError, match="another plan"):
            await world.conductor.start_run(b"no plan at all", sw.INITIAL, "t")
        assert await start(world, "t") == run_id
        await world.conductor.close()

    asyncio.run(scenario())
    assert len(states(world)) == 1


# What is shown -----------------------------------------------------------------------------------


async def watched(world, run_id, enough):
    """Statuses of a run until one is enough."""
    seen = []
    async for status in world.conductor.watch(run_id):
        seen.append(status)
        if enough(status):
            return seen
    return seen


def test_a_queued_run_is_watched_from_its_place_to_its_end(world):
    async def scenario():
        first, second = await start(world, "a"), await start(world, "b")
        seen = await watched(world, second, lambda _: False)
        assert (seen[0].run.state, seen[0].run.behind) == ("queued", first)
        assert seen[0].run.state_since_unix_s == int(sw.Clock().now)
        assert not seen[0].HasField("current")
        assert [done.round for status in seen for done in status.finished] == [1]
        return [status.run.state for status in seen]

    shown = list(dict.fromkeys(asyncio.run(scenario())))
    assert shown == ["queued", "running", "finished"]


def test_a_paused_run_waits_for_the_admin_and_for_no_silo(world):
    async def scenario():
        run_id = await start(world, "t", rounds=2)
        in_phase(world, Phase.MASKED_INPUT, lambda: world.conductor.pause_run(run_id))
        await settled(world)
        at = world.clock.now
        world.clock.now += 100
        (status,) = await watched(world, run_id, lambda _: True)
        assert (status.run.state, status.run.behind) == ("paused", "")
        assert status.run.state_since_unix_s == int(at)
        assert not status.HasField("current")

    asyncio.run(scenario())


def test_while_pausing_the_silos_that_finish_it_are_shown(world):
    async def scenario():
        run_id = await start(world, "t")
        shown = []

        async def pause():
            await world.conductor.pause_run(run_id)
            shown.extend(await watched(world, run_id, lambda _: True))

        in_phase(world, Phase.UNMASK, pause)
        await settled(world)
        return shown

    (status,) = asyncio.run(scenario())
    assert (status.run.state, status.current.phase) == ("pausing", "unmask")
    assert [silo.silo_id for silo in status.current.waiting_for] == list(world.silos)


def test_a_round_that_stalls_says_since_when_whatever_deadlines_passed(world):
    """Two of three never answer; the third is not enough."""
    for silo in list(world.silos.values())[1:]:
        silo.dead = True

    async def scenario():
        began = world.clock.now
        run_id = await start(world, "t")
        # The deadline of the task is 60 s, and a new task has a new one.
        await until(lambda: world.clock.now > began + 150)
        (status,) = await watched(world, run_id, lambda _: True)
        now = world.clock.now
        await world.conductor.close()
        return began, now, status.current

    began, now, current = asyncio.run(scenario())
    assert current.phase == "training"
    assert current.phase_since_unix_s == int(began)
    assert current.stalled_since_unix_s == int(began) + 60
    assert now <= current.deadline_unix_s <= now + 60
    assert [silo.silo_id for silo in current.waiting_for] == list(world.silos)[1:]
    for silo in current.waiting_for:
        assert silo.since_unix_s == int(began)
        assert silo.last_byte_unix_s == 0
    assert world.events().count("round_stalled") == 2


def test_a_round_in_its_time_is_not_stalled(world):
    async def scenario():
        run_id = await start(world, "t")
        seen = await watched(world, run_id, lambda _: False)
        return [status.current.stalled_since_unix_s for status in seen]

    assert set(asyncio.run(scenario())) == {0}
