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

NAMES = silo_names(9)
TABLE = '[aggregation.groups]\ncount = {}\nbyzantine = 1\nrule = "median"\n[privacy]\n'


def grouped(count=3, **settings):
    text = sw.plan_toml(mode="silo", noise=0.001, **settings)
    return text.replace(b"[privacy]\n", TABLE.format(count).encode())


@pytest.fixture
def world(tmp_path):
    """Three groups of three: c = 1, so none of them can lose a silo."""
    with sw.World(tmp_path, silos=9) as made:
        yield made


@pytest.fixture
def larger(tmp_path):
    """Four groups of three."""
    with sw.World(tmp_path, silos=12) as made:
        yield made


def groups_at(world, run_id, round_number=1):
    return groups_of(
        world.silos,
        len(world.silos) // 3,
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
    assert world.store.rounds.charged(run_id).releases == 2
    for silo in world.silos.values():
        # In one group a round, charged for that one alone.
        assert sorted(identity.round for identity in silo.encoded) == [1, 2]
        assert silo.ledger.debits_of_run(run_id).releases == 2
        # Until its group's turn it is shown the task: an idle silo would give up what it trained.
        kinds = [type(message).__name__ for message in silo.told]
        assert kinds[: kinds.index("SignedDescriptor")] == ["RoundTask"]
    assert not [path for path in world.context.scratch.rglob("*") if path.is_file()]


def test_a_silo_that_ruins_its_group_does_not_ruin_the_mean(world):
    """Within the bound of its group's norm, so that no sum is quarantined."""
    part = 0.3
    loud = np.zeros(sw.DIMENSION + 3, dtype=np.uint32)
    loud[: sw.DIMENSION] = int(part * sw.GRID)
    world.silos[NAMES[0]].poison = loud
    run_id = asyncio.run(world.run(grouped()))
    record = require_chain(world, run_id)[-1]
    assert len(record.parts) == 3
    found = adapter_of(world, record)
    moved = max(
        float(np.abs(found[name] - tensor).max()) for name, tensor in sw.initial_tensors().items()
    )
    # In one sum of all it would move each coordinate by so much more.
    assert moved < part * sw.CLIP / len(NAMES) / 2


def test_a_group_that_loses_too_many_is_left_out(larger):
    """Three of four groups are enough for the release."""

    async def main():
        run_id = await larger.conductor.start_run(grouped(4), sw.INITIAL, "t")
        lost = groups_at(larger, run_id)[1][0]
        larger.silos[lost].die_at = ("share_keys", 1)
        await larger.ended()
        return run_id

    run_id = asyncio.run(main())
    record = require_chain(larger, run_id)[-1]
    groups = groups_at(larger, run_id)
    assert record.kind == "aggregated"
    assert parts_of(record) == {part: groups[part] for part in (0, 2, 3)}
    assert outcomes(larger, run_id) == [
        (1, 0, RELEASED), (1, 1, ABORTED), (1, 2, RELEASED), (1, 3, RELEASED),
    ]  # fmt: skip


def test_with_too_few_groups_left_after_a_sum_the_release_is_skipped(world):
    async def main():
        run_id = await world.conductor.start_run(grouped(), sw.INITIAL, "t")
        group = groups_at(world, run_id)[1]
        world.silos[group[0]].die_at = ("share_keys", 1)
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
        world.silos[groups_at(world, run_id)[0][0]].die_at = ("share_keys", 1)

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


def test_a_quarantined_group_is_left_out_and_nothing_of_it_is_adopted(larger):
    async def main():
        run_id = await larger.conductor.start_run(grouped(4), sw.INITIAL, "t")
        loud = groups_at(larger, run_id)[2][0]
        larger.silos[loud].poison = np.full(sw.DIMENSION + 3, 2**28, dtype=np.uint32)
        await larger.ended()
        return run_id

    run_id = asyncio.run(main())
    record = require_chain(larger, run_id)[-1]
    assert record.kind == "aggregated"
    assert sorted(parts_of(record)) == [0, 1, 3]
    assert (1, 2, SKIPPED) in outcomes(larger, run_id)


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
        sw.World(tmp_path, silos=9, suite=1) as world,
        pytest.raises(PlanError, match=r"aggregation\.groups: a run of suite v1"),
    ):
        asyncio.run(world.run(grouped()))
