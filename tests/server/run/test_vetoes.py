"""Silos' guards veto an adapter: the run pauses and proposes, and an admin decides."""

import asyncio
import math

import pytest

from dp.noise.estimate import Estimate
from federation.chain.record import verify_chain
from secagg.suite import verification_key
from server.cli.watch import Panel
from server.conductor.rollback import request_rollback
from server.conductor.scrape import Scrape
from server.conductor.status import watch_response
from server.figures import RoundFigures
from server.run.vetoes import stops
from server.states import RunState
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, silo_names
from tests.kit.server import world as sw
from tests.kit.server.server_runs import details, one_at_a_time, settled

NAMES = silo_names(4)
NOISY = {"mode": "silo", "noise": 0.05, "vetoes": ""}


@pytest.fixture
def world(tmp_path, monkeypatch):
    with one_at_a_time(tmp_path, monkeypatch, silos=len(NAMES)) as made:
        yield made


def refuse(world, round_number, *, by=NAMES):
    """These silos' guards refuse what a round released."""

    def look():
        records = world.store.records.list(world.driver.row.run_id)
        for record in records:
            if record.round == round_number:
                for name in by:
                    world.silos[name].vetoes |= {record.adapter_sha256}

    world.before_wait = look


async def begun(world, **plan):
    settings = {**NOISY, "rounds": 6, **plan}
    run_id = await world.conductor.start_run(sw.plan_toml(**settings), sw.INITIAL, "t")
    await settled(world)
    return run_id


def figures(world, run_id):
    return [RoundFigures.from_json(row.figures_json) for row in world.store.rounds.finished(run_id)]


def paused_by_vetoes(world):
    Scrape(
        context=world.context, trust=None, data_dir=world.directory, shown=lambda: world.driver
    )._runs()
    return world.value("chorale_runs_vetoed")


def go_back(world, run_id, to_round):
    request_rollback(
        world.store,
        world.audit,
        run_id=run_id,
        to_round=to_round,
        submit_token=f"back-{to_round}",
        admin="ada",
        clock=world.clock,
    )


def test_the_run_pauses_proposes_and_goes_back_when_an_admin_says_so(world):
    refuse(world, 2)

    async def scenario():
        run_id = await begun(world)
        row = world.store.runs.get(run_id)
        assert row.state is RunState.PAUSED
        assert f"chorale adapter rollback {run_id} --to-round 1," in row.error
        assert "veto the adapter of round 2" in row.error
        assert paused_by_vetoes(world) == 1
        # Round 3 said so, and is closed as any other.
        assert [one.round for one in figures(world, run_id)] == [1, 2, 3]

        # It outlives a restart, and nothing goes back by itself.
        world.store.close()
        world._boot()
        world.conductor.resume()
        await settled(world)
        assert world.store.runs.get(run_id).error == row.error
        assert paused_by_vetoes(world) == 1
        go_back(world, run_id, 1)
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    records = world.store.records.list(run_id)
    verify_chain(records, verification_key(COORDINATOR_KEY))
    assert [record.kind for record in records] == ["initial", *3 * ["aggregated"], "rollback"] + (
        2 * ["aggregated"]
    )
    assert records[4].adapter_sha256 == records[1].adapter_sha256
    row = world.store.runs.get(run_id)
    assert (row.state, row.error) == (RunState.FINISHED, "")
    assert paused_by_vetoes(world) == 0
    told = [one.vetoes for one in figures(world, run_id)]
    assert told[2] == pytest.approx(1.0, abs=0.3)
    assert math.isnan(told[3])
    assert all(abs(each) < 0.3 for each in (*told[:2], *told[4:]))
    assert details(world, "run_pausing") == [{"run": run_id}]


def test_who_vetoes_is_in_no_figure_and_fewer_than_the_share_pause_nothing(world):
    refuse(world, 1, by=NAMES[:1])
    run_id = asyncio.run(begun(world, rounds=3))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    found = figures(world, run_id)[1]
    assert found.vetoes == pytest.approx(0.25, abs=0.3)
    assert 0.01 < found.vetoes_error < 0.1


def test_an_admin_may_go_on_and_the_next_round_asks_again(world):
    async def scenario():
        refuse(world, 1)
        run_id = await begun(world, rounds=4)
        refuse(world, 2)
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    row = world.store.runs.get(run_id)
    assert row.state is RunState.PAUSED
    assert "veto the adapter of round 2" in row.error
    assert "--to-round 1," in row.error


def test_what_was_brought_back_is_refused_as_well_and_the_initial_one_is_the_end(world):
    async def scenario():
        refuse(world, 1)
        run_id = await begun(world)
        assert "--to-round 0," in world.store.runs.get(run_id).error
        go_back(world, run_id, 0)
        refuse(world, 0)
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(scenario())
    row = world.store.runs.get(run_id)
    assert row.state is RunState.PAUSED
    assert "veto the adapter of round 0" in row.error
    assert f"chorale run abort {run_id}, for it is the one that the run began with" in row.error


def test_the_last_round_pauses_nothing(world):
    refuse(world, 2)
    run_id = asyncio.run(begun(world, rounds=3))
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_groups_are_asked_together(tmp_path, monkeypatch):
    with one_at_a_time(tmp_path, monkeypatch, silos=9) as world:
        refuse(world, 1, by=silo_names(9)[:6])
        toml = sw.plan_toml(**NOISY, rounds=4).replace(
            b"[privacy]", b"[aggregation.groups]\ncount = 3\n[privacy]"
        )

        async def scenario():
            run_id = await world.conductor.start_run(toml, sw.INITIAL, "t")
            await settled(world)
            return run_id

        run_id = asyncio.run(scenario())
        assert world.store.runs.get(run_id).state is RunState.PAUSED
        found = figures(world, run_id)[-1]
        assert found.vetoes == pytest.approx(6 / 9, abs=0.3)
        assert 0.01 < found.vetoes_error < 0.1


@pytest.mark.parametrize(
    ("vetoes", "error", "stopped"),
    [(0.5, 0.16, True), (0.49, 0.1, False), (0.5, 0.17, False), (math.nan, math.nan, False)],
)
def test_the_share_and_the_noise_both_have_a_say(vetoes, error, stopped):
    plan = sw.parsed(sw.plan_toml(**NOISY, rounds=4))
    found = RoundFigures(round=3, vetoes=vetoes, vetoes_error=error)
    assert stops(found, plan) is stopped
    assert not stops(found, sw.parsed(sw.plan_toml(mode="silo", noise=0.05, rounds=4)))


def test_whoever_watches_reads_the_share_and_the_proposal(world, capsys):
    refuse(world, 1)

    async def scenario():
        run_id = await begun(world)
        return watch_response(
            row=world.store.runs.get(run_id),
            driver=None,
            finished=figures(world, run_id),
            context=world.context,
        )

    status = asyncio.run(scenario())
    with Panel(live=False) as panel:
        panel.show(status)
    silent = capsys.readouterr().err
    with Panel(live=True) as panel:
        panel.show(status)
    told = " ".join(capsys.readouterr().err.split())
    assert not silent
    assert "paused: " in told
    assert "--to-round 0" in told
    assert f"vetoes {min(1.0, status.finished[1].vetoes):.0%} ± " in told
    # Nobody vetoes in the first round, and what its noise alone says is told where it can be read.
    first = status.finished[0]
    estimate = Estimate(first.vetoes, first.vetoes_standard_error)
    readable = estimate.reportable > 0.0
    assert ("vetoes" in told.split("round 2/6")[0]) == readable
