"""Protobuf on one side, bounded documents on the other: task, pre-flight, record, head, facts.

``*_from_proto`` either returns an object whose every field is within bounds or raises ChainError,
for an audit head AuditHeadError and for facts FactsError; counts are looked at before items are
built. ``*_to_proto`` then ``*_from_proto`` gives an equal object.

Covered: bounds; words of an enum that this version does not know. Not covered: signatures and
links, which ``federation.chain.record``, ``federation.audit.head`` and
``federation.membership.facts`` check.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar, get_args

from chorale.v1 import aggregation_pb2 as pb
from chorale.v1 import membership_pb2, secagg_pb2
from federation.audit.head import AuditHead
from federation.chain.preflight import Preflight, PreflightAnswer, Verdict
from federation.chain.record import (
    KINDS,
    MAX_PARTS,
    AdapterRecord,
    RecordKind,
    RecordPart,
    RoundResult,
)
from federation.chain.task import RoundTask
from federation.errors import ChainError, FactsError
from federation.membership.facts import (
    Availability,
    BudgetLeft,
    FreeGpu,
    SignedFacts,
    SiloFacts,
)
from federation.plan.negotiation import Offer
from secagg import bounds, suite
from secagg.errors import MalformedMessageError
from secagg.roster import MAX_APPROVED_IN_A_ROW, SignedRoster
from secagg.wire import identity_from_proto, identity_to_proto, roster_from_proto

RECORDS_PER_PAGE: Final = 256
"""Records of one answer; fewer are the end of the chain. The longest record, of 200 survivors with
names of 63 characters in 16 sums, has 15 kB, so a page fits the 4 MiB that the admin CLI takes."""

WordT = TypeVar("WordT", bound=StrEnum)

_AVAILABILITY: Final = MappingProxyType(
    {
        Availability.UP: membership_pb2.AVAILABILITY_UP,
        Availability.DOWN: membership_pb2.AVAILABILITY_DOWN,
    }
)
_FREE_GPU: Final = MappingProxyType(
    {
        FreeGpu.NONE: membership_pb2.FREE_GPU_NONE,
        FreeGpu.SOME: membership_pb2.FREE_GPU_SOME,
        FreeGpu.MOST: membership_pb2.FREE_GPU_MOST,
        FreeGpu.ALL: membership_pb2.FREE_GPU_ALL,
    }
)
_BUDGET_LEFT: Final = MappingProxyType(
    {
        BudgetLeft.UNDER_QUARTER: membership_pb2.BUDGET_LEFT_UNDER_QUARTER,
        BudgetLeft.UNDER_HALF: membership_pb2.BUDGET_LEFT_UNDER_HALF,
        BudgetLeft.UNDER_THREE_QUARTERS: membership_pb2.BUDGET_LEFT_UNDER_THREE_QUARTERS,
        BudgetLeft.OVER_THREE_QUARTERS: membership_pb2.BUDGET_LEFT_OVER_THREE_QUARTERS,
    }
)
"""0, which no word has, says nothing."""


def round_task_to_proto(task: RoundTask) -> pb.RoundTask:
    """Convert."""
    return pb.RoundTask(
        run_id=task.run_id,
        round=task.round,
        step=task.step,
        plan_sha256=task.plan_sha256,
        roster_sha256=task.roster_sha256,
        roster_epoch=task.roster_epoch,
        base_model_sha256=task.base_model_sha256,
        adapter_sha256=task.adapter_sha256,
        ready_deadline_unix_s=task.ready_deadline_unix_s,
        invited=task.invited,
        local_epochs=task.local_epochs,
        signature=task.signature,
    )


def round_task_from_proto(proto: pb.RoundTask) -> RoundTask:
    """Convert, or raise ChainError."""
    if len(proto.invited) > bounds.MAX_COHORT:
        raise ChainError(f"a task invites at most {bounds.MAX_COHORT} silos")
    return RoundTask(
        run_id=proto.run_id,
        round=proto.round,
        step=proto.step,
        plan_sha256=proto.plan_sha256,
        roster_sha256=proto.roster_sha256,
        roster_epoch=proto.roster_epoch,
        base_model_sha256=proto.base_model_sha256,
        adapter_sha256=proto.adapter_sha256,
        ready_deadline_unix_s=proto.ready_deadline_unix_s,
        invited=tuple(proto.invited),
        local_epochs=proto.local_epochs,
        signature=proto.signature,
    )


def preflight_to_proto(preflight: Preflight) -> pb.Preflight:
    """Convert."""
    return pb.Preflight(
        plan_sha256=preflight.plan_sha256,
        roster_sha256=preflight.roster_sha256,
        submit_token=preflight.submit_token,
        signature=preflight.signature,
    )


def preflight_from_proto(proto: pb.Preflight) -> Preflight:
    """Convert, or raise ChainError."""
    return Preflight(
        plan_sha256=proto.plan_sha256,
        roster_sha256=proto.roster_sha256,
        submit_token=proto.submit_token,
        signature=proto.signature,
    )


def preflight_answer_to_proto(answer: PreflightAnswer) -> pb.PreflightAnswer:
    """Convert."""
    return pb.PreflightAnswer(
        preflight_sha256=answer.preflight_sha256,
        silo_id=answer.silo_id,
        verdict=answer.verdict.value,
        rule=answer.rule,
        offer=None if answer.offer is None else offer_to_proto(answer.offer),
        signature=answer.signature,
    )


def offer_to_proto(offer: Offer) -> pb.Offer:
    """Convert."""
    return pb.Offer(
        local_epochs=offer.local_epochs,
        start_after_unix_s=offer.start_after_unix_s,
        epsilon_quarters=offer.epsilon_quarters,
    )


def offer_from_proto(proto: pb.Offer) -> Offer:
    """Convert, or raise ChainError."""
    return Offer(
        local_epochs=proto.local_epochs,
        start_after_unix_s=proto.start_after_unix_s,
        epsilon_quarters=proto.epsilon_quarters,
    )


def preflight_answer_from_proto(proto: pb.PreflightAnswer) -> PreflightAnswer:
    """Convert, or raise ChainError."""
    try:
        verdict = Verdict(proto.verdict)
    except ValueError as error:
        raise ChainError(f"a pre-flight's verdict is none of {', '.join(Verdict)}") from error
    return PreflightAnswer(
        preflight_sha256=proto.preflight_sha256,
        silo_id=proto.silo_id,
        verdict=verdict,
        rule=proto.rule,
        offer=offer_from_proto(proto.offer) if proto.HasField("offer") else None,
        signature=proto.signature,
    )


def record_to_proto(record: AdapterRecord) -> pb.AdapterRecord:
    """Convert."""
    proto = pb.AdapterRecord(
        run_id=record.run_id,
        round=record.round,
        step=record.step,
        parent_sha256=record.parent_sha256,
        adapter_sha256=record.adapter_sha256,
        plan_sha256=record.plan_sha256,
        base_model_sha256=record.base_model_sha256,
        kind=record.kind,
        record_parent_sha256=record.record_parent_sha256,
        signature=record.signature,
        restored_round=record.restored_round,
    )
    if record.is_hybrid:
        proto.suite = record.suite
        proto.parts.extend(_part_to_proto(part) for part in record.parts)
    else:
        proto.descriptor_sha256 = record.descriptor_sha256
        proto.sum_sha256 = record.sum_sha256
        proto.survivors.extend(record.survivors)
    return proto


def _part_to_proto(part: RecordPart) -> pb.RecordPart:
    return pb.RecordPart(
        part=part.part,
        descriptor_sha256=part.descriptor_sha256,
        sum_sha256=part.sum_sha256,
        survivors=part.survivors,
    )


def record_from_proto(proto: pb.AdapterRecord) -> AdapterRecord:
    """Convert, or raise ChainError."""
    kinds: Mapping[str, RecordKind] = {kind: kind for kind in get_args(RecordKind)}
    kind = kinds.get(proto.kind)
    if kind is None:
        raise ChainError(f"record kind is none of {KINDS}")
    return AdapterRecord(
        run_id=proto.run_id,
        round=proto.round,
        step=proto.step,
        kind=kind,
        adapter_sha256=proto.adapter_sha256,
        plan_sha256=proto.plan_sha256,
        base_model_sha256=proto.base_model_sha256,
        parent_sha256=proto.parent_sha256,
        record_parent_sha256=proto.record_parent_sha256,
        suite=proto.suite or suite.SUITE,
        parts=_parts(proto),
        restored_round=proto.restored_round if proto.HasField("restored_round") else None,
        signature=proto.signature,
    )


def _parts(proto: pb.AdapterRecord) -> tuple[RecordPart, ...]:
    """The sums of a record, in the form of its suite."""
    first = (proto.descriptor_sha256, proto.sum_sha256, proto.survivors)
    hybrid = proto.suite > suite.SUITE
    if any(first) if hybrid else proto.parts:
        raise ChainError("a record names its sums in the form of another suite")
    if len(proto.parts) > MAX_PARTS:
        raise ChainError(f"a record has more than {MAX_PARTS} sums")
    named = (proto.survivors, *(part.survivors for part in proto.parts))
    if any(len(survivors) > bounds.MAX_COHORT for survivors in named):
        raise ChainError(f"a record names more than {bounds.MAX_COHORT} survivors")
    if hybrid:
        return tuple(
            RecordPart(
                part=part.part,
                descriptor_sha256=part.descriptor_sha256,
                sum_sha256=part.sum_sha256,
                survivors=tuple(part.survivors),
            )
            for part in proto.parts
        )
    if not any(first):
        return ()
    only = RecordPart(
        descriptor_sha256=proto.descriptor_sha256,
        sum_sha256=proto.sum_sha256,
        survivors=tuple(proto.survivors),
    )
    return (only,)


def round_result_to_proto(result: RoundResult) -> pb.RoundResult:
    """Convert."""
    return pb.RoundResult(
        record=record_to_proto(result.record), identity=identity_to_proto(result.identity)
    )


def round_result_from_proto(proto: pb.RoundResult) -> RoundResult:
    """Convert, or raise ChainError."""
    try:
        identity = identity_from_proto(proto.identity)
    except MalformedMessageError as error:
        raise ChainError(str(error)) from error
    return RoundResult(record=record_from_proto(proto.record), identity=identity)


def audit_head_to_proto(head: AuditHead) -> membership_pb2.AuditHead:
    """Convert; whose it is, the connection says."""
    return membership_pb2.AuditHead(
        index=head.index,
        sha256=head.sha256,
        at_unix_s=head.at_unix_s,
        signature=head.signature,
    )


def audit_head_from_proto(
    proto: membership_pb2.AuditHead, *, federation: str, writer: str
) -> AuditHead:
    """Convert, or raise AuditHeadError."""
    return AuditHead(
        federation=federation,
        writer=writer,
        index=proto.index,
        sha256=proto.sha256,
        at_unix_s=proto.at_unix_s,
        signature=proto.signature,
    )


def silo_facts_to_proto(facts: SiloFacts) -> membership_pb2.SiloFacts:
    """Convert."""
    proto = membership_pb2.SiloFacts(
        queue=facts.queue, earliest_start_unix_s=facts.earliest_start_unix_s
    )
    if facts.availability is not None:
        proto.availability = _AVAILABILITY[facts.availability]
    if facts.free_gpu is not None:
        proto.free_gpu = _FREE_GPU[facts.free_gpu]
    if facts.budget_left is not None:
        proto.budget_left = _BUDGET_LEFT[facts.budget_left]
    return proto


def silo_facts_from_proto(proto: membership_pb2.SiloFacts) -> SiloFacts:
    """Convert, or raise FactsError."""
    start = proto.earliest_start_unix_s if proto.HasField("earliest_start_unix_s") else None
    return SiloFacts(
        availability=_word(_AVAILABILITY, proto.availability, "availability"),
        queue=proto.queue if proto.HasField("queue") else None,
        free_gpu=_word(_FREE_GPU, proto.free_gpu, "free_gpu"),
        budget_left=_word(_BUDGET_LEFT, proto.budget_left, "budget_left"),
        earliest_start_unix_s=start,
    )


def _word(known: Mapping[WordT, int], number: int, name: str) -> WordT | None:
    if not number:
        return None
    found = next((word for word, of_word in known.items() if of_word == number), None)
    if found is None:
        raise FactsError(f"{name} {number} is none that this version knows")
    return found


def signed_facts_to_proto(signed: SignedFacts) -> membership_pb2.PublishFactsRequest:
    """Convert; whose they are, the connection says."""
    return membership_pb2.PublishFactsRequest(
        issued_unix_s=signed.issued_unix_s,
        facts=silo_facts_to_proto(signed.facts),
        signature=signed.signature,
    )


def signed_facts_from_proto(
    proto: membership_pb2.PublishFactsRequest, *, federation: str, silo_id: str
) -> SignedFacts:
    """Convert, or raise FactsError."""
    return SignedFacts(
        silo_id=silo_id,
        federation=federation,
        issued_unix_s=proto.issued_unix_s,
        facts=silo_facts_from_proto(proto.facts),
        signature=proto.signature,
    )


def earlier_rosters_from_proto(
    protos: Collection[secagg_pb2.Roster],
) -> tuple[SignedRoster, ...]:
    """Convert the rosters before an approved one, or raise MalformedMessageError."""
    if len(protos) > MAX_APPROVED_IN_A_ROW:
        raise MalformedMessageError(
            f"a roster has more than {MAX_APPROVED_IN_A_ROW} others between it and the root's"
        )
    return tuple(roster_from_proto(proto) for proto in protos)
