"""The best rank-r factors of a product, balanced, so that the next round can train both.

    B·A = U_r Σ_r V_rᵀ,   B := U_r √Σ_r,   A := √Σ_r V_rᵀ

Eckart and Young, Psychometrika 1 (1936). The two-sided square root is that of FedASK (arXiv
2507.09990, Algorithm 1) and of the product's gauge (``federation.aggregate.gauge``).

Invariants: signs are fixed as the gauge fixes them; a direction without weight keeps a row of A, at
the former rows' root mean square and out of the former row space where that has one to give, with a
zero column of B, because two zero factors would never move again.

Covered: one layer. Not covered: the bits, which depend on the linear algebra library.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from federation.aggregate.gauge import RANK_TOLERANCE, Matrix, resting_scale

__all__ = ["Factors", "balanced_factors"]


class Factors(NamedTuple):
    """One layer's, float64."""

    a_rn: Matrix
    b_mr: Matrix


def balanced_factors(u_mq: Matrix, sigma_q: Matrix, v_nq: Matrix, *, former: Factors) -> Factors:
    """Balanced A, r × n, and B, m × r, of the largest r of q ≥ 1 singular triplets.

    The triplets are columns, the largest singular value first. The layer's factors before give the
    rank r, and rows where there is no weight.
    """
    rank = former.a_rn.shape[0]
    largest = float(sigma_q[0])
    kept = int(np.count_nonzero(sigma_q[:rank] > RANK_TOLERANCE * largest)) if largest > 0 else 0
    u, v, root = u_mq[:, :kept], v_nq[:, :kept], np.sqrt(sigma_q[:kept])
    sign = np.where(v[np.abs(v).argmax(axis=0), np.arange(kept)] < 0, -1.0, 1.0)
    # Householder QR: orthonormal at any rank, and its columns after ``kept`` are orthogonal to v.
    completed, _ = np.linalg.qr(np.hstack((v, former.a_rn.T)))
    resting = resting_scale(former.a_rn, former.b_mr)
    a = np.vstack(((v * sign * root).T, resting * completed[:, kept:rank].T))
    b = np.hstack((u * sign * root, np.zeros((u_mq.shape[0], rank - kept))))
    return Factors(a_rn=a, b_mr=b)
