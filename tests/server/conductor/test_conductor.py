"""Starting, resuming and stopping runs, and what each silo is told: real store, real driver."""

import asyncio
from dataclasses import replace

import pytest

from chorale.v1 import admin_pb2, round_pb2
from federation.errors import FederationError, PlanError
from secagg.descriptor import AggregationId
from server.cli.client import MAX_MESSAGE_BYTES
from server.conductor.conductor import Conductor
from server.conductor.status import FINISHED_PER_STATUS
from server.context import RunContext, Signal
from server.errors import RunError, StoreError, UnknownRunError
from server.figures import Phase
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.world_plan import RANK

NAMES = silo_names(4)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


OTHER_LAYERS = sw.plan_toml().replace(b"[evolve]", b'target = ["v_proj"]\n[evolve]')


def test_a_token_starts_one_run_also_after_its_end(world):
    async def scenario():
        first = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "token")
        assert await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "token") == first
        await world.ended()
        assert await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "token") == first
        return first

    first = asyncio.run(scenario())
    assert [row.run_id for row in world.store.runs.list()] == [first]
    assert world.events().count("run_started") == 1


@pytest.mark.parametrize(
    ("plan", "adapter", "error", "match"),
    [
        (b"name = 3", sw.INITIAL, FederationError, "name"),
        (sw.plan_toml(), b"no adapter", FederationError, "adapter|tensors|bytes"),
        (sw.plan_toml(quorum=9), sw.INITIAL, FederationError, "quorum"),
        (sw.plan_toml(n_min=7, quorum=7), sw.INITIAL, FederationError, "n_min"),
        (OTHER_LAYERS, sw.INITIAL, FederationError, "'layer', which model.target does not name"),
    ],
)
def test_a_start_that_is_refused_leaves_nothing(world, plan, adapter, error, match):
    with pytest.raises(error, match=match):
        asyncio.run(world.conductor.start_run(plan, adapter, "t"))
    assert world.store.runs.list() == ()
    assert world.conductor.driver is None
    assert world.events() == []


