"""A rollback's record: what it may name, what it is bound to, and what state it leaves."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.v1 import aggregation_pb2 as pb
from federation import wire
from federation.adapter.layout import Layout
from federation.chain.record import AdapterRecord, last_position_of, place_at, verify_chain
from federation.chain.replay import replay, since_rollback
from federation.chain.sums import mean_of_release
from federation.errors import ChainError, UpdateError
from tests.kit.federation.adapters import lora, plan_of
from tests.kit.federation.histories import NAMES, history
from tests.kit.federation.records import (
    KEY,
    PUBLIC,
    STRANGER,
    after,
    by_part,
    initial,
    one_sum,
    stepped,
)


def rollback(parent: AdapterRecord, target: AdapterRecord, **changes: object) -> AdapterRecord:
    made = {"adapter_sha256": target.adapter_sha256, "restored_round": target.round}
    return after(parent, "rollback", **(made | changes))


def released(rounds: int = 3) -> list[AdapterRecord]:
    records = [initial().sign(KEY)]
    for _ in range(rounds):
        records.append(after(records[-1]).sign(KEY))
    return records


@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_a_chain_goes_back_and_on(target):
    records = released()
    back = rollback(records[-1], records[target]).sign(KEY)
    further = after(back).sign(KEY)
    whole = [*records, back, further]
    assert verify_chain(whole, PUBLIC) == further
    assert back.adapter_sha256 == records[target].adapter_sha256
    # From a head that was verified before, the records before it are asked for by their position.
    asked = []

    def earlier(position: int) -> AdapterRecord:
        asked.append(position)
        return records[position]

    for known in range(4):
        asked.clear()
        assert verify_chain(whole[known + 1 :], PUBLIC, after=whole[known], earlier=earlier)
        assert asked == ([target] if target < known else [])
    # What is not at hand is not believed.
    if target < 3:
        with pytest.raises(ChainError, match="not given"):
            verify_chain([back, further], PUBLIC, after=records[3])


def test_a_rollback_may_follow_a_rollback():
    records = released(2)
    records.append(rollback(records[2], records[1]).sign(KEY))
    records.append(rollback(records[3], records[0]).sign(KEY))
    # Round 3 ended with the adapter of round 1, so going back to it is going there.
    records.append(rollback(records[4], records[3]).sign(KEY))
    assert verify_chain(records, PUBLIC).adapter_sha256 == records[1].adapter_sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adapter_sha256": b"n" * 32}, "not that of the end of round 1"),
        ({"adapter_sha256": b"\x02" * 32}, "not that of the end of round 1"),
        ({"restored_round": 2}, "not that of the end of round 2"),
        ({"restored_round": 0}, "not that of the end of round 0"),
        ({"parent_sha256": b"q" * 32}, "parent adapter"),
        ({"record_parent_sha256": b"q" * 32}, "parent record"),
        ({"run_id": "run-2"}, "run_id"),
        ({"plan_sha256": b"q" * 32}, "plan_sha256"),
        ({"round": 5}, "follows one of round"),
    ],
)
def test_the_coordinators_own_signature_does_not_excuse_a_wrong_rollback(change, message):
    """An adapter that was never released, another round's, another run's, a wrong parent."""
    records = released()
    forged = rollback(records[3], records[1], **change).sign(KEY)
    with pytest.raises(ChainError, match=message):
        verify_chain([*records, forged], PUBLIC)
    with pytest.raises(ChainError, match=message):
        verify_chain([forged], PUBLIC, after=records[3], earlier=lambda position: records[position])


def test_a_stranger_cannot_take_a_run_back():
    records = released()
    for forged in (
        rollback(records[3], records[1]).sign(STRANGER),
        replace(rollback(records[3], records[1]).sign(KEY), restored_round=0),
        replace(rollback(records[3], records[1]).sign(KEY), adapter_sha256=b"x" * 32),
    ):
        with pytest.raises(ChainError, match="not signed"):
            verify_chain([*records, forged], PUBLIC)


def test_what_is_looked_up_must_be_the_record_of_that_place_and_run():
    records = released()
    back = rollback(records[3], records[1]).sign(KEY)
    other_run = replace(records[1], run_id="run-2")
    for lie in (records[2], records[0], other_run):
        with pytest.raises(ChainError, match=r"did not end at|not that of the end"):
            verify_chain([back], PUBLIC, after=records[3], earlier=lambda _position, lie=lie: lie)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        # To its own round or a later one.
        ("rollback", {"restored_round": 4}),
        ("rollback", {"restored_round": 5}),
        ("rollback", {"restored_round": -1}),
        ("rollback", {"restored_round": True}),
        ("rollback", {"restored_round": 1 << 32}),
        ("rollback", {"restored_round": None}),
        ("rollback", {"parts": one_sum()}),
        ("rollback", {"step": 1}),
        ("aggregated", {"restored_round": 1}),
        ("skipped", {"restored_round": 1}),
        ("skipped", {"kind": "rollback"}),
    ],
)
def test_records_that_do_not_fit_a_rollback_are_refused(kind, change):
    records = released()
    made = rollback(records[3], records[1]) if kind == "rollback" else after(records[3], kind)
    with pytest.raises(ChainError):
        replace(made, **change)


def test_a_round_is_a_rollback_throughout_or_not_at_all():
    records = stepped(3, 3)[:7]
    target = records[last_position_of(1, 3)]
    assert (target.place, records[-1].place) == ((1, 2), (2, 2))
    made = list(records)
    for step in range(3):
        made.append(rollback(made[-1], target, round=3, step=step, restored_round=1).sign(KEY))
    made.append(after(made[-1], round=4, step=0).sign(KEY))
    assert verify_chain(made, PUBLIC, sums_per_round=3) == made[-1]
    assert {record.adapter_sha256 for record in made[7:10]} == {target.adapter_sha256}
    first = made[7]
    for forged in (
        after(first, round=3, step=1),
        after(first, "skipped", round=3, step=1),
        rollback(first, target, round=3, step=1, restored_round=2),
        # A rollback in the middle of a round.
        rollback(records[5], records[5], round=2, step=2, restored_round=1),
    ):
        before = made[:8] if forged.round == 3 else made[:6]
        with pytest.raises(ChainError, match="takes a whole round"):
            verify_chain([*before, forged.sign(KEY)], PUBLIC, sums_per_round=3)
    # Not the adapter in the middle of round 1, which no round ended with.
    middle = rollback(records[6], records[1], round=3, step=0).sign(KEY)
    with pytest.raises(ChainError, match="not that of the end of round 1"):
        verify_chain([*records, middle], PUBLIC, sums_per_round=3)


def test_the_wire_and_the_bytes_of_other_records():
    records = released()
    for target in (0, 1):
        record = rollback(records[3], records[target]).sign(KEY)
        content = wire.record_to_proto(record).SerializeToString()
        assert wire.record_from_proto(pb.AdapterRecord.FromString(content)) == record
    for restored in (None, 3):
        proto = wire.record_to_proto(records[2])
        proto.kind = "rollback"
        if restored is not None:
            proto.restored_round = restored
        with pytest.raises(ChainError):
            wire.record_from_proto(proto)
    proto = wire.record_to_proto(records[2])
    proto.restored_round = 1
    with pytest.raises(ChainError, match="names the round"):
        wire.record_from_proto(proto)
    # A record without a rollback is signed as it always was.
    assert initial().sha256.hex() == (
        "6f24d56b26429588109c0b850932311a5a980c19755be5697ab5f1864e7c2f1a"
    )


def releases_with_rollback(plan, dimension):
    """Rounds 1 to 6; round 4 goes back to round 1."""
    releases = history(plan, dimension, 6)
    record, _ = releases[3]
    releases[3] = (
        replace(
            record,
            kind="rollback",
            restored_round=1,
            parts=(),
        ),
        None,
    )
    return releases


@pytest.mark.parametrize("name", NAMES)
def test_moments_begin_again_after_a_rollback(name):
    plan = plan_of("fedavg", optimiser=name)
    dimension = plan.aggregator(Layout.from_tensors(lora(0))).shared_layout(1).dimension
    releases = releases_with_rollback(plan, dimension)
    means = {
        record.round: mean_of_release(plan, total[:dimension], 3)
        for record, total in releases
        if total is not None
    }
    lived = plan.optimiser()
    for number in (1, 3):
        if number == 3:
            lived.skip(round_number=2, step=0)
        lived.move(means[number], round_number=number, step=0)
    lived.restart(round_number=4, step=0)
    moves = [lived.move(means[number], round_number=number, step=0)[:] for number in (5, 6)]
    # What a run would do that had begun after the rollback.
    fresh = plan.optimiser()
    expected = [fresh.move(means[number], round_number=number - 4, step=0)[:] for number in (5, 6)]
    np.testing.assert_array_equal(moves, expected)
    # A replay needs the rollback and what follows it, and gets the same from more.
    records = [record for record, _ in releases[:5]]
    assert since_rollback(records) == records[3:]
    assert since_rollback(records[:3]) == records[:3]
    for given in (releases[3:5], releases[:5]):
        rebuilt = plan.optimiser()
        replay(rebuilt, plan=plan, round_number=6, dimension=dimension, releases=by_part(given))
        assert rebuilt.is_ready_for(6, 0)
        move = rebuilt.move(means[6], round_number=6, step=0)[:]
        np.testing.assert_array_equal(move, moves[1])
    for broken in (releases[4:5], [releases[3], releases[5]], [releases[0], releases[3]]):
        with pytest.raises(UpdateError, match="cannot be replayed"):
            replay(
                plan.optimiser(),
                plan=plan,
                round_number=6,
                dimension=dimension,
                releases=by_part(broken),
            )


def test_a_round_of_steps_takes_a_rollback_as_a_round_without_a_sum():
    plan = plan_of("fedavg")
    assert place_at(last_position_of(0, 4), 4) == (0, 0)
    assert place_at(last_position_of(3, 4), 4) == (3, 3)
    optimiser = plan.optimiser()
    optimiser.restart(round_number=2, step=0)
    assert optimiser.is_ready_for(3, 0)
