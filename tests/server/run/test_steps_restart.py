"""A coordinator that stops anywhere in a round of several releases goes on in the same step.

A power cut is no failure here. A failure is: a sum that is not exact, a step that is lost or done
twice, a second exploration in a round, and an optimiser whose state is not that of the chain.
"""

import asyncio

import numpy as np
import pytest

from server.conductor import storage_faults
from server.figures import STEPS, Phase
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from tests.kit.server import world as sw
from tests.kit.server.cuts import Cut, require_clean
from tests.kit.server.step_checks import places, require_sums, tasks
from tests.kit.server.storage_faults import Fault

SHARDS = 12
"""The instants are dealt out to as many tests, which may run side by side."""
CLOSING = 12
"""Instants of step 0 that belong to its closing."""
PLAN = sw.stepped_toml(rounds=1, steps=2)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=3) as made:
        yield made


def require_whole_round(world, run_id, steps=2):
    """Every step had one attempt, its task went out once, and nobody noticed more than a pause."""
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    records = require_sums(world, run_id)
    assert places(records) == [(0, 0), *((1, step) for step in range(steps))]
    rows = world.store.aggregations.list(run_id)
    assert [(row.identity.step, row.identity.attempt) for row in rows] == [
        (step, 1) for step in range(steps)
    ]
    assert {row.outcome for row in rows} == {AggregationOutcome.RELEASED}
    for silo in world.silos.values():
        assert set(tasks(silo)) == {(1, 0)}
        assert len(silo.agreed) == steps
        assert silo.aborted == 0
    assert world.store.rounds.charged(run_id)[:2] == (steps, 1)
    require_clean(world)


def commits_of_later_steps(directory, monkeypatch):
    """Instants around each commit, from the last of step 0 on; what is before is in any round."""
    with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
        cut = Cut(patch, world)
        require_whole_round(world, asyncio.run(world.run_over_power_cuts(PLAN, cuts=0)))
        first = cut.steps.index(1) - CLOSING
        instants = enumerate(cut.seen, start=1)
        return [at for at, name in instants if "commit" in name and at > first]


@pytest.mark.parametrize(
    "shard", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, SHARDS))]
)
def test_the_power_may_go_at_every_commit_of_a_round(tmp_path_factory, monkeypatch, shard):
    commits = commits_of_later_steps(tmp_path_factory.mktemp("whole"), monkeypatch)
    assert len(commits) > 50
    for at in commits[shard::SHARDS]:
        directory = tmp_path_factory.mktemp("cut")
        with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
            cut = Cut(patch, world, at)
            run_id = asyncio.run(world.run_over_power_cuts(PLAN))
            assert cut.count >= at
            require_whole_round(world, run_id)


def cut_in(world, *instants):
    """Cut the power when the coordinator waits at each of these (step, phase), once each."""
    left = list(instants)

    def before_wait():
        current = world.driver.current
        if left and (current.step, current.phase) == left[0]:
            left.pop(0)
            raise sw.PowerCut

    world.before_wait = before_wait
    return left


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_optimiser_is_rebuilt_from_the_stored_sums(world, optimiser):
    """A restart in each step but the first: every earlier sum of the round counts again."""
    plan = sw.stepped_toml(rounds=2, steps=3, optimiser=optimiser)
    left = cut_in(world, (1, Phase.MASKED_INPUT), (2, Phase.UNMASK))
    run_id = asyncio.run(world.run_over_power_cuts(plan, cuts=2))
    assert left == []
    # ``require_chain`` recomputes each adapter as a silo does that followed from the start.
    records = require_sums(world, run_id)
    assert [record.kind for record in records[1:]] == ["aggregated"] * 6
    assert world.value("chorale_attempts_resumed_total") == 1


def test_what_is_rebuilt_matters(world, monkeypatch):
    """The test above can fail: an optimiser that begins anew after a restart makes another move."""
    from server.run import optimiser as server_optimiser

    def begin_anew(optimiser, *, releases, round_number, **_):
        for record, _ in releases:
            optimiser.skip(round_number=round_number, step=record.step)

    monkeypatch.setattr(server_optimiser, "replay", begin_anew)
    cut_in(world, (1, Phase.MASKED_INPUT))
    run_id = asyncio.run(world.run_over_power_cuts(sw.stepped_toml(rounds=1, steps=3)))
    with pytest.raises(Exception, match=r"recomputed|follow"):
        require_sums(world, run_id)


CROSSING = ["fedavgm", "fedadagrad", "fedyogi", "fedadam"]