def test_without_a_roster_nothing_starts(world, monkeypatch):
    monkeypatch.setattr(world.store.rosters, "current", lambda: None)
    with pytest.raises(RunError, match="no roster"):
        asyncio.run(world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t"))


def test_a_run_and_its_first_record_are_one_change(world, monkeypatch):
    def fail(_):
        raise StoreError("disk full")

    monkeypatch.setattr(world.store.records, "append", fail)
    with pytest.raises(StoreError):
        asyncio.run(world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t"))
    assert world.store.runs.list() == ()
    monkeypatch.undo()
    # The token is still unused.
    asyncio.run(world.run(sw.plan_toml()))
    assert len(world.store.runs.list()) == 1


def test_abort_ends_the_active_run_and_no_other(world):
    async def scenario():
        with pytest.raises(UnknownRunError):
            await world.conductor.abort_run("nothing")
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        with pytest.raises(UnknownRunError):
            await world.conductor.abort_run("another")
        await asyncio.sleep(0)
        await world.conductor.abort_run(run_id)
        with pytest.raises(UnknownRunError):
            world.conductor.attempt()
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.ABORTED
    assert world.events()[-1] == "run_aborted"
    assert sw.told(world.conductor, NAMES[0])[1].HasField("idle")


def test_a_finished_run_cannot_be_aborted(world):
    async def scenario():
        run_id = await world.run(sw.plan_toml())
        with pytest.raises(RunError, match="over"):
            await world.conductor.abort_run(run_id)
        return run_id

    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_a_defect_ends_the_run_and_not_the_daemon(world, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("server.run.attempts.build_descriptor", broken)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    row = world.store.runs.get(run_id)
    assert (row.state, row.error) == (RunState.FAILED, "internal error: see log")


def test_a_plan_that_the_forecast_refuses_cannot_be_started(world):
    plan = sw.plan_toml(mode="silo", noise=1e-7)
    with pytest.raises(PlanError, match="sigma"):
        asyncio.run(world.run(plan))
    assert world.store.runs.list() == ()


def test_an_adapter_of_another_rank_than_the_plans_is_refused_at_the_start(world):
    plan = sw.plan_toml()
    other = plan.replace(f"lora_rank = {RANK}".encode(), f"lora_rank = {RANK + 1}".encode())
    assert other != plan
    with pytest.raises(PlanError, match=f"lora_rank: the plan says {RANK + 1}"):
        asyncio.run(world.run(other))
    assert world.store.runs.list() == ()


# Instructions -----------------------------------------------------------------------------------


def test_every_new_thing_to_do_has_an_id_of_its_own(world):
    told: dict[str, list[tuple[str, bytes]]] = {name: [] for name in NAMES}

    def noted(silo_id):
        instruction_id, response = sw.told(world.conductor, silo_id)
        content = response.SerializeToString(deterministic=True)
        if (instruction_id, content) not in told[silo_id]:
            told[silo_id].append((instruction_id, content))
        return instruction_id, response

    world.silos[NAMES[3]].die_at = ("upload", 1)
    world.before_wait = lambda: [noted(name) for name in NAMES] and None
    asyncio.run(world.run(sw.plan_toml(rounds=2)))
    for name in NAMES:
        ids = [instruction_id for instruction_id, _ in told[name]]
        # One id never names two different messages, and nothing is told twice.
        assert len(ids) == len(set(ids))
    assert sum(":dropped" in i for i, _ in told[NAMES[3]]) == 1
    phases = [
        i.rpartition(":")[2] for i, _ in told[NAMES[0]] if ":1:0:1:" in i and "training" not in i
    ]
    assert phases == [
        p.value
        for p in (
            Phase.ADVERTISE_KEYS,
            Phase.SHARE_KEYS,
            Phase.MASKED_INPUT,
            Phase.CONSISTENCY_CHECK,
            Phase.UNMASK,
        )
    ]


def test_strangers_and_those_outside_the_cohort_are_idle(world):
    world.silos[NAMES[3]].refuses = "busy"
    seen = []

    def before_wait():
        if world.driver.attempt is not None:
            seen.append(sw.told(world.conductor, NAMES[3])[1].WhichOneof("instruction"))
            seen.append(sw.told(world.conductor, "stranger")[1].WhichOneof("instruction"))

    world.before_wait = before_wait
    asyncio.run(world.run(sw.plan_toml()))
    assert set(seen) == {"idle"}
    assert world.driver.head.survivors == NAMES[:3]


def test_a_restarted_coordinator_never_repeats_an_id(world):
    other = Conductor(world.context)
    assert sw.told(world.conductor, "x")[0] != sw.told(other, "x")[0]


def test_after_a_restart_the_newest_finished_run_still_shows_its_last_record(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    restarted = Conductor(world.context)
    assert sw.told(restarted, NAMES[0])[1].HasField("idle")
    restarted.resume()
    shown = sw.told(restarted, NAMES[0])[1].round_result.record
    assert (shown.run_id, shown.round) == (run_id, 2)


def test_poll_answers_at_once_when_there_is_news_and_waits_otherwise(world):
    real = replace_signal(world.context)
    conductor = Conductor(real)

    async def scenario():
        loop = asyncio.get_running_loop()
        first = read(await conductor.poll(NAMES[0], "", 5))
        started = loop.time()
        again = read(await conductor.poll(NAMES[0], first.instruction_id, 0.05))
        assert again.instruction_id == first.instruction_id
        assert loop.time() - started >= 0.04
        waiting = asyncio.create_task(conductor.poll(NAMES[0], first.instruction_id, 120))
        await asyncio.sleep(0.01)
        await conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        task = read(await asyncio.wait_for(waiting, 60))
        assert task.WhichOneof("instruction") == "round_task"
        assert loop.time() - started < 60
        await conductor.close()

    asyncio.run(scenario())


def test_silos_are_told_which_runs_are_over_and_no_paused_one_is(world):
    async def scenario():
        conductor = world.conductor
        finished = await world.run(sw.plan_toml())
        resting = await conductor.start_run(sw.plan_toml(rounds=2), sw.INITIAL, "b")
        await conductor.pause_run(resting)
        aborted = await conductor.start_run(sw.plan_toml(rounds=2), sw.INITIAL, "c")
        await asyncio.sleep(0)
        before = read(await conductor.poll(NAMES[0], "", 0))
        await conductor.abort_run(aborted)
        after = read(await conductor.poll(NAMES[0], before.instruction_id, 0))
        again = read(await conductor.poll(NAMES[0], after.instruction_id, 0))
        return finished, resting, aborted, before, after, again

    finished, resting, aborted, before, after, again = asyncio.run(scenario())
    assert world.store.runs.get(resting).state is RunState.PAUSED
    assert list(before.over_run_ids) == [finished]
    assert after.HasField("idle")
    # Also where nothing else is new.
    assert again.WhichOneof("instruction") is None
    assert list(after.over_run_ids) == list(again.over_run_ids) == [aborted, finished]


def test_a_run_that_failed_is_over_by_the_time_its_task_is_withdrawn(world, monkeypatch):
    async def broken(*_, **__):
        raise RunError("three silos refuse the plan")

    monkeypatch.setattr("server.run.cohorts.Cohorts.gather", broken)

    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        await asyncio.gather(world.conductor._task, return_exceptions=True)
        return run_id, read(await world.conductor.poll(NAMES[0], "", 0))

    run_id, told = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.FAILED
    assert told.WhichOneof("instruction") == "round_result"
    assert list(told.over_run_ids) == [run_id]


def test_a_store_that_fails_costs_no_silo_its_answer(world, monkeypatch):
    def away(_):
        raise StoreError("the database is away")

    monkeypatch.setattr(world.store.runs, "newest_over", away)
    told = read(asyncio.run(world.conductor.poll(NAMES[0], "", 0)))
    assert told.HasField("idle")
    assert list(told.over_run_ids) == []


def read(content):
    return round_pb2.PollResponse.FromString(content)


def replace_signal(context: RunContext) -> RunContext:
    return replace(context, changed=Signal())


def test_require_run_is_about_the_active_run(world):
    with pytest.raises(UnknownRunError, match="no run is active"):
        world.conductor.require_run("x")
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert world.conductor.require_run(run_id) is world.driver
    with pytest.raises(UnknownRunError, match=run_id):
        world.conductor.require_run("another")


# Watching ---------------------------------------------------------------------------------------


def test_watching_shows_every_round_once_however_slow_the_reader(world):
    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(rounds=3), sw.INITIAL, "t")
        shown, states = [], []
        async for status in world.conductor.watch(run_id):
            shown += [done.round for done in status.finished]
            states.append(status.run.state)
            # The run goes on to its end while this response is on its way.
            await world.ended()
        return run_id, shown, states

    run_id, shown, states = asyncio.run(scenario())
    assert shown == [1, 2, 3]
    assert states[-1] == "finished"

    async def later():
        return [status async for status in Conductor(world.context).watch(run_id)]

    (status,) = asyncio.run(later())
    assert [done.round for done in status.finished] == [1, 2, 3]
    assert not status.HasField("current")


def test_watching_shows_a_long_past_in_statuses_of_a_bounded_size(world, monkeypatch):
    monkeypatch.setattr("server.conductor.status.FINISHED_PER_STATUS", 2)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=5)))

    async def later():
        return [status async for status in Conductor(world.context).watch(run_id)]

    statuses = asyncio.run(later())
    assert [[done.round for done in one.finished] for one in statuses] == [[1, 2], [3, 4], [5]]


