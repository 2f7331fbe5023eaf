"""Which suite a run is of, who is too old for it, and what its tasks, D and records say of it."""

import asyncio

import pytest

from federation.errors import VersionMismatchError
from federation.plan.families import families_of
from federation.version import Version
from secagg.digest_tree import SHA256
from server.errors import RunError, SubmitTokenError
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)
OLD = Version(name="0.2.0", oldest=1, newest=2)


@pytest.fixture(params=[1, 2])
def world(request, tmp_path):
    with sw.World(tmp_path, suite=request.param) as made:
        yield made


def test_the_suite_of_a_run_is_that_of_all_it_makes(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    row = world.store.runs.get(run_id)
    assert (row.suite, row.state) == (world.suite, RunState.FINISHED)
    hybrid = world.suite == 2
    assert {record.suite for record in world.store.records.list(run_id)} == {world.suite}
    for number in (1, 2):
        found = world.store.aggregations.newest(run_id, number, 0).descriptor.descriptor
        assert (found.version, found.suite) == (world.suite, world.suite)
        sent = world.store.tasks.of_round(run_id, number)
        assert [row.task.invited for row in sent] == ([NAMES] if hybrid else [])
        assert found.task_sha256 == (sent[0].task.sha256 if hybrid else b"")
        assert found.families == (families_of(world.driver.plan) if hybrid else ())
        assert found.digest_id == (SHA256 if hybrid else 0)


def test_a_silo_that_is_known_to_be_too_old_is_named(world):
    world.context.liveness.runs(NAMES[1], OLD)
    start = world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")

    async def started():
        return await start

    if world.suite == 1:
        assert asyncio.run(started())
        return
    with pytest.raises(VersionMismatchError) as caught:
        asyncio.run(started())
    for part in (NAMES[1], str(OLD), "--suite v1", "upgrade"):
        assert part in str(caught.value)
    assert NAMES[0] not in str(caught.value)
    assert not world.store.runs.list()


def test_who_is_not_of_the_roster_or_has_not_called_keeps_no_run_back(world):
    world.context.liveness.runs("silo-099", OLD)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_a_token_starts_a_run_of_one_suite(world):
    asyncio.run(world.run(sw.plan_toml()))
    other = 3 - world.suite
    with pytest.raises(SubmitTokenError, match=f"suite v{world.suite}"):
        asyncio.run(world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t", suite=other))
    with pytest.raises(RunError, match="no suite 3"):
        asyncio.run(world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "u", suite=3))
