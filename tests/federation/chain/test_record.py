"""Tasks, records and results: signatures, links, bounds, and the wire."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from chorale.v1 import aggregation_pb2 as pb
from federation import wire
from federation.chain.record import (
    AdapterRecord,
    Place,
    RoundResult,
    next_place,
    place_at,
    position_of,
    require_link,
    verify_chain,
)
from federation.chain.task import RoundTask
from federation.errors import ChainError
from secagg import suite
from secagg.descriptor import AggregationId
from tests.kit.federation.records import (
    KEY,
    PUBLIC,
    STRANGER,
    after,
    initial,
    one_sum,
    resummed,
    stepped,
)


def task() -> RoundTask:
    return RoundTask(
        run_id="run-1",
        round=3,
        plan_sha256=b"p" * 32,
        roster_sha256=b"r" * 32,
        roster_epoch=2,
        base_model_sha256=b"b" * 32,
        adapter_sha256=b"a" * 32,
        ready_deadline_unix_s=1_900_000_000,
    )


def chain() -> list[AdapterRecord]:
    records = [initial().sign(KEY)]
    for kind in ("aggregated", "skipped", "aggregated"):
        records.append(after(records[-1], kind).sign(KEY))
    return records


def test_a_whole_chain_verifies_and_can_be_continued():
    records = chain()
    assert verify_chain(records, PUBLIC) == records[-1]
    assert verify_chain(records[2:], PUBLIC, after=records[1]) == records[-1]
    assert verify_chain([], PUBLIC, after=records[1]) == records[1]
    with pytest.raises(ChainError, match="no record"):
        verify_chain([], PUBLIC)


def test_a_chain_has_a_record_for_each_release():
    records = stepped(3, 4)
    assert verify_chain(records, PUBLIC, sums_per_round=4) == records[-1]
    assert verify_chain(records[6:], PUBLIC, after=records[5], sums_per_round=4) == records[-1]
    assert [record.place for record in records[3:6]] == [(1, 2), (1, 3), (2, 0)]
    for position, record in enumerate(records):
        assert position_of(record.round, record.step, 4) == position
        assert place_at(position, 4) == record.place
    # Another number of steps is another plan: the same signed records do not verify.
    for sums in (1, 3, 5):
        with pytest.raises(ChainError, match=r"follows|no step"):
            verify_chain(records, PUBLIC, sums_per_round=sums)


def test_a_step_cannot_be_left_out_or_added():
    records = stepped(2, 3)
    parent = records[3]
    assert parent.place == (1, 2)
    for place in ((1, 3), (2, 1), (3, 0), (1, 2), (1, 1)):
        forged = after(parent, round=place[0], step=place[1]).sign(KEY)
        with pytest.raises(ChainError, match=f"round {place[0]} step {place[1]} follows"):
            verify_chain([forged], PUBLIC, after=parent, sums_per_round=3)


def test_without_the_plan_a_round_may_end_anywhere_but_steps_have_no_gaps():
    """A transcript holds two records and no plan."""
    parent = stepped(2, 3)[2]
    assert parent.place == (1, 1)
    for place in ((1, 2), (2, 0)):
        require_link(parent, after(parent, round=place[0], step=place[1]))
    for place in ((1, 3), (1, 1), (2, 1), (3, 0)):
        with pytest.raises(ChainError, match="follows one of round 1 step 1"):
            require_link(parent, after(parent, round=place[0], step=place[1]))


def test_positions_outside_a_run_are_refused():
    assert position_of(0, 0, 5) == 0
    assert next_place(Place(0, 0), 5) == (1, 0)
    assert next_place(Place(2, 4), 5) == (3, 0)
    for arguments in ((0, 1, 5), (1, 5, 5), (1, -1, 5), (-1, 0, 5), (1, 0, 0)):
        with pytest.raises(ChainError, match="no "):
            position_of(*arguments)
    for arguments in ((-1, 5), (0, 0)):
        with pytest.raises(ChainError, match="no position"):
            place_at(*arguments)


def test_missing_repeated_and_reordered_records_break_the_chain():
    records = chain()
    for broken in (
        records[1:],
        [records[0], *records[2:]],
        [records[0], records[1], records[1]],
        [records[0], records[2], records[1]],
        [records[0], records[0]],
    ):
        with pytest.raises(ChainError):
            verify_chain(broken, PUBLIC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_id": "run-2"}, "run_id"),
        ({"plan_sha256": b"q" * 32}, "plan_sha256"),
        ({"base_model_sha256": b"q" * 32}, "base_model_sha256"),
        ({"round": 5}, "follows one of round"),
        ({"step": 1}, "follows one of round"),
        ({"parent_sha256": b"q" * 32}, "parent adapter"),
        ({"record_parent_sha256": b"q" * 32}, "parent record"),
    ],
)
def test_each_link_is_checked_even_when_signed(change, message):
    records = chain()
    forged = replace(records[3], **change).sign(KEY)
    with pytest.raises(ChainError, match=message):
        verify_chain([*records[:3], forged], PUBLIC)


def test_a_fork_is_told_by_its_parent_record():
    """Two records of one round with the same adapter are still two records."""
    records = chain()
    other = resummed(records[1], survivors=("ant", "bee")).sign(KEY)
    assert other.adapter_sha256 == records[1].adapter_sha256
    with pytest.raises(ChainError, match="parent record"):
        verify_chain([records[0], other, records[2]], PUBLIC)


def test_signing_again_breaks_no_link():
    record = initial()
    assert record.sha256 == record.sign(KEY).sha256 == record.sign(STRANGER).sha256


def test_a_record_of_a_stranger_is_refused():
    records = chain()
    for forged in (replace(records[3], signature=b""), records[3].sign(STRANGER)):
        with pytest.raises(ChainError, match="not signed"):
            verify_chain([*records[:3], forged], PUBLIC)


RECORD_FLIPS = {
    "run_id": "run-9",
    "round": 9,
    "step": 9,
    "kind": "skipped",
    "adapter_sha256": b"9" * 32,
    "plan_sha256": b"9" * 32,
    "base_model_sha256": b"9" * 32,
    "parent_sha256": b"9" * 32,
    "record_parent_sha256": b"9" * 32,
    "suite": 2,
    "parts": one_sum(survivors=("ant",)),
    "restored_round": 1,
}


def test_every_field_of_a_record_is_signed():
    record = chain()[1]
    assert {field.name for field in fields(AdapterRecord)} == {*RECORD_FLIPS, "signature"}
    for name, value in RECORD_FLIPS.items():
        if name in {"kind", "restored_round"}:
            # Such a record cannot be made; federation/chain/test_rollback.py changes both.
            continue
        with pytest.raises(ChainError, match="not signed"):
            replace(record, **{name: value}).verify(PUBLIC)
    kept = after(initial(), "skipped").sign(KEY)
    assert after(initial(), "skipped").signed_bytes() == kept.signed_bytes()


@pytest.mark.parametrize(("invited", "epochs"), [((), 0), (("ant", "bee"), 0), (("ant", "bee"), 2)])
def test_every_field_of_a_task_is_signed(invited, epochs):
    signed = replace(task(), invited=invited, local_epochs=epochs).sign(KEY)
    signed.verify(PUBLIC)
    for field in fields(RoundTask):
        value = getattr(signed, field.name)
        changed = value + 1 if isinstance(value, int) else value[::-1] + value[:0]
        if field.name in {"plan_sha256", "roster_sha256", "base_model_sha256", "adapter_sha256"}:
            changed = b"9" * 32
        if field.name == "invited":
            changed = ("ant",)
        if field.name == "local_epochs" and not invited:
            with pytest.raises(ChainError, match="names whom it invites"):
                replace(signed, local_epochs=1)
            continue
        with pytest.raises(ChainError, match="not signed"):
            replace(signed, **{field.name: changed}).verify(PUBLIC)
    with pytest.raises(ChainError, match="not signed"):
        signed.verify(suite.verification_key(STRANGER))


def of_two_parts(**changes: object) -> AdapterRecord:
    """A record of suite v2 with a sum each of two groups."""
    groups = (*one_sum(), *one_sum(part=2, descriptor_sha256=b"e" * 32, survivors=("dog", "eel")))
    return after(replace(initial(), suite=2), suite=2, **({"parts": groups} | changes))


def test_every_field_of_every_part_is_signed():
    record = of_two_parts().sign(KEY)
    record.verify(PUBLIC)
    assert record.survivors == ("ant", "bee", "cat", "dog", "eel")
    for number, part in enumerate(record.parts):
        for changes in (
            {"part": 1},
            {"descriptor_sha256": b"9" * 32},
            {"sum_sha256": b"9" * 32},
            {"survivors": ("fox",)},
        ):
            parts = list(record.parts)
            parts[number] = replace(part, **changes)
            with pytest.raises(ChainError, match=r"not signed|ascending"):
                replace(record, parts=tuple(parts)).verify(PUBLIC)
    for parts in ((), record.parts[:1], record.parts[1:]):
        with pytest.raises(ChainError):
            replace(record, parts=parts).verify(PUBLIC)


def test_the_sum_of_a_record_of_several_is_not_one_of_them():
    record = of_two_parts()
    assert record.part_of(2) == record.parts[1]
    assert record.part_of(1) is None
    for read in (lambda: record.sum_sha256, lambda: record.descriptor_sha256):
        with pytest.raises(ChainError, match="2 sums"):
            read()


def test_a_run_keeps_its_suite():
    head = initial().sign(KEY)
    with pytest.raises(ChainError, match="suite"):
        verify_chain([after(head, suite=2).sign(KEY)], PUBLIC, after=head)


@pytest.mark.parametrize(
    "parts",
    [
        tuple(reversed(of_two_parts().parts)),
        (*one_sum(), *one_sum()),
        tuple(part for number in range(17) for part in one_sum(part=number)),
        (
            *one_sum(survivors=tuple(f"s{k:03}" for k in range(150))),
            *one_sum(part=1, survivors=tuple(f"t{k:03}" for k in range(51))),
        ),
    ],
)
def test_parts_out_of_bounds_are_refused(parts):
    with pytest.raises(ChainError):
        of_two_parts(parts=parts)


def test_a_record_of_one_suite_is_refused_in_the_form_of_the_other():
    old, new = wire.record_to_proto(chain()[1]), wire.record_to_proto(of_two_parts().sign(KEY))
    old.parts.add().CopyFrom(new.parts[0])
    new.survivors.append("ant")
    for proto in (old, new):
        with pytest.raises(ChainError, match="another suite"):
            wire.record_from_proto(proto)


def test_a_task_cannot_pass_for_a_record():
    assert not task().signed_bytes().startswith(initial().signed_bytes()[:40])


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "run 1"},
        {"round": 0},
        {"round": -1},
        {"round": True},
        {"step": -1},
        {"step": 1 << 32},
        {"step": True},
        {"plan_sha256": b"p" * 31},
        {"adapter_sha256": b""},
        {"roster_epoch": 0},
        {"ready_deadline_unix_s": 1 << 64},
        {"signature": b"x"},
        {"invited": ("bee", "ant")},
        {"invited": ("ant", "ant")},
        {"invited": ("Ant",)},
        {"invited": tuple(f"s{k:03}" for k in range(201))},
    ],
)
def test_tasks_out_of_bounds_are_refused(change):
    with pytest.raises(ChainError):
        replace(task(), **change)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("initial", {"round": 1}),
        ("initial", {"step": 1}),
        ("aggregated", {"step": -1}),
        ("aggregated", {"step": 1 << 32}),
        ("initial", {"parent_sha256": b"0" * 32}),
        ("initial", {"record_parent_sha256": b"0" * 32}),
        ("initial", {"parts": one_sum()}),
        ("initial", {"suite": 0}),
        ("initial", {"suite": 3}),
        ("initial", {"kind": "rollback"}),
        ("initial", {"kind": "merged"}),
        ("aggregated", {"round": 0}),
        ("aggregated", {"parts": ()}),
        ("aggregated", {"parts": one_sum(survivors=())}),
        ("aggregated", {"parts": one_sum(survivors=("bee", "ant"))}),
        ("aggregated", {"parts": one_sum(survivors=("ant", "ant"))}),
        ("aggregated", {"parts": one_sum(survivors=("Ant",))}),
        ("aggregated", {"parts": one_sum(survivors=tuple(f"s{k:03}" for k in range(201)))}),
        ("aggregated", {"parts": one_sum(descriptor_sha256=b"")}),
        ("aggregated", {"parts": one_sum(sum_sha256=b"s")}),
        ("aggregated", {"parts": one_sum(part=1)}),
        ("aggregated", {"parts": (*one_sum(), *one_sum(part=1))}),
        ("aggregated", {"parent_sha256": b""}),
        ("aggregated", {"signature": b"s" * 63}),
        ("skipped", {"adapter_sha256": b"9" * 32}),
        ("skipped", {"parts": one_sum()}),
    ],
)
def test_records_that_do_not_fit_their_kind_are_refused(kind, change):
    record = initial() if kind == "initial" else after(initial(), kind)
    with pytest.raises(ChainError):
        replace(record, **change)


def result(record: AdapterRecord) -> RoundResult:
    identity = AggregationId(
        run_id=record.run_id, round=record.round, step=record.step, part=0, attempt=1
    )
    return RoundResult(record=record, identity=identity)


def test_a_result_speaks_of_one_release():
    records = chain()
    result(records[1]).verify(PUBLIC)
    other_step = replace(result(records[1]).identity, step=1)
    for identity in (result(records[2]).identity, other_step):
        with pytest.raises(ChainError, match="different releases"):
            RoundResult(record=records[1], identity=identity)
    with pytest.raises(ChainError, match="not signed"):
        result(records[1].sign(STRANGER)).verify(PUBLIC)


def test_the_wire_gives_back_equal_objects():
    for invited in ((), ("ant", "bee")):
        signed = replace(task(), step=7, invited=invited).sign(KEY)
        content = wire.round_task_to_proto(signed).SerializeToString()
        assert wire.round_task_from_proto(pb.RoundTask.FromString(content)) == signed
    for record in (*chain(), *stepped(2, 3), of_two_parts().sign(KEY)):
        content = wire.record_to_proto(record).SerializeToString()
        assert wire.record_from_proto(pb.AdapterRecord.FromString(content)) == record
        content = wire.round_result_to_proto(result(record)).SerializeToString()
        assert wire.round_result_from_proto(pb.RoundResult.FromString(content)) == result(record)


def test_the_wire_refuses_by_type():
    for proto in (pb.RoundTask(), pb.RoundTask(round=1)):
        with pytest.raises(ChainError):
            wire.round_task_from_proto(proto)
    crowded = wire.record_to_proto(chain()[1])
    crowded.survivors.extend(f"s{k}" for k in range(300))
    unknown = wire.record_to_proto(chain()[1])
    unknown.kind = "merged"
    for record_proto in (pb.AdapterRecord(), crowded, unknown):
        with pytest.raises(ChainError):
            wire.record_from_proto(record_proto)
    foreign = wire.round_result_to_proto(result(chain()[1]))
    foreign.identity.run_id = ""
    with pytest.raises(ChainError):
        wire.round_result_from_proto(foreign)
