"""A coordinator that stops anywhere goes on in the attempt that was open, with real sessions.

A power cut at any durable step is no failure here. A failure is: a sum that is not exact, a second
attempt where the first could go on, a silo that loses its session, and a second signature of R3.
"""

import asyncio

import numpy as np
import pytest

from server.attempt import accumulator
from server.figures import STEPS, Phase
from server.run import attempts as sw_attempts
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from server.store.messages import Messages
from tests.kit.server import world as sw
from tests.kit.server.cuts import Cut, cut_in, require_clean, require_one_attempt
from tests.kit.server.run_checks import require_chain, require_exact

SHARDS = 8
"""The instants are dealt out to as many tests, which may run side by side."""


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=3) as made:
        yield made


def instants(directory, monkeypatch):
    """Every instant of a whole run, by name."""
    with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
        cut = Cut(patch, world)
        require_one_attempt(world, asyncio.run(world.run_over_power_cuts(sw.plan_toml(), cuts=0)))
        return cut.seen


@pytest.mark.parametrize(
    "shard", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, SHARDS))]
)
def test_the_power_may_go_at_every_commit_and_every_write(tmp_path_factory, monkeypatch, shard):
    seen = instants(tmp_path_factory.mktemp("whole"), monkeypatch)
    # Commits, and in each fold and the release the writes between them.
    assert {"before commit", "after commit", "before fsync", "half a write"} <= set(seen)
    assert len(seen) > 90
    for at in range(1 + shard, len(seen) + 1, SHARDS):
        directory = tmp_path_factory.mktemp("cut")
        with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
            cut = Cut(patch, world, at)
            run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml()))
            assert cut.count >= at
            require_one_attempt(world, run_id)


# Phase by phase ----------------------------------------------------------------------------------


@pytest.fixture
def larger(tmp_path):
    with sw.World(tmp_path, silos=4) as made:
        yield made


@pytest.mark.parametrize("phase", [Phase.TRAINING, *STEPS])
def test_the_same_attempt_goes_on_whichever_phase_it_was_in(world, phase):
    left = cut_in(world, phase)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(rounds=2)))
    assert left == []
    require_one_attempt(world, run_id, rounds=2)
    resumed = [event for event in world.events() if event == "attempt_resumed"]
    assert len(resumed) == (phase is not Phase.TRAINING)
    assert world.value("chorale_attempts_resumed_total") == len(resumed)
    assert "run_resumed" in world.events()


def test_the_power_may_go_in_every_phase_of_one_attempt(world):
    left = cut_in(world, Phase.TRAINING, *STEPS)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), cuts=6, down_s=1.0))
    assert left == []
    require_one_attempt(world, run_id)
    figures = world.driver.finished[0]
    assert set(figures.timings_s) == {p.value for p in Phase if p is not Phase.FINISHED}
    assert figures.upload_bytes == 4 * (sw.DIMENSION + 3) * 3
    # Each restart costs its second, and no phase lost its time.
    assert all(figures.timings_s[step.value] >= 1.0 for step in STEPS)


@pytest.mark.parametrize("lost_at", ["advertise_keys", "share_keys", "upload", "unmask"])
@pytest.mark.parametrize("phase", STEPS[3:])
def test_who_was_dropped_stays_dropped_and_the_survivors_stay_the_same(larger, lost_at, phase):
    names = tuple(larger.silos)
    larger.silos[names[3]].die_at = (lost_at, 1)
    left = cut_in(larger, phase)
    run_id = asyncio.run(larger.run_over_power_cuts(sw.plan_toml()))
    assert left == []
    survivors = names if lost_at == "unmask" else names[:3]
    assert larger.driver.head.survivors == survivors
    require_exact(larger, survivors)
    (row,) = larger.store.aggregations.list(run_id)
    assert row.survivors == survivors
    step = "masked_input" if lost_at == "upload" else lost_at
    assert larger.value("chorale_secagg_dropouts_total", stage=step) == 1
    require_clean(larger)


def test_a_crash_in_aggregate_unmasks_the_same_sum_again(world, monkeypatch):
    real, calls = sw_attempts.aggregate, []

    def dies_once(**arguments):
        calls.append(arguments["total"].copy())
        if len(calls) == 1:
            raise sw.PowerCut
        return real(**arguments)

    monkeypatch.setattr(sw_attempts, "aggregate", dies_once)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml()))
    require_one_attempt(world, run_id)
    first, second = calls
    np.testing.assert_array_equal(first, second)


def test_a_silo_that_died_after_its_last_byte_is_in_the_sum(larger, monkeypatch):
    """Its spool is whole and its fold was cut off; it never comes back."""
    gone = larger.silos[tuple(larger.silos)[3]]
    real = accumulator.Accumulator.fold

    def fold(self, upload, commit):
        if upload.path.name == f"{gone.silo_id}.masked" and not gone.dead:
            gone.dead, gone._unanswered = True, None
            raise sw.PowerCut
        real(self, upload, commit)

    monkeypatch.setattr(accumulator.Accumulator, "fold", fold)
    asyncio.run(larger.run_over_power_cuts(sw.plan_toml()))
    assert larger.driver.head.survivors == tuple(larger.silos)
    require_exact(larger, tuple(larger.silos))


