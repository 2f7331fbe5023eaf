"""Several runs in one federation: submit tokens, and what is shown of each run."""

import asyncio

import pytest

from federation.adapter.encoding import encode_adapter
from server.errors import SubmitTokenError
from server.figures import Phase
from tests.kit.server import world as sw
from tests.kit.server.server_runs import in_phase, settled, start, states, until

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
