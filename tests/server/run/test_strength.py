"""How many silos a run can lose still; time is simulated."""

import asyncio
from types import SimpleNamespace

import pytest

from server.figures import STEPS, Phase
from server.run.strength import Strength, strength
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import status_page_samples as samples
from tests.kit.server import world as sw

NAMES = silo_names(5)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def watched(world, act=lambda: None):
    """The first strength of each phase of each round, after ``act``."""
    seen = {}

    def before_wait():
        act()
        current = world.driver.current
        now = strength(world.driver, world.context.liveness.alive)
        seen.setdefault((current.round, current.phase), now)

    world.before_wait = before_wait
    return seen


def plan(**settings):
    return sw.plan_toml(mode="silo", noise=0.01, quorum=4, **settings)


def test_a_round_needs_its_quorum_and_then_its_sums_threshold(world):
    seen = watched(world)
    asyncio.run(world.run(plan(rounds=1)))
    assert seen[1, Phase.TRAINING] == Strength(live=5, needed=4)
    assert {seen[1, step] for step in STEPS if (1, step) in seen} == {Strength(live=5, needed=4)}
    assert seen[1, Phase.TRAINING].spare == 1


def test_until_survivors_are_declared_a_sum_needs_n_min_and_then_t():
    driver = samples.Driven(
        row=None,
        current=SimpleNamespace(phase=None),
        attempt=samples.sum_of(samples.SILOS, threshold=3, n_min=4),
    )
    needed = []
    for driver.current.phase in STEPS:
        needed.append(strength(driver, lambda silo_id: silo_id != samples.SILOS[0]))
    assert needed == [Strength(live=4, needed=n) for n in (4, 4, 4, 3, 3)]


def test_who_refused_for_good_is_not_counted_and_who_sits_out_is(world):
    def refuse():
        cohorts = world.driver.cohorts
        if world.driver.current.phase is Phase.TRAINING and world.driver.current.round == 2:
            cohorts.refuse(NAMES[0], place=world.driver.next_place, reason="policy")

    seen = watched(world, refuse)
    world.silos[NAMES[4]].share_keys = lambda *_: None
    text = plan(rounds=2).replace(b"[rounds]\n", b"[rounds]\nsit_out_after = 1\n")
    asyncio.run(world.run(text))
    assert seen[1, Phase.MASKED_INPUT] == Strength(live=4, needed=4)
    assert NAMES[4] in world.driver.cohorts.sitting_out
    assert seen[2, Phase.TRAINING] == Strength(live=4, needed=4)
