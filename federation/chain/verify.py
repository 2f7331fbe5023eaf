"""What a silo checks before it adopts a published adapter.

Given the previous adapter, the integer sums, the plan and the optimiser's state, which earlier sums
determine, the next adapter is determined:

    without gauge   byte for byte: the silo computes the update itself and compares the encodings;
    with gauge      at the end of a round, up to the bits of QR and SVD, which differ between CPU
                    kernels. The silo applies the step itself, byte-exactly, and then checks for
                    each layer that the published factors are the stated gauge of that product.
                    Method ``fedsvd`` always has it.

Ordered checks:
    1. Previous adapter, sums and published adapter are those that the record names by digest, and
       the sums are as many as a release of the plan may have.
    2. Without gauge: equality. Done.
    3. The published bytes have the one encoding, the previous adapter's layout, finite values.
    4. ‖(B'A' − BA)X‖ ≤ 1e-5·‖BA‖·√p for p = 16 public Rademacher probes X. Their seed is a digest
       of the descriptor's and of the published bytes, so bytes cannot be fitted to the probes. For
       a difference D the mean of ‖DX‖² is p·‖D‖² (Hutchinson 1990).
    5. The factors are orthonormal or balanced to 1e-5, as the gauge promises; a product that is
       right in lopsided factors would let the coordinator choose how loud the noise is.
    6. Under ``fedsvd`` the rows of A span what they spanned. A product of nothing is right with any
       rows, and A is never trained: the coordinator would choose what silos may learn.

A passing silo adopts the published bytes, whose SHA-256 is the chain.

Covered: the update. Not covered: that the sum is the true one (a coordinator that lies about it
consistently is only caught by the acceptance test on tasks), which directions without weight the
gauge of the other methods picks, signatures and links of the record, and rollbacks, which have no
update (``federation.chain.record``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.adapter.encoding import (
    Buffer,
    adapter_header,
    adapter_sha256,
    decode_adapter,
    tiles,
)
from federation.adapter.layout import Layout, LoraPair, Tensors
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.fedsvd import FedSvd
from federation.aggregate.gauge import Matrix, rademacher, resting_scale, row_basis
from federation.aggregate.optimiser import Optimiser
from federation.aggregate.server_step import Mean
from federation.chain.record import AdapterRecord
from federation.chain.replay import deltas_of
from federation.chain.sums import digest_of_sum, move_of_release
from federation.errors import AdapterError, ChainError, LayoutError, UpdateError
from federation.plan.plan import Plan
from secagg import canonical

TOLERANCE: Final = 1e-5
CANCELLATION: Final = 1e-12
PROBES: Final = 16
PROBE_DOMAIN: Final = "chorale/v1/update-probe"


def verify_update(
    *,
    plan: Plan,
    record: AdapterRecord,
    previous: Buffer,
    totals: Sequence[npt.NDArray[np.integer]],
    published: Buffer,
    optimiser: Optimiser,
) -> None:
    """Check that a published adapter follows from the previous one and the sum.

    All of them may be memory maps; without the gauge no second copy of any is made. The record is
    the aggregated one, its signature and links verified before. ``previous`` is the adapter that
    the round started from, ``totals`` the whole published sum of each part in order, as signed
    integers, delta then metrics block. The optimiser is the plan's, as the release before this one
    left it; this release moves it on, and the same one can be checked again after a failure.

    Raises:
        OptimiserStateError: If the optimiser has not seen the release before this one.
        UpdateError: If any check fails.
    """
    if record.kind != "aggregated":
        raise UpdateError(f"a record of kind {record.kind} has no update to verify")
    try:
        _require_digests(record, previous, totals, published)
        tensors = decode_adapter(previous, max_bytes=len(previous))
        aggregator = plan.aggregator(Layout.from_tensors(tensors))
        move = _move(plan, aggregator, record, totals, optimiser)
        adopted = _decode_published(published, aggregator.layout)
        if not (aggregator.gauge and plan.is_last_step(record.step)):
            _require_recomputed(aggregator, tensors, move, record.round, adopted)
            return
        expected = aggregator.apply_ungauged(tensors, move, record.round)
    except (AdapterError, ChainError, LayoutError) as error:
        raise UpdateError(f"the update cannot be verified: {error}") from error
    form = aggregator.gauge_form(record.round + 1)
    described = (part.descriptor_sha256 for part in record.parts)
    seed = canonical.digest(PROBE_DOMAIN, *described, record.adapter_sha256)
    for pair in aggregator.layout.pairs():
        old, new = _factors(expected, pair), _factors(adopted, pair)
        _require_same_product(old, new, seed, pair.prefix)
        if form == "balanced":
            _require_balanced(old, new, pair.prefix)
        elif form == "a_orthonormal":
            _require_orthonormal(new.a_rn @ new.a_rn.T, "rows of A", pair.prefix)
            if aggregator.name == FedSvd.name:
                _require_kept_rows(old, new, pair.prefix)
        else:
            _require_orthonormal(new.b_mr.T @ new.b_mr, "columns of B", pair.prefix)


class _Factors(NamedTuple):
    a_rn: Matrix
    b_mr: Matrix


def _require_digests(
    record: AdapterRecord,
    previous: Buffer,
    totals: Sequence[npt.NDArray[np.integer]],
    published: Buffer,
) -> None:
    if len(totals) != len(record.parts):
        raise UpdateError(f"{len(totals)} sums for a record of {len(record.parts)}")
    for what, digest, expected in (
        ("previous adapter", adapter_sha256(previous), record.parent_sha256),
        ("published adapter", adapter_sha256(published), record.adapter_sha256),
        *(
            ("published sum", digest_of_sum(total), part.sum_sha256)
            for total, part in zip(totals, record.parts, strict=True)
        ),
    ):
        if digest != expected:
            raise UpdateError(f"the {what} is not the one that the record names")


def _decode_published(published: Buffer, layout: Layout) -> dict[str, npt.NDArray[np.float32]]:
    """The published tensors, if they are the layout's and in the one published encoding.

    The header fixes the encoding: a file that begins with ours has its tensors where ours are.
    """
    header = adapter_header(layout)
    adopted = decode_adapter(published, max_bytes=len(header) + 4 * layout.dimension)
    layout.require(adopted)
    if memoryview(published)[: len(header)] != header:
        raise UpdateError("the published adapter is not in the one published encoding")
    return adopted


def _require_recomputed(
    aggregator: Aggregator, tensors: Tensors, move: Mean, round_number: int, adopted: Tensors
) -> None:
    """Compare with the recomputed update bit for bit, so that one zero is not the other."""
    still = {spec.name: tensors[spec.name] for spec in aggregator.layout.specs}
    for tile in aggregator.moved_tiles(tensors, move, round_number):
        still.pop(tile.spec.name, None)
        _require_bits(tile.values, adopted[tile.spec.name].reshape(-1)[tile.place])
    for name, tensor in still.items():
        flat, published = tensor.reshape(-1), adopted[name].reshape(-1)
        for place in tiles(flat):
            _require_bits(flat[place], published[place])


def _require_bits(expected: npt.NDArray[np.float32], published: npt.NDArray[np.float32]) -> None:
    if not np.array_equal(expected.view(np.uint32), published.view(np.uint32)):
        raise UpdateError("the published adapter is not the recomputed one, byte for byte")


def _move(
    plan: Plan,
    aggregator: Aggregator,
    record: AdapterRecord,
    totals: Sequence[npt.NDArray[np.integer]],
    optimiser: Optimiser,
) -> Mean:
    dimension = aggregator.shared_layout(record.round).dimension
    return move_of_release(
        plan,
        optimiser,
        deltas_of(record, totals, dimension=dimension),
        round_number=record.round,
        step=record.step,
    )


def _factors(tensors: Tensors, pair: LoraPair) -> _Factors:
    return _Factors(
        a_rn=tensors[pair.a.name].astype(np.float64), b_mr=tensors[pair.b.name].astype(np.float64)
    )


def _require_same_product(old: _Factors, new: _Factors, seed: bytes, name: str) -> None:
    probes_np = rademacher(
        hashlib.sha256(seed + name.encode("utf-8")).digest(), old.a_rn.shape[1], PROBES
    )
    expected = old.b_mr @ (old.a_rn @ probes_np)
    difference = float(np.linalg.norm(new.b_mr @ (new.a_rn @ probes_np) - expected))
    # ‖BA‖² = tr(BᵀB·AAᵀ), from two r × r matrices.
    norm = math.sqrt(max(0.0, float(np.sum((old.b_mr.T @ old.b_mr) * (old.a_rn @ old.a_rn.T)))))
    # The floor is what float64 makes of factors that cancel; it moves nothing visible.
    floor = CANCELLATION * float(np.linalg.norm(old.a_rn)) * float(np.linalg.norm(old.b_mr))
    if not difference <= max(TOLERANCE * norm, floor) * math.sqrt(PROBES):
        raise UpdateError(
            f"layer {name!r}: the published product BA is not the updated one "
            f"(difference {difference:.3g} for a norm of {norm:.3g})"
        )


def _require_orthonormal(gram: Matrix, what: str, name: str) -> None:
    error = float(np.abs(gram - np.eye(gram.shape[0])).max())
    if not error <= TOLERANCE:
        raise UpdateError(f"layer {name!r}: the {what} are not orthonormal (off by {error:.3g})")


def _require_kept_rows(old: _Factors, new: _Factors, name: str) -> None:
    try:
        basis_nr = row_basis(old.a_rn, name)
    except np.linalg.LinAlgError as failure:
        raise UpdateError(f"layer {name!r}: A has no decomposition") from failure
    outside = new.a_rn - (new.a_rn @ basis_nr) @ basis_nr.T
    error = float(np.abs(outside).max())
    if not error <= TOLERANCE:
        raise UpdateError(f"layer {name!r}: the rows of A left their span (by {error:.3g})")


def _require_balanced(old: _Factors, new: _Factors, name: str) -> None:
    """BᵀB = Σ, and AAᵀ = Σ except where Σ_i = 0, where A rests at its former scale."""
    gram_a, gram_b = new.a_rn @ new.a_rn.T, new.b_mr.T @ new.b_mr
    diagonal_a, diagonal_b = np.diag(gram_a), np.diag(gram_b)
    resting = resting_scale(old.a_rn, old.b_mr) ** 2
    largest = float(diagonal_b.max(initial=0.0))
    slack = TOLERANCE * max(largest, resting)
    off_diagonal = max(
        float(np.abs(gram - np.diag(np.diag(gram))).max()) for gram in (gram_a, gram_b)
    )
    equal = np.abs(diagonal_a - diagonal_b) <= slack
    at_rest = (diagonal_b <= slack) & (np.abs(diagonal_a - resting) <= TOLERANCE * resting)
    if not (off_diagonal <= slack and bool(np.all(equal | at_rest))):
        raise UpdateError(f"layer {name!r}: the published factors are not balanced")
