"""Transcripts of whole aggregations, made by the real client and coordinator states."""

from dataclasses import replace

import numpy as np

from federation.chain.record import AdapterRecord
from federation.chain.sums import encode_sum, sum_sha256
from federation.transcript.transcript import Outcome, Transcript
from secagg.decode import centred_lift
from secagg.suite import verification_key
from tests.kit.federation.records import one_sum
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, ROOT_KEY
from tests.kit.simulation.secagg_cohort import NO_DROPS, Cohort

ROOT_PUBLIC_KEY = verification_key(ROOT_KEY)


def parent_of(descriptor):
    """The chain's head that an aggregation starts from."""
    return AdapterRecord(
        run_id=descriptor.identity.run_id,
        round=descriptor.identity.round - 1,
        kind="initial" if descriptor.identity.round == 1 else "skipped",
        adapter_sha256=descriptor.adapter_sha256,
        plan_sha256=descriptor.plan_sha256,
        base_model_sha256=descriptor.base_model_sha256,
        parent_sha256=b"" if descriptor.identity.round == 1 else descriptor.adapter_sha256,
        record_parent_sha256=b"" if descriptor.identity.round == 1 else bytes(32),
        suite=descriptor.suite,
    ).sign(COORDINATOR_KEY)


def record_of(descriptor, parent, survivors, total):
    return AdapterRecord(
        run_id=descriptor.identity.run_id,
        round=descriptor.identity.round,
        kind="aggregated",
        adapter_sha256=b"n" * 32,
        plan_sha256=descriptor.plan_sha256,
        base_model_sha256=descriptor.base_model_sha256,
        parent_sha256=parent.adapter_sha256,
        record_parent_sha256=parent.sha256,
        suite=descriptor.suite,
        parts=one_sum(
            descriptor_sha256=descriptor.sha256,
            sum_sha256=sum_sha256(total),
            survivors=survivors,
        ),
    ).sign(COORDINATOR_KEY)


def released(n=5, c=1, drops=NO_DROPS, **options):
    """A finished aggregation: its transcript and the bytes of its sum."""
    cohort = Cohort(n, c, **options)
    descriptor = cohort.descriptor.descriptor
    bundles = cohort.advertise(drops.get("advertise_keys", ()))
    deliveries = cohort.share(bundles, drops.get("share_keys", ()))
    survivors = cohort.upload(deliveries, drops.get("masked_input", ()))
    signatures = cohort.agree(survivors, drops.get("consistency_check", ()))
    cohort.unmask(signatures, drops.get("unmask", ())).apply(cohort.accumulator)
    total = encode_sum(centred_lift(cohort.accumulator))
    parent = parent_of(descriptor)
    names = tuple(header.silo_id for header in survivors.headers)
    delivery = next(iter(deliveries.values()))
    hybrid = descriptor.is_hybrid
    transcript = Transcript(
        outcome=Outcome.RELEASED,
        phases=4,
        roster=cohort.roster,
        descriptor=cohort.descriptor,
        bundles=bundles.bundles,
        share_headers=() if hybrid else delivery.headers,
        share_roots=delivery.roots if hybrid else (),
        upload_headers=survivors.headers,
        agreements=signatures.signatures,
        record=record_of(descriptor, parent, names, total),
        parent=parent,
    )
    return transcript, total


def cut(transcript, phases):
    """The same attempt, given up after so many phases."""
    r1 = "share_roots" if transcript.share_roots else "share_headers"
    lists = ("bundles", r1, "upload_headers", "agreements")
    return replace(
        transcript,
        outcome=Outcome.ABORTED,
        phases=phases,
        record=None,
        parent=None,
        **dict.fromkeys(lists[phases:], ()),
    )


def changed_sum(total):
    vector = np.frombuffer(total, "<i4").copy()
    vector[0] += 1
    return vector.tobytes()
