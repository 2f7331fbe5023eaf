"""A silo that deals or sends what fails a check is named, though the sum is right.

A failure: an attempt goes on as if nothing had been, or what is said holds more than names.
"""

import asyncio
import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from secagg import hybrid, suite
from server.states import RunState
from tests.kit.secagg.secagg_samples import signing_key, silo_names
from tests.kit.server import world as sw

NAMES = silo_names(5)
PLACE = {"round": 1, "step": 0, "part": 0, "attempt": 1}


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def at_fault(world):
    lines = [json.loads(line) for line in world.audit.tail(1000)]
    return [line["details"] for line in lines if line["event"] == "silos_at_fault"]


def run(world):
    with capture_logs() as logs:
        run_id = asyncio.run(world.run(sw.plan_toml(rounds=1)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    said = [line["names"] for line in logs if line["event"] == "silos_at_fault"]
    return {"run": run_id, **PLACE}, said


def test_who_sends_another_share_than_it_was_dealt_is_named(world):
    liar = world.silos[NAMES[2]]
    honest = liar.unmask

    def unmask(identity, shares):
        first, *rest = shares.self_seed_shares
        altered = replace(first, share=bytes(len(first.share)))
        lying = replace(shares, self_seed_shares=(altered, *rest))
        state = world.driver.active_attempt()._state
        signed = lying.signed_bytes(state._members.ctx, state._survivors_sha256)
        honest(identity, replace(lying, signature=suite.sign(signing_key(NAMES[2]), signed)))

    liar.unmask = unmask
    here, said = run(world)
    assert at_fault(world) == [here | {"rejected_senders": NAMES[2]}]
    assert said == [[f"rejected_senders: {NAMES[2]}"]]


def test_a_lost_dealer_of_another_pair_secret_is_named(world, monkeypatch):
    real = hybrid.pair_secret
    dealer = NAMES[0]

    def another(seed, ctx, low, high):
        secret = real(seed, ctx, low, high)
        dealing = world.driver.active_attempt().phase.value == "share_keys"
        return secret[::-1] if dealing and (low, high) == (dealer, NAMES[3]) else secret

    monkeypatch.setattr(hybrid, "pair_secret", another)
    world.silos[dealer].die_at = ("upload", 1)
    here, said = run(world)
    assert at_fault(world) == [here | {"bad_pair_dealers": dealer}]
    assert said == [[f"bad_pair_dealers: {dealer}"]]


def test_of_honest_silos_nothing_is_said(world):
    world.silos[NAMES[0]].die_at = ("upload", 1)
    assert run(world)[1] == at_fault(world) == []
