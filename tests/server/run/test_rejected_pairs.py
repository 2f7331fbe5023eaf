"""A silo that rejects another's pair secret: one of the two is in no later attempt of the run.

The attack is a silo that accuses one honest silo after another, to have each left out. A failure:
it stays and they go, somebody is booked as lost who answered every phase, or a sum is not that of
the silos in it.
"""

import asyncio
import json

import numpy as np
import pytest

from federation.adapter.encoding import decode_adapter
from secagg.client.hybrid_share_keys import HybridShareKeys
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(5)
FIRST, SECOND, LIAR = NAMES[0], NAMES[1], NAMES[4]
NONE, NOISE = {"mode": "none"}, {"mode": "silo", "noise": 0.01}


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def accuse(monkeypatch, one_after_another):
    """The liar rejects the first of these that deals to it."""
    real = HybridShareKeys._keep_mask

    def lying(self, masks, bundle, leaf):
        accused = next((name for name in one_after_another if name in self._bundles), None)
        if self.silo_id == LIAR and bundle.silo_id == accused:
            return False
        return real(self, masks, bundle, leaf)

    monkeypatch.setattr(HybridShareKeys, "_keep_mask", lying)


def cohorts(world, run_id):
    rows = world.store.aggregations.list(run_id)
    return [tuple(row.descriptor.descriptor.cohort) for row in rows]


def without(*silo_ids):
    return tuple(name for name in NAMES if name not in silo_ids)


def test_the_next_attempt_is_made_without_the_accused_and_its_sum_is_exact(world, monkeypatch):
    accuse(monkeypatch, (FIRST,))
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1, **NONE)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert cohorts(world, run_id) == [NAMES, without(FIRST)]
    assert world.driver.head.survivors == without(FIRST)
    content = world.context.blobs.get(world.driver.head.adapter_sha256)
    written = decode_adapter(content, max_bytes=1 << 20)
    for name, expected in sw.expected_adapter(without(FIRST)).items():
        np.testing.assert_array_equal(written[name], expected)


@pytest.mark.parametrize("settings", [NONE, NOISE])
def test_who_accuses_a_second_silo_goes_itself_and_both_come_back(world, monkeypatch, settings):
    accuse(monkeypatch, (FIRST, SECOND))
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1, **settings)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert cohorts(world, run_id) == [NAMES, without(FIRST), without(LIAR)]


def test_a_run_remembers_an_accusation_over_its_rounds(world, monkeypatch):
    named = []
    accuse(monkeypatch, named)

    def before_wait():
        named[:] = (FIRST,) if world.driver.current.round == 1 else (SECOND,)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2, **NOISE)))
    assert cohorts(world, run_id) == [NAMES, *[without(FIRST)] * 2, without(LIAR)]


def test_nobody_is_booked_as_lost_for_a_rejected_pair(world, monkeypatch):
    accuse(monkeypatch, (FIRST, SECOND))
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1, **NOISE)))
    assert world.store.dropouts.list(run_id) == ()
    assert "silo_dropped_out" not in world.events()
    told = [json.loads(line) for line in world.audit.tail(1000)]
    ended = [each for each in told if each["event"] == "attempt_aborted"]
    named = [f"{LIAR} rejects a pair secret of {accused}" for accused in (FIRST, SECOND)]
    for said, each in zip(named, ended, strict=True):
        assert said in each["details"]["reason"]
