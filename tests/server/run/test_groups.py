"""Releases of groups: a sum for each, a robust mean of them, groups that fail, restarts."""

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest

from federation.chain.groups import groups_of
from federation.errors import PlanError
from server.store.aggregations import AggregationOutcome
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import adapter_of, require_chain

NAMES = silo_names(12)
TABLE = '[aggregation.groups]\ncount = {}\nbyzantine = 1\nrule = "median"\n[privacy]\n'


def grouped(count=3, **settings):
    text = sw.plan_toml(mode="silo", noise=0.001, **settings)
    return text.replace(b"[privacy]\n", TABLE.format(count).encode())


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=12, suite=2) as made:
        yield made


def groups_at(world, run_id, round_number=1, count=3):
    return groups_of(
        NAMES,
        count,
        run_id=run_id,
        round_number=round_number,
        roster_sha256=world.roster.roster.sha256,
    )


def parts_of(record):
    return {part.part: part.survivors for part in record.parts}


def outcomes(world, run_id):
    return [
        (row.identity.attempt, row.identity.part, row.outcome)
        for row in world.store.aggregations.list(run_id)
    ]


RELEASED, ABORTED, SKIPPED = (
    AggregationOutcome.RELEASED,
    AggregationOutcome.ABORTED,
    AggregationOutcome.SKIPPED,
)


def test_each_group_has_a_sum_and_the_next_adapter_follows_from_all(world):
    run_id = asyncio.run(world.run(grouped(rounds=2)))
    assert world.store.runs.get(run_id).state.value == "finished"
    records = require_chain(world, run_id)
    assert [record.kind for record in records] == ["initial", "aggregated", "aggregated"]
    for record in records[1:]:
        assert parts_of(record) == dict(enumerate(groups_at(world, run_id, record.round)))
    first, second = (parts_of(record) for record in records[1:])
    assert first != second
    figures = world.driver.finished
    assert [done.survivors for done in figures] == [NAMES, NAMES]
    assert all(done.update_norm > 0 and math.isnan(done.agreement) for done in figures)
    assert figures[0].success
    # Each silo was charged for the sum of its group, once a round.
    for silo in world.silos.values():
        assert len(silo.agreed) == 2
    assert world.store.rounds.charged(run_id).releases == 2
    assert not list(world.context.scratch.rglob("*.sum"))


def test_no_silo_is_in_two_groups_of_a_round(world):
    run_id = asyncio.run(world.run(grouped(rounds=2)))
    for name, silo in world.silos.items():
        parts = [(identity.round, identity.part) for identity in silo.encoded]
        assert len(parts) == len({number for number, _ in parts}) == 2, name
    assert run_id


def test_a_silo_that_ruins_its_group_does_not_ruin_the_mean(world):
    """Within the bound of its group's norm, so that no sum is quarantined."""
    loud = world.silos[NAMES[0]]
    loud.poison = np.full(sw.DIMENSION + 3, 0, dtype=np.int64)
    loud.poison[: sw.DIMENSION] = int(0.9 * sw.GRID)
    run_id = asyncio.run(world.run(grouped()))
    found = adapter_of(world, require_chain(world, run_id)[-1])
    moved = max(
        float(np.abs(found[name] - tensor).max()) for name, tensor in sw.initial_tensors().items()
    )
    # Alone it would move each coordinate by 0.9 clips over the silos of a sum.
    assert moved < 0.9 * sw.CLIP / 12


def test_a_group_that_loses_too_many_is_left_out(world):
    """Four groups of three cannot lose one; of four groups three are enough for the release."""

    async def main():
        run_id = await world.conductor.start_run(grouped(4), sw.INITIAL, "t")
        lost = groups_at(world, run_id, count=4)[1][0]
        world.silos[lost].die_at = ("share_keys", 1)
        await world.ended()
        return run_id

    run_id = asyncio.run(main())
    record = require_chain(world, run_id)[-1]
    groups = groups_at(world, run_id, count=4)
    assert record.kind == "aggregated"
    assert parts_of(record) == {part: groups[part] for part in (0, 2, 3)}
    assert outcomes(world, run_id) == [
        (1, 0, RELEASED), (1, 1, ABORTED), (1, 2, RELEASED), (1, 3, RELEASED),
    ]  # fmt: skip