def test_a_status_of_the_largest_cohort_fits_the_message_of_the_admin_cli():
    names = [f"{number:03}".ljust(63, "a") for number in range(200)]
    done = admin_pb2.RoundStatus(
        cohort=names,
        survivors=names,
        success=[
            admin_pb2.FamilySuccess(family="f" * 128, success_ratio=1.0, standard_error=1.0)
            for _ in range(64)
        ],
        timings=[admin_pb2.PhaseTiming(phase="p" * 64, duration_s=1.0) for _ in range(32)],
    )
    waiting = [admin_pb2.WaitingFor(silo_id=name, since_unix_s=2**62) for name in names]
    current = admin_pb2.RoundStatus(waiting_for=waiting)
    current.MergeFrom(done)
    status = admin_pb2.WatchRunResponse(current=current, finished=[done] * FINISHED_PER_STATUS)
    assert status.ByteSize() < 0.9 * MAX_MESSAGE_BYTES


def test_watching_shows_who_is_waited_for_and_since_when(world):
    seen = []
    world.silos[NAMES[3]].dead = True

    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        async for status in world.conductor.watch(run_id):
            seen.append(status)
            if status.current.waiting_for:
                break
        await world.conductor.close()

    asyncio.run(scenario())
    waiting = seen[-1].current.waiting_for
    assert NAMES[3] in {entry.silo_id for entry in waiting}
    assert waiting[0].since_unix_s == int(world.driver.current.phase_since_unix_s)
    assert seen[-1].current.deadline_unix_s > seen[-1].current.phase_since_unix_s


def test_an_unknown_run_cannot_be_watched(world):
    async def scenario():
        return [status async for status in world.conductor.watch("nothing")]

    with pytest.raises(UnknownRunError):
        asyncio.run(scenario())


def test_the_identity_of_a_message_goes_with_it(world):
    identities = []

    def before_wait():
        if world.driver.attempt is not None:
            response = sw.told(world.conductor, NAMES[0])[1]
            identities.append((response.identity.round, response.identity.attempt))

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert set(identities) == {(1, 1), (2, 1)}
    assert (
        world.silos[NAMES[0]].ledger.highest_identity(run_id)[1:]
        == AggregationId(run_id=run_id, round=2, step=0, part=0, attempt=1).fields()[1:]
    )
