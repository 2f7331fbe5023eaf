"""Signed records of a chain: the first, the next, one of a later step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.chain.record import AdapterRecord, RecordPart
from secagg import suite

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
PUBLIC = suite.verification_key(KEY)


def one_sum(
    *,
    part: int = 0,
    descriptor_sha256: bytes = b"d" * 32,
    sum_sha256: bytes = b"s" * 32,
    survivors: tuple[str, ...] = ("ant", "bee", "cat"),
) -> tuple[RecordPart, ...]:
    """The parts of a record of one sum."""
    return (
        RecordPart(
            part=part,
            descriptor_sha256=descriptor_sha256,
            sum_sha256=sum_sha256,
            survivors=survivors,
        ),
    )


def resummed(record: AdapterRecord, **changes: object) -> AdapterRecord:
    """The record with other values in its only part; not signed again."""
    return replace(record, parts=(replace(record.parts[0], **changes),))


def by_part(
    releases: Iterable[tuple[AdapterRecord, npt.NDArray[np.integer] | None]],
) -> list[tuple[AdapterRecord, list[npt.NDArray[np.integer]]]]:
    """Releases of one sum or none, as ``federation.chain.replay`` takes them."""
    return [(record, [] if total is None else [total]) for record, total in releases]


def initial() -> AdapterRecord:
    return AdapterRecord(
        run_id="run-1",
        round=0,
        kind="initial",
        adapter_sha256=b"0" * 32,
        plan_sha256=b"p" * 32,
        base_model_sha256=b"b" * 32,
    )


def after(parent: AdapterRecord, kind: str = "aggregated", **changes: object) -> AdapterRecord:
    made = {
        "run_id": parent.run_id,
        "round": parent.round + 1,
        "kind": kind,
        "adapter_sha256": parent.adapter_sha256,
        "plan_sha256": parent.plan_sha256,
        "base_model_sha256": parent.base_model_sha256,
        "parent_sha256": parent.adapter_sha256,
        "record_parent_sha256": parent.sha256,
    }
    if kind == "aggregated":
        made |= {
            "adapter_sha256": bytes([parent.round + 1]) * 32,
            "parts": one_sum(),
        }
    return AdapterRecord(**(made | changes))


def stepped(rounds: int, sums: int) -> list[AdapterRecord]:
    """A chain with ``sums`` releases a round, every third of them skipped."""
    records = [initial().sign(KEY)]
    for position in range(1, rounds * sums + 1):
        kind = "skipped" if position % 3 == 0 else "aggregated"
        number, step = divmod(position - 1, sums)
        made = after(records[-1], kind, round=number + 1, step=step)
        records.append(made.sign(KEY))
    return records
