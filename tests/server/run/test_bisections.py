"""A round in two halves: who is suspected is split until one silo is left; nothing is adopted."""

import asyncio

import numpy as np
import pytest

from federation.chain.groups import halves_of
from server.conductor.bisection import halves_so_far, request_bisection
from server.conductor.rollback import request_rollback
from server.errors import BisectionError, RollbackError, SubmitTokenError
from server.figures import HalfVerdict
from server.states import RunState
from server.store.aggregations import AggregationOutcome
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain
from tests.kit.server.server_runs import details, settled

NAMES = silo_names(7)
LOUD = np.full(sw.DIMENSION + 3, 2**28, dtype=np.uint32)
GROSS, POSSIBLE, LOST = HalfVerdict.GROSS, HalfVerdict.POSSIBLE, HalfVerdict.LOST


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Halves of three and four: c = 1, so that none of three can be lost."""

    async def at_once(work, *arguments, **named):
        return work(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    with sw.World(tmp_path, silos=7) as made:
        yield made


def plan(**settings):
    return sw.plan_toml(**{"mode": "silo", "noise": 0.001, "rounds": 6} | settings)


async def paused(world, toml=None):
    run_id = await world.conductor.start_run(plan() if toml is None else toml, sw.INITIAL, "t")
    await world.conductor.pause_run(run_id)
    return run_id


def ask(world, run_id, *named, token="token"):
    return request_bisection(
        world.store,
        world.audit,
        run_id=run_id,
        named=named,
        submit_token=token,
        admin="ada",
        clock=world.clock,
    )


async def resumed(world, run_id):
    await world.conductor.resume_run(run_id)
    await settled(world)


def halves_at(world, run_id, round_number, suspects):
    return halves_of(
        world.silos,
        suspects,
        run_id=run_id,
        round_number=round_number,
        roster_sha256=world.roster.roster.sha256,
    )


@pytest.mark.parametrize("loud", [NAMES[0], NAMES[5]])
def test_who_ruins_sums_is_found_and_nothing_of_the_halves_is_adopted(world, loud):
    world.silos[loud].poison = LOUD

    async def main():
        run_id = await paused(world)
        suspects, rounds = NAMES, 0
        while len(suspects) > 1:
            rounds += 1
            asked = ask(world, run_id, token=f"token-{rounds}")
            assert (asked.suspects, asked.round) == (suspects, None)
            await resumed(world, run_id)
            assert world.store.runs.get(run_id).state is RunState.PAUSED
            halves = halves_so_far(world.store, run_id, rounds)
            drawn = halves_at(world, run_id, rounds, suspects)
            assert tuple(half.survivors for half in halves) == drawn
            assert [half.verdict for half in halves] == [
                GROSS if loud in half else POSSIBLE for half in drawn
            ]
            (suspects,) = (half.suspects for half in halves if half.verdict is GROSS)
        assert suspects == (loud,)
        with pytest.raises(BisectionError, match=f"^{loud} is left to be split"):
            ask(world, run_id, token="last")
        return run_id, rounds

    run_id, rounds = asyncio.run(main())
    assert rounds in {2, 3}
    records = require_chain(world, run_id)
    assert [record.kind for record in records] == ["initial"] + rounds * ["skipped"]
    assert {record.adapter_sha256 for record in records} == {records[0].adapter_sha256}
    for silo in world.silos.values():
        # In one half a round, charged for that one alone.
        assert sorted(identity.round for identity in silo.encoded) == list(range(1, rounds + 1))
        assert silo.ledger.debits_of_run(run_id).releases == rounds
    assert world.store.rounds.charged(run_id).releases == rounds
    ended = details(world, "round_finished")
    assert {one["outcome"] for one in ended} == {"bisected"}
    assert all(loud in one["gross"] for one in ended)
    assert world.value("chorale_rounds_total", outcome="bisected") == rounds
    assert not [path for path in world.context.scratch.rglob("*") if path.is_file()]


def test_a_run_under_way_is_bisected_after_its_round_and_goes_on_when_it_is_resumed(world):
    async def main():
        run_id = await world.conductor.start_run(plan(rounds=3), sw.INITIAL, "t")
        asked = []

        def once():
            if not asked and world.driver.attempt is not None:
                asked.append(ask(world, run_id))

        world.before_wait = once
        await settled(world)
        await resumed(world, run_id)
        return run_id

    run_id = asyncio.run(main())
    kinds = [record.kind for record in require_chain(world, run_id)]
    assert kinds == ["initial", "aggregated", "skipped", "aggregated"]
    halves = halves_so_far(world.store, run_id, 2)
    assert [half.verdict for half in halves] == [POSSIBLE, POSSIBLE]
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_quarantined_halves_do_not_end_a_run_and_both_need_a_word(world):
    """Two silos ruin sums, one in each half; the plan allows one quarantined sum in a row."""

    async def main():
        run_id = await paused(world, plan(rounds=6))
        first, second = halves_at(world, run_id, 1, NAMES)
        for loud in (first[0], second[0]):
            world.silos[loud].poison = LOUD
        ask(world, run_id)
        await resumed(world, run_id)
        with pytest.raises(BisectionError, match=f"both halves .*--suspects {','.join(first)} or"):
            ask(world, run_id, token="again")
        assert ask(world, run_id, *first, token="again").suspects == first
        await resumed(world, run_id)
        return run_id

    run_id = asyncio.run(main())
    assert world.store.runs.get(run_id).state is RunState.PAUSED
    assert halves_so_far(world.store, run_id, 2) is not None


def test_a_half_that_loses_too_many_is_lost_and_the_other_is_judged(world):
    async def main():
        run_id = await paused(world)
        small, large = sorted(halves_at(world, run_id, 1, NAMES), key=len)
        world.silos[small[0]].die_at = ("share_keys", 1)
        ask(world, run_id)
        await resumed(world, run_id)
        return run_id, large

    run_id, large = asyncio.run(main())
    halves = halves_so_far(world.store, run_id, 1)
    assert {half.verdict: half.survivors for half in halves} == {LOST: (), POSSIBLE: large}
    outcomes = {row.outcome for row in world.store.aggregations.list(run_id)}
    assert outcomes == {AggregationOutcome.ABORTED, AggregationOutcome.SKIPPED}


def test_too_few_ready_silos_are_no_end_of_the_run(world):
    async def main():
        run_id = await paused(world)
        ask(world, run_id)
        for name in NAMES[:3]:
            world.silos[name].dead = True
        await resumed(world, run_id)
        return run_id

    run_id = asyncio.run(main())
    assert world.store.runs.get(run_id).state is RunState.PAUSED
    assert halves_so_far(world.store, run_id, 1) == ()
    assert world.store.rounds.charged(run_id).releases == 0
    # The same again: nothing was found out.
    assert ask(world, run_id, token="again").suspects == NAMES


@pytest.mark.parametrize("part", [0, 1])
def test_a_coordinator_that_restarts_bisects_the_same_round_or_loses_the_verdicts(world, part):
    cut = []

    def before_wait():
        attempt = world.conductor.driver and world.driver.attempt
        if not cut and attempt and attempt.identity.part == part:
            cut.append(True)
            raise sw.PowerCut

    async def main():
        run_id = await paused(world)
        ask(world, run_id)
        world.before_wait = before_wait
        world.started = True
        await world.conductor.resume_run(run_id)
        with pytest.raises(sw.PowerCut):
            await settled(world)
        world.store.close()
        world._boot()
        world.conductor.resume()
        await settled(world)
        return run_id

    run_id = asyncio.run(main())
    assert world.store.runs.get(run_id).state is RunState.PAUSED
    assert [record.kind for record in require_chain(world, run_id)] == ["initial", "skipped"]
    halves = halves_so_far(world.store, run_id, 1)
    # Silos of the first half signed survivors, so that nothing of the round is made anew.
    assert [half.verdict for half in halves] == ([] if part else [POSSIBLE, POSSIBLE])
    row = world.store.bisections.newest(run_id)
    assert (row.round, world.store.bisections.waiting(run_id)) == (1, None)


def test_a_token_asks_once(world):
    async def main():
        run_id = await paused(world)
        first = ask(world, run_id)
        assert ask(world, run_id) == first
        with pytest.raises(SubmitTokenError, match=r"asked run .* for another bisection"):
            ask(world, run_id, *NAMES[:4])
        with pytest.raises(BisectionError, match="is to be bisected already"):
            ask(world, run_id, token="other")
        with pytest.raises(RollbackError, match="is bisected first"):
            request_rollback(
                world.store, world.audit, run_id=run_id, to_round=0, submit_token="back",
                admin="ada", clock=world.clock,
            )  # fmt: skip
        return run_id

    run_id = asyncio.run(main())
    assert details(world, "bisection_asked") == [
        {"run": run_id, "suspects": list(NAMES), "admin": "ada"}
    ]


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (sw.plan_toml(rounds=6), "has no noise"),
        (plan(n_min=4, quorum=4), "each half is a sum of its own, of at least 4 silos.* 8 silos"),
        (plan(rounds=1), None),
    ],
)
def test_what_has_no_place_is_refused_with_what_would_be_needed(world, toml, problem):
    async def main():
        run_id = await paused(world, toml)
        if problem is None:
            # The only round has not begun, so that a paused run has it to give.
            ask(world, run_id)
        else:
            with pytest.raises(BisectionError, match=problem):
                ask(world, run_id)

    asyncio.run(main())


def test_strangers_and_runs_that_are_over_are_refused(world):
    async def main():
        run_id = await paused(world)
        with pytest.raises(BisectionError, match=r"^hospital-x may take no part"):
            ask(world, run_id, NAMES[0], "hospital-x")
        with pytest.raises(BisectionError, match="is left to be split"):
            ask(world, run_id, NAMES[0])
        await world.conductor.abort_run(run_id)
        with pytest.raises(BisectionError, match="is aborted, and nothing follows"):
            ask(world, run_id)

    asyncio.run(main())


def test_a_rollback_that_waits_comes_first(world):
    async def main():
        run_id = await world.conductor.start_run(plan(), sw.INITIAL, "t")
        request_rollback(
            world.store, world.audit, run_id=run_id, to_round=0, submit_token="back",
            admin="ada", clock=world.clock,
        )  # fmt: skip
        with pytest.raises(BisectionError, match="goes back to an earlier round first"):
            ask(world, run_id)

    asyncio.run(main())


def test_the_last_round_of_a_run_that_is_driven_has_begun(world):
    async def main():
        run_id = await world.conductor.start_run(plan(rounds=1), sw.INITIAL, "t")
        with pytest.raises(BisectionError, match="no round to take: chorale run pause"):
            ask(world, run_id)

    asyncio.run(main())


def test_who_is_suspended_is_neither_split_nor_invited(world):
    barred = NAMES[2]

    async def main():
        run_id = await paused(world)
        world.context.liveness.bar(barred, barred=True)
        world.silos[barred].dead = True
        ask(world, run_id)
        await resumed(world, run_id)
        return run_id

    run_id = asyncio.run(main())
    halves = halves_so_far(world.store, run_id, 1)
    assert [len(half.survivors) for half in halves] == [3, 3]
    (sent,) = world.store.tasks.of_round(run_id, 1)
    assert sent.task.invited == tuple(name for name in NAMES if name != barred)


def test_a_run_of_suite_v1_is_not_bisected(tmp_path):
    async def main(world):
        with pytest.raises(BisectionError, match="of suite v1, which has one sum a release"):
            ask(world, await paused(world))

    with sw.World(tmp_path, silos=7, suite=1) as world:
        asyncio.run(main(world))
