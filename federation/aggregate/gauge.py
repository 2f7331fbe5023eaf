"""The gauge: the same product BA in factors that suit the next round.

    B = Q_B R_B,  Aᵀ = Q_A R_A  (thin QR),  R_B R_Aᵀ = U_c Σ V_cᵀ  (r × r SVD),
    U = Q_B U_c,  V = Q_A V_c,  BA = U Σ Vᵀ

    a_orthonormal   A := Vᵀ      B := UΣ       before a round that trains B
    b_orthonormal   B := U       A := ΣVᵀ      before a round that trains A
    balanced        B := U√Σ     A := √ΣVᵀ     before a round that trains both

With A's rows orthonormal ‖ΔB‖ is the norm of the change of BA, so the clip and the noise act on the
weights and not on an arbitrary parametrisation. It is post-processing of a released sum: no privacy
cost and no uplink. Ours; the r × r form follows from the thin SVD of a product (Golub and Van Loan,
"Matrix Computations", section 5.4 and 8.6).

Invariants:
    1. BA changes by at most 1e-5 relative; orthonormality holds to 1e-5.
    2. Signs are fixed: the largest entry of each column of V is positive, the first if tied.
    3. Directions without weight stay trainable. Where B or A lacks rank its basis is completed with
       directions hashed from the layer's name, never with coordinate axes; in the balanced form a
       direction with Σ_i = 0 keeps a row of A at the rows' former root mean square and a zero
       column of B, as in a fresh adapter, because two zero factors would never move again.

The bits depend on the linear algebra library, so silos adopt the published bytes after
``federation.chain.verify`` has checked them.

Covered: pairs of any rank up to the layer's smaller side. Not covered: optimiser state, which the
silos reset every round.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from federation.adapter.layout import Layout, Tensors
from federation.errors import UpdateError

Matrix = npt.NDArray[np.float64]
Form = Literal["a_orthonormal", "b_orthonormal", "balanced"]

RANK_TOLERANCE: Final = 1e-7
"""Singular values of BA below this share of the largest are float32 rounding, not rank."""
BASIS_TOLERANCE: Final = 1e-13
"""The same for one factor: only directions that float64 cannot resolve are replaced, because a
weak direction of one factor may meet a strong one of the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductSvd:
    """BA = U·diag(σ)·Vᵀ with r columns each."""

    u_mr: Matrix
    sigma_r: npt.NDArray[np.float64]
    v_nr: Matrix


def regauge(layout: Layout, tensors: Tensors, form: Form) -> dict[str, npt.NDArray[np.float32]]:
    """Rewrite every LoRA pair in ``form``.

    Raises:
        LayoutError: If the layout is not made of LoRA pairs.
        UpdateError: If a factor is not finite or its decomposition fails.
    """
    layout.require(tensors)
    rewritten = {}
    for pair in layout.pairs():
        a, b = _rewrite(
            tensors[pair.a.name].astype(np.float64),
            tensors[pair.b.name].astype(np.float64),
            form,
            pair.prefix,
        )
        # Adding zero turns -0.0 into 0.0: one zero, one encoding.
        rewritten[pair.a.name] = (a + 0.0).astype(np.float32)
        rewritten[pair.b.name] = (b + 0.0).astype(np.float32)
    return rewritten


def product_svd(a_rn: Matrix, b_mr: Matrix, name: str) -> ProductSvd:
    """Thin SVD of BA through QR of the factors, with fixed signs."""
    if not (np.isfinite(a_rn).all() and np.isfinite(b_mr).all()):
        raise UpdateError(f"layer {name!r} holds a NaN or an infinity")
    try:
        basis_b = _basis(b_mr, f"{name}/B")
        basis_a = row_basis(a_rn, name)
        core = (basis_b.T @ b_mr) @ (basis_a.T @ a_rn.T).T
        u_c, sigma, v_ct = np.linalg.svd(core)
    except np.linalg.LinAlgError as error:
        raise UpdateError(f"layer {name!r} has no singular value decomposition") from error
    u, v = basis_b @ u_c, basis_a @ v_ct.T
    sign = np.where(v[np.abs(v).argmax(axis=0), np.arange(v.shape[1])] < 0, -1.0, 1.0)
    # Factors may cancel: what is left of a product of nothing is rounding, not a direction.
    rounding = BASIS_TOLERANCE * float(np.linalg.norm(a_rn)) * float(np.linalg.norm(b_mr))
    sigma = np.where(sigma > max(RANK_TOLERANCE * float(sigma[0]), rounding), sigma, 0.0)
    return ProductSvd(u_mr=u * sign, sigma_r=sigma, v_nr=v * sign)


def row_basis(a_rn: Matrix, name: str) -> Matrix:
    """Orthonormal columns that span A's rows, completed where A lacks rank.

    Raises:
        numpy.linalg.LinAlgError: If a decomposition fails.
    """
    return _basis(a_rn.T, f"{name}/A")


def resting_scale(a_rn: Matrix, b_mr: Matrix) -> float:
    """Norm that a row of A keeps where Σ_i = 0: the rows' root mean square, else B's, else one."""
    for matrix in (a_rn, b_mr):
        norm = float(np.linalg.norm(matrix)) / math.sqrt(a_rn.shape[0])
        if norm > 0.0:
            return norm
    return 1.0


def _rewrite(a_rn: Matrix, b_mr: Matrix, form: Form, name: str) -> tuple[Matrix, Matrix]:
    svd = product_svd(a_rn, b_mr, name)
    if form == "a_orthonormal":
        return svd.v_nr.T, svd.u_mr * svd.sigma_r
    if form == "b_orthonormal":
        return (svd.v_nr * svd.sigma_r).T, svd.u_mr
    root = np.sqrt(svd.sigma_r)
    resting = np.where(svd.sigma_r > 0.0, root, resting_scale(a_rn, b_mr))
    return (svd.v_nr * resting).T, svd.u_mr * root


def _basis(tall: Matrix, name: str) -> Matrix:
    """Orthonormal columns, as many as ``tall`` has, whose span contains its column space."""
    rows, columns = tall.shape
    q, upper = np.linalg.qr(tall)
    left, sigma, _ = np.linalg.svd(upper)
    rank = int(np.count_nonzero(sigma > BASIS_TOLERANCE * sigma[0]))
    if rank == columns:
        return np.asarray(q)
    fill = rademacher(hashlib.sha256(f"chorale/v1/gauge/{name}".encode()).digest(), rows, columns)
    # Householder QR keeps the span of the leading columns and is orthonormal at any rank.
    completed, _ = np.linalg.qr(np.hstack((q @ left[:, :rank], fill)))
    return np.asarray(completed[:, :columns])


def rademacher(seed: bytes, rows: int, columns: int) -> Matrix:
    """A rows × columns matrix of ±1 from SHAKE-256 of a public seed."""
    count = rows * columns
    stream = np.frombuffer(hashlib.shake_256(seed).digest((count + 7) // 8), dtype=np.uint8)
    bits = np.unpackbits(stream)[:count].astype(np.float64)
    return (2.0 * bits - 1.0).reshape(rows, columns)
