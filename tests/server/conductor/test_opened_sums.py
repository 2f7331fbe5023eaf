"""A run's status names every sum that the coordinator could open, used or not.

A failure: the rank of ``chorale run show`` leaves out a sum that can be subtracted from another.
"""

import asyncio

import pytest

from federation.errors import UpdateError
from server.conductor.status import watch_response
from server.run import attempts
from tests.kit.server import world as sw


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def test_a_step_that_is_skipped_after_its_sum_was_unmasked_tells_of_it(world, monkeypatch):
    names = tuple(sorted(world.silos))
    real = attempts.aggregate

    def aggregate(**given):
        if given["descriptor"].identity.round == 2:
            raise UpdateError("not finite")
        return real(**given)

    monkeypatch.setattr(attempts, "aggregate", aggregate)

    def before_wait():
        if world.driver.current.round == 2:
            world.silos[names[4]].die_at = ("upload", 1)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    told = watch_response(
        row=world.store.runs.get(run_id),
        driver=None,
        finished=world.driver.finished,
        context=world.context,
    ).finished
    assert [each.outcome for each in told] == ["aggregated", "skipped"]
    opened = [[tuple(one.survivors) for one in each.opened] for each in told]
    assert opened == [[names], [names[:4]]]


def test_survivors_that_were_never_unmasked_opened_no_sum(world):
    for silo in world.silos.values():
        silo.unmask = lambda *_: None
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1)))
    told = watch_response(
        row=world.store.runs.get(run_id),
        driver=None,
        finished=world.driver.finished,
        context=world.context,
    ).finished
    assert [list(each.opened) for each in told] == [[]]