def test_with_too_few_groups_left_after_a_sum_the_release_is_skipped(world):
    async def main():
        run_id = await world.conductor.start_run(grouped(), sw.INITIAL, "t")
        group = groups_at(world, run_id)[1]
        for lost in group[:2]:
            world.silos[lost].die_at = ("share_keys", 1)
        await world.ended()
        return run_id

    run_id = asyncio.run(main())
    assert require_chain(world, run_id)[-1].kind == "skipped"
    # The third group was not opened: nobody is charged for a sum that nobody can use.
    assert outcomes(world, run_id) == [(1, 0, SKIPPED), (1, 1, ABORTED)]
    assert world.driver.finished[-1].outcome == "skipped"


def test_while_no_silo_signed_survivors_the_attempt_is_made_anew(world):
    async def main():
        run_id = await world.conductor.start_run(grouped(), sw.INITIAL, "t")
        for lost in groups_at(world, run_id)[0][:2]:
            world.silos[lost].die_at = ("share_keys", 1)

        def revive():
            if world.driver.current.attempt == 2:
                for silo in world.silos.values():
                    if silo.dead:
                        silo.come_back()

        world.before_wait = revive
        await world.ended()
        return run_id

    run_id = asyncio.run(main())
    record = require_chain(world, run_id)[-1]
    assert parts_of(record) == dict(enumerate(groups_at(world, run_id)))
    assert outcomes(world, run_id) == [
        (1, 0, ABORTED), (2, 0, RELEASED), (2, 1, RELEASED), (2, 2, RELEASED),
    ]  # fmt: skip


def test_a_quarantined_group_is_left_out_and_nothing_of_it_is_adopted(world):
    async def main():
        run_id = await world.conductor.start_run(grouped(4), sw.INITIAL, "t")
        loud = groups_at(world, run_id, count=4)[2][0]
        world.silos[loud].poison = np.full(sw.DIMENSION + 3, 2**28, dtype=np.int64)
        await world.ended()
        return run_id

    run_id = asyncio.run(main())
    record = require_chain(world, run_id)[-1]
    assert record.kind == "aggregated"
    assert sorted(parts_of(record)) == [0, 1, 3]
    assert (1, 2, SKIPPED) in outcomes(world, run_id)


def test_silos_of_a_later_group_are_shown_the_task_until_their_turn(world):
    """An idle silo would give up what it trained."""
    asyncio.run(world.run(grouped()))
    for silo in world.silos.values():
        kinds = [type(message).__name__ for message in silo.told]
        assert kinds.count("RoundTask") == 1
        descriptor = kinds.index("SignedDescriptor")
        assert kinds[:descriptor] == ["RoundTask"], kinds


def test_a_coordinator_that_restarts_between_groups_skips_the_release(world):
    """Silos of the first group signed their survivors, and its sum was in memory only."""
    cut = []

    def before_wait():
        attempt = world.driver.attempt
        if not cut and attempt is not None and attempt.identity.part == 1:
            cut.append(True)
            raise sw.PowerCut

    world.before_wait = before_wait
    run_id = asyncio.run(world.run_over_power_cuts(grouped(rounds=2)))
    records = require_chain(world, run_id)
    assert [record.kind for record in records] == ["initial", "skipped", "aggregated"]
    assert outcomes(world, run_id)[:2] == [(1, 0, SKIPPED), (1, 1, ABORTED)]
    assert all(later.sha256 != earlier.sha256 for earlier, later in pairwise(records))


def test_a_run_of_suite_v1_cannot_have_groups(tmp_path):
    with (
        sw.World(tmp_path, silos=12, suite=1) as world,
        pytest.raises(PlanError, match=r"aggregation\.groups: a run of suite v1"),
    ):
        asyncio.run(world.run(grouped()))