@pytest.mark.parametrize("optimiser", CROSSING)
def test_moments_of_deltas_are_rebuilt_from_the_sums_of_the_run(world, optimiser):
    """A restart in the second and in the third round; noise, so that its variance is taken off."""
    plan = sw.plan_toml(rounds=3, mode="silo", noise=0.05, optimiser=optimiser)
    left = []

    def before_wait():
        current = world.driver.current
        if left and (current.round, current.phase) == left[0]:
            left.pop(0)
            raise sw.PowerCut

    left += [(2, Phase.MASKED_INPUT), (3, Phase.UNMASK)]
    world.before_wait = before_wait
    run_id = asyncio.run(world.run_over_power_cuts(plan, cuts=2))
    assert left == []
    # ``require_chain`` recomputes each adapter as a silo does that followed from the start.
    records = require_sums(world, run_id)
    assert [record.kind for record in records[1:]] == ["aggregated"] * 3
    assert places(records) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_moments_of_the_run_matter_after_a_restart(world, monkeypatch):
    """The test above can fail: momentum that begins anew makes another move."""
    from server.run import optimiser as server_optimiser

    def begin_anew(optimiser, *, releases, **_):
        for record, _ in releases:
            optimiser.skip(round_number=record.round, step=record.step)

    monkeypatch.setattr(server_optimiser, "replay", begin_anew)
    cut = []

    def before_wait():
        if not cut and world.driver.current.round == 2:
            cut.append(True)
            raise sw.PowerCut

    world.before_wait = before_wait
    plan = sw.plan_toml(rounds=2, optimiser="fedavgm")
    run_id = asyncio.run(world.run_over_power_cuts(plan, cuts=1))
    with pytest.raises(Exception, match=r"recomputed|follow"):
        require_sums(world, run_id)


@pytest.mark.parametrize("phase", STEPS)
def test_the_same_attempt_goes_on_whichever_phase_of_a_later_step_it_was_in(world, phase):
    left = cut_in(world, (1, phase))
    run_id = asyncio.run(world.run_over_power_cuts(PLAN))
    assert left == []
    require_whole_round(world, run_id)


@pytest.mark.parametrize("phase", STEPS)
def test_after_a_long_outage_the_step_is_keyed_anew_or_skipped(world, phase):
    left = cut_in(world, (1, phase))
    run_id = asyncio.run(world.run_over_power_cuts(sw.stepped_toml(rounds=1, steps=3), down_s=3600))
    assert left == []
    records = require_sums(world, run_id)
    rows = [row for row in world.store.aggregations.list(run_id) if row.identity.step == 1]
    if phase in STEPS[:3]:
        assert [row.outcome for row in rows] == ["aborted", "released"]
        # The second attempt is gathered with a task, as any retry.
        assert (1, 1) in tasks(next(iter(world.silos.values())))
    else:
        assert [row.outcome for row in rows] == ["skipped"]
        assert records[2].kind == "skipped"
    assert records[3].kind == "aggregated"
    require_clean(world)


def test_a_step_whose_closing_answer_was_lost_is_followed_by_the_next_one(world, monkeypatch):
    """The commit is made and the process dies: the restart opens the next step without a task."""
    real, cut = type(world.store.rounds).finish, []

    def finish(rounds, place, outcome, figures_json):
        real(rounds, place, outcome, figures_json)
        if place.step == 0 and not cut:
            cut.append(place)

    monkeypatch.setattr(type(world.store.rounds), "finish", finish)
    transaction = type(world.store).transaction

    class Committed:
        def __init__(self, inner):
            self.inner = inner

        def __enter__(self):
            return self.inner.__enter__()

        def __exit__(self, *error):
            done = self.inner.__exit__(*error)
            if len(cut) == 1:
                cut.append("dead")
                raise sw.PowerCut
            return done

    monkeypatch.setattr(
        type(world.store), "transaction", lambda store: Committed(transaction(store))
    )
    run_id = asyncio.run(world.run_over_power_cuts(PLAN))
    assert cut[-1] == "dead"
    require_whole_round(world, run_id)
    assert np.isfinite(world.value("chorale_dp_epsilon_spent"))


@pytest.mark.parametrize("committed", [False, True])
def test_any_commit_between_two_steps_may_fail(tmp_path_factory, monkeypatch, committed):
    """The closing of step 0 and the opening of step 1, which no task comes between."""
    monkeypatch.setattr(storage_faults, "FIRST_PAUSE_S", 0.0)
    before = commits_before_step_1(tmp_path_factory.mktemp("whole"), monkeypatch)
    for at in range(before - 3, before + 5):
        directory = tmp_path_factory.mktemp("fault")
        with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
            fault = Fault(patch, world, at, committed=committed)
            run_id = asyncio.run(world.run_over_power_cuts(PLAN, cuts=0))
            assert fault.count > at
            records = require_sums(world, run_id)
            assert places(records) == [(0, 0), (1, 0), (1, 1)]
            assert {record.kind for record in records[1:]} == {"aggregated"}
            released = world.store.aggregations.released(run_id, 1)
            assert [row.identity.step for row in released] == [0, 1]
            assert world.store.rounds.charged(run_id)[:2] == (2, 1)
            # Only an opening whose answer was lost is followed by another attempt.
            assert len(world.store.aggregations.list(run_id)) - 2 in ((0, 1) if committed else (0,))


def commits_before_step_1(directory, monkeypatch):
    with sw.World(directory, silos=3) as world, monkeypatch.context() as patch:
        fault, at = Fault(patch, world, 0, committed=False), []

        def before_wait():
            if world.driver.current.step == 1 and not at:
                at.append(fault.count)

        world.before_wait = before_wait
        asyncio.run(world.run_over_power_cuts(PLAN, cuts=0))
        return at[0]
