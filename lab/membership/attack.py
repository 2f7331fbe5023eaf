"""Four scores of a canary, by what the attacker sees and knows. Larger means: was a member.

With g_u the canary's clipped gradient, as the mechanism computes it, and K the matrix of all inner
products of such gradients (the Gram matrix):

    loss          sees the final adapter       ℓ_u(initial) − ℓ_u(final)
    ridge         sees the final adapter       w_u of  w = (K + λI)⁻¹ G·Δφ,  gradients halfway
    steps         sees every noisy step        the log-likelihood ratio below, coins unknown
    steps, known  the same, and who else is a  the log-likelihood ratio below
                  member: the accountant's

**Loss.** To first order it is the inner product of the adapter's move Δφ with the canary's own
gradient, so all other members' contributions are in it; the base model's loss stands for
reference models, which know nothing of random words either.

**Ridge.** Δφ is about a sum of members' gradients, plus noise. Ridge regression (Hoerl and Kennard,
Technometrics 12, 1970) says how much of each canary is in it, the others taken out. The gradients
are those at (initial + final)/2: in the middle of the way they were added on.

**Steps.** Step t releases y = Σ_w b_w·g_w + N(0, (zC)²I), where b_w is 1 if w is a member and
sampled. For canary u the others' part is taken for a Gaussian of the same mean and covariance, with
p_w = q·P[w is a member]:

    Σ_u = (zC)²I + Σ_{w≠u} p_w(1 − p_w)·g_w g_wᵀ
    x_u = g_uᵀ Σ_u⁻¹ (y − Σ_{w≠u} p_w g_w),      a_u = g_uᵀ Σ_u⁻¹ g_u
    log-likelihood ratio = log(1 − q + q·exp(x_u − a_u/2)),  summed over the steps

which, without any others, is the optimal test of the sampled Gaussian mechanism (Neyman and
Pearson, 1933). P[w is a member] is ½, or with known others 1 and 0. A canary's own coin is in
neither sum.

Covered: scores from an adapter, from gradients and from releases. Not covered: attackers that
choose the data or the gradients of others; the audits of ``lab.audit`` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import solve_triangular

from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, write_adapter
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import RowTerms, SftTrainer
from lab.membership.canaries import Canaries

__all__ = ["Gradients", "Losses", "ridge", "step_log_ratio"]

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
Adapter = Mapping[str, npt.NDArray[np.float32]]

_BATCH = 256


class Losses:
    """Computes ℓ_u of every canary under one adapter after another."""

    def __init__(self, base_dir: str | Path, *, rank: int, alpha: float) -> None:
        self._model = attach_lora(load_base(base_dir), rank=rank, alpha=alpha).eval()
        self._loss = RowTerms(Part.own("nll"))

    @torch.no_grad()
    def of(self, canaries: Canaries, adapter: Adapter) -> Floats:
        """Mean negative log-likelihood of each canary's answer."""
        write_adapter(self._model, adapter)
        parts = []
        for start in range(0, len(canaries.rows), _BATCH):
            rows = [Row.of(one) for one in canaries.rows[start : start + _BATCH]]
            sums_B, counts_B = self._loss.sums(self._model, *self._loss.collate(rows))
            parts.append((sums_B / counts_B).double().numpy())
        return np.concatenate(parts)


class Gradients:
    """Computes the clipped gradient of every canary at one adapter after another."""

    def __init__(
        self, trainer: SftTrainer, names: Sequence[str], *, backend: str, clip_l2: float
    ) -> None:
        """Take over a trainer; gradients are by the named factors, flat in their order."""
        self._trainer = trainer
        self._backend = trainer.gradients(names, Part.own("nll"), backend=backend)
        self._clip_l2 = clip_l2

    def of(self, canaries: Canaries, adapter: Adapter) -> Vectors:
        """A row per canary, member or not."""
        self._trainer.reset(adapter)
        units = [[Row.of(one)] for one in canaries.rows]
        rows_NP = np.empty((len(units), self._backend.dimension), dtype=np.float32)
        for index, gradient in enumerate(self._backend.unit_gradients(units)):
            norm = float(np.linalg.norm(gradient))
            rows_NP[index] = gradient * min(1.0, self._clip_l2 / norm) if norm else gradient
        return rows_NP


def ridge(gradients_NP: Vectors, move_P: Vectors, *, penalty: float) -> Floats:
    """How much of each canary's gradient is in a move of the adapter; λ is the penalty."""
    gram_NN = (gradients_NP @ gradients_NP.T).astype(np.float64)
    gram_NN[np.diag_indices_from(gram_NN)] += penalty
    return np.linalg.solve(gram_NN, (gradients_NP @ move_P).astype(np.float64)).astype(np.float64)


def step_log_ratio(
    gram_NN: Floats,
    products_N: Floats,
    member_N: Floats,
    *,
    sampling_rate: float,
    noise_std: float,
) -> Floats:
    """The log-likelihood ratio of each canary after one step.

    Args:
        gram_NN: ⟨g_u, g_w⟩.
        products_N: ⟨g_u, y⟩ with the step's noisy sum y.
        member_N: The probability that each is a member, as the attacker knows it.
        sampling_rate: q.
        noise_std: z·C.
    """
    expected_N = sampling_rate * member_N
    variance_N = expected_N * (1.0 - expected_N)
    # Σ⁻¹ over *all* canaries by Woodbury's identity: with D² = diag(variance) and L Lᵀ the Cholesky
    # factor of v·I + D K D, G Σ⁻¹ Gᵀ = (K − Bᵀ B)/v, B = L⁻¹ D K.
    v = noise_std**2
    deviation_N = np.sqrt(variance_N)
    inner_NN = deviation_N[:, None] * gram_NN * deviation_N
    inner_NN[np.diag_indices_from(inner_NN)] += v
    lower_NN = np.linalg.cholesky(inner_NN)
    residual_N = products_N - gram_NN @ expected_N
    known_NN = solve_triangular(lower_NN, deviation_N[:, None] * gram_NN, lower=True)
    # The residual is a vector of parameters, y − Gᵀ·expected; only its products with G are needed.
    whitened_N = solve_triangular(lower_NN, deviation_N * residual_N, lower=True)
    length_N = (np.diag(gram_NN) - (known_NN**2).sum(axis=0)) / v
    match_N = (residual_N - known_NN.T @ whitened_N) / v
    # Each canary's own share is taken out of mean and covariance (Sherman and Morrison, 1950).
    apart_N = 1.0 - variance_N * length_N
    match_N = (match_N + expected_N * length_N) / apart_N
    length_N = length_N / apart_N
    ratios: Floats = np.logaddexp(
        np.log1p(-sampling_rate) if sampling_rate < 1.0 else -np.inf,
        np.log(sampling_rate) + match_N - length_N / 2.0,
    )
    return ratios
