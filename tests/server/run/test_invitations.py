"""Tasks of suite v2: whom they invite, and that a restart sends the same one; time is simulated."""

import asyncio

import pytest

from federation.chain.task import RoundTask
from server.errors import WrongRoundError
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


def tasks_of(silo, round_number):
    return [m for m in silo.told if isinstance(m, RoundTask) and m.round == round_number]


def test_a_retry_has_another_task_that_invites_nobody_else(world):
    for name in NAMES[2:]:
        world.silos[name].die_at = ("upload", 1)

    def before_wait():
        if "round_stalled" in world.events():
            world.silos[NAMES[2]].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(mode="silo", noise=1.0)))
    sent = tasks_of(world.silos[NAMES[0]], 1)
    assert len({task.sha256 for task in sent}) > 1
    assert {task.invited for task in sent} == {NAMES}
    released = world.store.aggregations.released(run_id, 1)[0].descriptor.descriptor
    assert released.task_sha256 == sent[-1].sha256


def test_who_is_kept_out_is_told_that_it_is_not_invited_and_waits(world):
    lost = world.silos[NAMES[3]]
    lost.die_at = ("upload", 1)

    def before_wait():
        if lost.dead and world.driver.head.round == 1:
            lost.come_back()

    world.before_wait = before_wait
    asyncio.run(world.run(sw.plan_toml(rounds=2)))
    (told,) = tasks_of(lost, 2)
    assert told.invited == NAMES[:3]
    assert world.driver.head.survivors == NAMES[:3]


def test_a_silo_that_is_kept_out_has_no_say(world):
    lost = world.silos[NAMES[3]]
    lost.die_at = ("upload", 1)

    def before_wait():
        training = world.driver.training
        if training is not None and training.task.round == 2:
            with pytest.raises(WrongRoundError, match="may take no part"):
                world.driver.cohorts.refuse(
                    NAMES[3], place=world.driver.next_place, reason="the site's policy"
                )
            seen.append(True)

    seen: list[bool] = []
    world.before_wait = before_wait
    asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert seen


def test_a_coordinator_that_restarts_in_training_sends_the_same_task(world):
    late = world.silos[NAMES[3]]
    late.dead = True

    def before_wait():
        training = world.driver.training
        if training is not None and len(training.ready) == 3 and not late.told:
            late.dead = False
            world.context.liveness.touch(NAMES[3])
            raise sw.PowerCut

    world.before_wait = before_wait
    # A silo that is there and says nothing yet keeps the others waiting.
    world.context.liveness.touch(NAMES[3])
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), down_s=5))
    sent = tasks_of(world.silos[NAMES[0]], 1)
    assert len(sent) == 2
    assert sent[0] == sent[1]
    found = world.store.aggregations.newest(run_id, 1, 0).descriptor.descriptor
    assert found.task_sha256 == sent[0].sha256
    assert world.driver.head.survivors == NAMES
