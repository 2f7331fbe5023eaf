"""Groups of a round: a public function that every silo recomputes; updates from several sums."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.layout import Layout
from federation.aggregate.groups import RobustMean
from federation.aggregate.server_step import mean_of_sum
from federation.chain.groups import GROUPS_DOMAIN, groups_of, halves_of
from federation.chain.record import AdapterRecord, RecordPart
from federation.chain.replay import replay
from federation.chain.sums import encode_sum, mean_of_parts, sum_sha256
from federation.chain.verify import verify_update
from federation.errors import UpdateError
from federation.plan.tables import GroupsSection
from secagg import canonical
from tests.kit.federation.adapters import CLIP, GRID, lora, plan_of

SILOS = tuple(f"silo-{number:02}" for number in range(14))
ROUND = {"run_id": "run-1", "round_number": 4, "roster_sha256": b"r" * 32}


@pytest.mark.parametrize("count", [3, 4, 5, 14])
def test_groups_are_disjoint_and_of_sizes_as_equal_as_can_be(count):
    groups = groups_of(reversed(SILOS), count, **ROUND)
    assert len(groups) == count
    assert sorted(silo for group in groups for silo in group) == list(SILOS)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert all(list(group) == sorted(group) for group in groups)


def test_the_groups_are_those_of_the_documented_digest():
    def drawn(silo):
        encoded = canonical.encode(GROUPS_DOMAIN, "run-1", 4, b"r" * 32, silo)
        return hashlib.sha256(encoded).digest()

    ordered = sorted(SILOS, key=drawn)
    expected = tuple(tuple(sorted(ordered[part::3])) for part in range(3))
    assert groups_of(SILOS, 3, **ROUND) == expected


@pytest.mark.parametrize(
    "other", [{"run_id": "run-2"}, {"round_number": 5}, {"roster_sha256": b"s" * 32}]
)
def test_another_run_round_or_roster_has_other_groups(other):
    assert groups_of(SILOS, 3, **ROUND | other) != groups_of(SILOS, 3, **ROUND)


@pytest.mark.parametrize("suspects", [2, 3, 7, 14])
def test_suspects_and_all_silos_are_split_as_evenly_as_can_be(suspects):
    split = frozenset(SILOS[:suspects])
    halves = halves_of(reversed(SILOS), [*split, "away"], **ROUND)
    assert sorted(silo for half in halves for silo in half) == list(SILOS)
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    assert abs(len(split.intersection(halves[0])) - len(split.intersection(halves[1]))) <= 1
    assert all(list(half) == sorted(half) for half in halves)
    assert halves_of(SILOS, split, **ROUND | {"round_number": 5}) != halves


# Updates from several sums ------------------------------------------------------------------------


def grouped_plan(*, gauge=False, rule="median", count=3, optimiser="fedavg"):
    plan = plan_of("fedavg", gauge=gauge, optimiser=optimiser)
    groups = GroupsSection(count=count, byzantine=1, rule=rule)
    aggregation = plan.aggregation.model_copy(update={"groups": groups})
    return plan.model_copy(update={"aggregation": aggregation})


def release(plan, *, sums=3, previous=None, round_number=1):
    """What a silo is given after an honest round of groups, whose first group is ruined."""
    tensors = lora(11)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    dimension = aggregator.shared_layout(1).dimension
    draw = np.random.default_rng(round_number)
    totals = [draw.integers(-(2**14), 2**14, dimension + 3) for _ in range(sums)]
    totals[0] = totals[0] + 2**24
    silos = [SILOS[4 * part : 4 * part + 4 - part % 2] for part in range(sums)]
    means = [
        mean_of_sum(total[:dimension], scale=GRID / CLIP, count=len(group))
        for total, group in zip(totals, silos, strict=True)
    ]
    groups = plan.aggregation.groups
    mean = RobustMean(means, rule=groups.rule, byzantine=1)
    published = encode_adapter(aggregator.apply(tensors, mean, round_number))
    before = encode_adapter(tensors)
    record = AdapterRecord(
        run_id="run",
        round=round_number,
        kind="aggregated",
        adapter_sha256=adapter_sha256(published),
        plan_sha256=b"p" * 32,
        base_model_sha256=b"b" * 32,
        parent_sha256=adapter_sha256(before),
        record_parent_sha256=b"r" * 32,
        suite=2,
        parts=tuple(
            RecordPart(
                part=part,
                descriptor_sha256=bytes([part + 1]) * 32,
                sum_sha256=sum_sha256(encode_sum(total)),
                survivors=group,
            )
            for part, (total, group) in enumerate(zip(totals, silos, strict=True))
        ),
    )
    return {
        "plan": plan,
        "record": record,
        "previous": before,
        "totals": totals,
        "published": published,
        "optimiser": plan.optimiser(),
    }


@pytest.mark.parametrize("gauge", [False, True])
@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_an_honest_release_of_groups_is_adopted(gauge, rule):
    verify_update(**release(grouped_plan(gauge=gauge, rule=rule)))


def test_a_release_without_one_group_is_adopted_while_the_rest_outvote_one():
    plan = grouped_plan(count=4)
    verify_update(**release(plan, sums=3))
    with pytest.raises(UpdateError, match="3 to 4 sums, not 2"):
        mean_of_parts(plan, [(np.zeros(4, np.int32), 4)] * 2)
    with pytest.raises(UpdateError, match="3 to 4 sums, not 5"):
        mean_of_parts(plan, [(np.zeros(4, np.int32), 4)] * 5)
    with pytest.raises(UpdateError, match="one sum, not 2"):
        mean_of_parts(plan_of("fedavg"), [(np.zeros(4, np.int32), 4)] * 2)


def test_sums_in_another_order_or_number_are_refused():
    case = release(grouped_plan())
    for totals in (case["totals"][::-1], case["totals"][:2], [*case["totals"], case["totals"][0]]):
        with pytest.raises(UpdateError):
            verify_update(**case | {"totals": totals})


def test_a_plain_mean_of_the_groups_is_not_adopted():
    plan = grouped_plan()
    case = release(plan)
    tensors = lora(11)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    dimension = aggregator.shared_layout(1).dimension
    whole = sum(total[:dimension] for total in case["totals"])
    mean = mean_of_sum(whole, scale=GRID / CLIP, count=len(case["record"].survivors))
    wrong = encode_adapter(aggregator.apply(tensors, mean, 1))
    record = AdapterRecord(
        **{
            name: getattr(case["record"], name)
            for name in case["record"].__dataclass_fields__
            if name != "adapter_sha256"
        },
        adapter_sha256=adapter_sha256(wrong),
    )
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(**case | {"published": wrong, "record": record})


def test_moments_are_replayed_from_the_sums_of_all_groups():
    plan = grouped_plan(optimiser="fedavgm")
    releases = [release(plan, round_number=number) for number in (1, 2, 3)]
    dimension = releases[0]["totals"][0].size - 3
    lived, rebuilt = plan.optimiser(), plan.optimiser()
    for number, each in enumerate(releases[:2], 1):
        parts = [
            (total[:dimension], len(part.survivors))
            for total, part in zip(each["totals"], each["record"].parts, strict=True)
        ]
        lived.move(mean_of_parts(plan, parts), round_number=number, step=0)
    told = [(each["record"], each["totals"]) for each in releases[:2]]
    replay(rebuilt, plan=plan, round_number=3, dimension=dimension, releases=told)
    mean = np.ones(dimension)
    moves = [one.move(mean, round_number=3, step=0)[:] for one in (lived, rebuilt)]
    np.testing.assert_array_equal(*moves)
    told[1] = (told[1][0], told[1][1][:2])
    with pytest.raises(UpdateError, match="not the one"):
        replay(plan.optimiser(), plan=plan, round_number=3, dimension=dimension, releases=told)