# What cannot go on -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", STEPS)
def test_after_a_long_outage_the_round_is_keyed_anew_or_skipped(world, phase):
    left = cut_in(world, phase)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), down_s=3600))
    assert left == []
    rows = world.store.aggregations.list(run_id)
    kinds = [record.kind for record in require_chain(world, run_id)][1:]
    if phase in STEPS[:3]:
        assert [row.outcome for row in rows] == ["aborted", "released"]
        assert kinds == ["aggregated"]
        require_exact(world, tuple(world.silos))
    else:
        assert [row.outcome for row in rows] == ["skipped"]
        assert kinds == ["skipped"]
    require_clean(world)


def test_after_a_long_outage_stored_shares_still_finish_the_round(world, monkeypatch):
    """All of R4 is in: nobody is waited for, however late it is."""
    real, cut = sw.Silo.unmask, []

    def unmask(silo, identity, shares):
        real(silo, identity, shares)
        if not cut and not world.driver.waiting_for:
            cut.append(world.driver.current.phase)
            world.crashed = True

    monkeypatch.setattr(sw.Silo, "unmask", unmask)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), down_s=86_400))
    assert cut == [Phase.UNMASK]
    require_one_attempt(world, run_id)


@pytest.mark.parametrize("phase", STEPS)
def test_a_lost_scratch_directory_costs_the_attempt_and_never_a_wrong_sum(world, phase):
    left = cut_in(world, phase, when=lambda: phase is not STEPS[2] or folded(world))
    boot = world._boot

    def without_scratch():
        for path in sorted((world.directory / "scratch").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        boot()

    world._boot = without_scratch
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml()))
    assert left == []
    outcomes = [row.outcome for row in world.store.aggregations.list(run_id)]
    kinds = [record.kind for record in require_chain(world, run_id)][1:]
    if phase in STEPS[:2]:
        assert outcomes == ["released"]
    elif phase is STEPS[2]:
        assert outcomes == ["aborted", "released"]
    else:
        assert outcomes == ["skipped"]
    assert kinds == (["skipped"] if phase in STEPS[3:] else ["aggregated"])
    if phase not in STEPS[3:]:
        require_exact(world, tuple(world.silos))
    require_clean(world)


def folded(world):
    """Somebody's upload is in the sum; the others are held back for a moment."""
    rows = world.store.aggregations.unfinished()
    done = bool(rows) and bool(rows[-1].folded)
    for silo in list(world.silos.values())[1:]:
        silo.dead = not done
    return done


def test_what_a_stopped_run_left_is_ended_and_forgotten(world):
    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        with pytest.raises(sw.PowerCut):
            await world.ended()
        world._boot()
        world.conductor.resume()
        await world.conductor.abort_run(run_id)
        return run_id

    cut_in(world, Phase.UNMASK)
    run_id = asyncio.run(scenario())
    assert world.store.runs.get(run_id).state is RunState.ABORTED
    (row,) = world.store.aggregations.list(run_id)
    assert row.outcome is AggregationOutcome.SKIPPED
    require_clean(world)


def test_a_run_that_fails_keeps_nothing_of_its_attempt(world, monkeypatch):
    def broken(**_):
        raise ZeroDivisionError

    monkeypatch.setattr(sw_attempts, "aggregate", broken)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert world.store.runs.get(run_id).state is RunState.FAILED
    (row,) = world.store.aggregations.list(run_id)
    assert row.outcome is AggregationOutcome.SKIPPED
    assert world.driver.attempt is None
    require_clean(world)


def test_shares_and_boxes_are_not_left_in_the_database_file(world, monkeypatch):
    secrets = []
    real = sw.Silo.unmask

    def unmask(silo, identity, shares):
        secrets.extend(share.share for share in shares.self_seed_shares)
        real(silo, identity, shares)

    monkeypatch.setattr(sw.Silo, "unmask", unmask)
    while_open = []
    forget = Messages.forget_secrets

    def forgetting(messages, identity):
        while_open.append(in_files(world, secrets))
        forget(messages, identity)

    monkeypatch.setattr(Messages, "forget_secrets", forgetting)
    asyncio.run(world.run(sw.plan_toml()))
    assert len(secrets) == 9
    # Stored they were, or a restart could not have finished the round.
    assert while_open == [9]
    assert in_files(world, secrets) == 0


def in_files(world, secrets):
    content = b"".join(path.read_bytes() for path in world.directory.glob("coordinator.db*"))
    return sum(secret in content for secret in secrets)
