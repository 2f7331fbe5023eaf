"""No round waits for a silo that may take no part; time is simulated, the protocol is real."""

import asyncio

import numpy as np
import pytest

from federation.adapter.encoding import decode_adapter
from server.context import Liveness
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)
BARRED = NAMES[3]
STEPS = ("advertise_keys", "share_keys", "upload", "check_consistency", "unmask")


def run(world, plan=None):
    """Run to the end; returns the survivors of each round and how long it took."""
    started = world.clock.now
    run_id = asyncio.run(world.run(plan or sw.plan_toml(rounds=1)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    records = world.store.records.list(run_id)[1:]
    return [record.survivors for record in records], world.clock.now - started


def require_exact(world, survivors):
    content = world.context.blobs.get(world.driver.head.adapter_sha256)
    found = decode_adapter(content, max_bytes=1 << 20)
    for name, expected in sw.expected_adapter(survivors, 1).items():
        np.testing.assert_array_equal(found[name], expected)


def test_a_barred_silo_that_goes_on_calling_is_in_no_cohort(world):
    world.context.liveness.bar(BARRED, barred=True)
    survivors, took_s = run(world)
    assert survivors == [NAMES[:3]]
    # Not one deadline was waited for.
    assert took_s < 5
    require_exact(world, NAMES[:3])
    assert all(row.descriptor.descriptor.cohort == NAMES[:3] for row in aggregations(world))


def aggregations(world):
    return world.store.aggregations.list(world.driver.row.run_id)


def test_a_silo_that_is_barred_after_it_said_ready_is_in_no_cohort(world):
    slow = world.silos[NAMES[0]]
    slow.dead = True

    def before_wait():
        driver = world.conductor.driver
        training = None if driver is None else driver.training
        if training is not None and BARRED in training.ready:
            world.context.liveness.bar(BARRED, barred=True)
            slow.dead = False

    world.before_wait = before_wait
    survivors, took_s = run(world)
    assert survivors == [NAMES[:3]]
    assert took_s < 5
    require_exact(world, NAMES[:3])


@pytest.mark.parametrize("step", STEPS)
def test_a_silo_that_is_barred_in_the_middle_is_not_waited_for(world, step):
    """Its next call is refused, so it is as dead as it was with that call."""
    silo = world.silos[BARRED]
    silo.die_at = (step, 1)

    def before_wait():
        if silo.dead:
            world.context.liveness.bar(BARRED, barred=True)

    world.before_wait = before_wait
    survivors, took_s = run(world)
    assert len(survivors) == 1
    assert took_s < 5
    # Who had uploaded is in the sum, as with any other loss.
    expected = NAMES if step in {"check_consistency", "unmask"} else NAMES[:3]
    assert survivors == [expected]
    require_exact(world, expected)


def test_without_the_bar_the_same_loss_costs_a_deadline(world):
    world.silos[BARRED].die_at = ("share_keys", 1)
    _, took_s = run(world)
    assert took_s > 5


def test_a_silo_that_is_let_in_again_is_in_the_next_round(world):
    world.context.liveness.bar(BARRED, barred=True)

    def before_wait():
        driver = world.conductor.driver
        if driver is not None and driver.head.round == 1:
            world.context.liveness.bar(BARRED, barred=False)

    world.before_wait = before_wait
    survivors, _ = run(world, sw.plan_toml(rounds=2, mode="silo", noise=1.0))
    assert survivors == [NAMES[:3], NAMES]


def test_a_bar_is_about_one_silo_and_ends():
    liveness = Liveness(lambda: 100.0)
    liveness.touch("a")
    liveness.bar("a", barred=True)
    assert liveness.barred("a")
    assert not liveness.alive("a")
    assert liveness.alive("b")
    liveness.bar("a", barred=False)
    liveness.bar("a", barred=False)
    assert liveness.alive("a")
