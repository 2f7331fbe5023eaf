"""The loss of a forward pass: an objective's terms over a padded batch, row by row.

A row of T tokens with a third of them the agent's needs a third of the logits; at a vocabulary of
152,000 these are most of a training step's memory. transformers' causal LMs take a boolean
``logits_to_keep`` of shape B×T and return the kept positions one after another, N×V. Whether a
model does is seen on public rows before it is relied on (``keeps_agent_logits``); for one that does
not, all logits are computed and the loss is the same. An objective then sees all T − 1 predicted
tokens of a row, else those of the mask alone; what it returns outside the mask counts as nothing.

Covered: decoder-only models. Not covered: fused linear and cross-entropy kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from evolution.model.value_head import values_in
from evolution.train.objective import Batchwise, Objective, RowTensors, TokenOut
from evolution.train.rows import Row

__all__ = [
    "PROBE",
    "PROBE_ROWS",
    "Batch",
    "as_batch",
    "batch_total",
    "keeps_agent_logits",
    "logprobs_of",
    "positions_before",
    "row_sums",
    "values_of",
]


class Batch(NamedTuple):
    """Rows padded on the right; each B×T."""

    ids: torch.Tensor
    """Integers."""
    mask: torch.Tensor
    """Booleans; False in the padding."""
    weights: torch.Tensor
    """float32."""
    logprobs: torch.Tensor
    """float32, of the behaviour policy."""
    known: dict[str, torch.Tensor]
    """float32, by name."""

    def to(self, device: torch.device | str) -> Batch:
        """The same on a device."""
        return Batch(
            self.ids.to(device),
            self.mask.to(device),
            self.weights.to(device),
            self.logprobs.to(device),
            {name: tensor.to(device) for name, tensor in self.known.items()},
        )


def as_batch(rows: Sequence[Row]) -> Batch:
    """The rows of one pass as one padded batch.

    No rows give a made-up one, whose loss the caller multiplies by 0.
    """
    rows = rows or (PROBE_ROWS[0],)
    width = max(map(len, rows))
    known = set(rows[0].known).intersection(*(row.known for row in rows))
    return Batch(
        _padded([row.token_ids for row in rows], width, torch.long),
        _padded([row.mask for row in rows], width, torch.bool),
        _padded([row.weights for row in rows], width, torch.float32),
        _padded([row.logprobs for row in rows], width, torch.float32),
        {
            name: _padded([row.known[name] for row in rows], width, torch.float32)
            for name in sorted(known)
        },
    )


def row_sums(
    model: Callable[..., Any],
    batch: Batch,
    objective: Objective,
    *,
    keep: bool,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Σ of the objective's terms over each row's mask, float32 of length B.

    With ``keep``, logits are computed only where there is a loss; see ``keeps_agent_logits``. All
    that the objective sees is of the distribution at the temperature.
    """
    outs, rows, logprob = _look(model, batch, keep=keep, temperature=temperature)
    terms = [objective.terms(out, row) for out, row in zip(outs, rows, strict=True)]
    loss_BT = batch.mask[:, 1:]
    if keep:
        flat_N = torch.cat(terms)
        return logprob.new_zeros(loss_BT.shape).masked_scatter(loss_BT, flat_N).sum(dim=1)
    return torch.where(loss_BT, torch.stack(terms), 0.0).sum(dim=1)


def batch_total(
    model: Callable[..., Any],
    batch: Batch,
    objective: Objective | Batchwise,
    *,
    keep: bool,
    scales_B: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """The sum over all rows, each times its scale if there are any.

    Raises:
        EvolverSetupError: The objective needs what the batch does not know.
    """
    if isinstance(objective, Batchwise):
        outs, rows, _ = _look(model, batch, keep=keep, temperature=temperature)
        return objective.batch_terms(outs, rows).sum()
    sums_B = row_sums(model, batch, objective, keep=keep, temperature=temperature)
    return (sums_B if scales_B is None else sums_B * scales_B).sum()


def logprobs_of(
    model: Callable[..., Any], batch: Batch, *, keep: bool, temperature: float = 1.0
) -> torch.Tensor:
    """The log-probability of each predicted token of the mask, B×(T − 1); zero elsewhere."""
    _, _, logprob = _look(model, batch, keep=keep, temperature=temperature)
    loss_BT = batch.mask[:, 1:]
    if keep:
        return logprob.new_zeros(loss_BT.shape).masked_scatter(loss_BT, logprob)
    return torch.where(loss_BT, logprob, 0.0)


def values_of(model: Callable[..., Any], batch: Batch, *, keep: bool) -> torch.Tensor:
    """V before each predicted token of the mask, B×(T − 1); zero elsewhere.

    Raises:
        EvolverSetupError: The model has no value head.
    """
    loss_BT = batch.mask[:, 1:]
    if keep:
        said = model(
            input_ids=batch.ids, use_cache=False, logits_to_keep=positions_before(batch.mask)
        )
        value_N = values_in(said).flatten()
        return value_N.new_zeros(loss_BT.shape).masked_scatter(loss_BT, value_N)
    value_BT = values_in(model(input_ids=batch.ids, use_cache=False))[:, :-1]
    return torch.where(loss_BT, value_BT, 0.0)


def _look(
    model: Callable[..., Any], batch: Batch, *, keep: bool, temperature: float
) -> tuple[list[TokenOut], list[RowTensors], torch.Tensor]:
    """What the model says of each row, what is known of it, and all log-probabilities."""
    target_BT, loss_BT = batch.ids[:, 1:], batch.mask[:, 1:]
    known = {name: tensor[:, 1:] for name, tensor in batch.known.items()}
    weights_BT, behaviour_BT = batch.weights[:, 1:], batch.logprobs[:, 1:]
    if not keep:
        said = model(input_ids=batch.ids, use_cache=False)
        logits_BTV = _at(said.logits, temperature)
        value_BT = getattr(said, "value", None)
        logprob_BT = _of_targets(logits_BTV, target_BT, loss_BT)
        outs = [
            TokenOut(
                logprob_BT[i],
                logits_BTV[i, :-1],
                {name: known[name][i] for name in known},
                None if value_BT is None else value_BT[i, :-1],
            )
            for i in range(len(target_BT))
        ]
        rows = [
            RowTensors(loss_BT[i], weights_BT[i], behaviour_BT[i]) for i in range(len(target_BT))
        ]
        return outs, rows, logprob_BT
    said = model(input_ids=batch.ids, use_cache=False, logits_to_keep=positions_before(batch.mask))
    logits_NV = _at(said.logits.flatten(0, -2), temperature)
    value_N = getattr(said, "value", None)
    logprob_N = -torch.nn.functional.cross_entropy(
        logits_NV.float(), target_BT[loss_BT], reduction="none"
    )
    counts = loss_BT.sum(dim=1).tolist()
    values = [None] * len(counts) if value_N is None else torch.split(value_N.flatten(), counts)
    outs = [
        TokenOut(own, logits, {name: known[name][i][loss_BT[i]] for name in known}, value)
        for i, (own, logits, value) in enumerate(
            zip(
                torch.split(logprob_N, counts),
                torch.split(logits_NV, counts),
                values,
                strict=True,
            )
        )
    ]
    rows = [
        RowTensors(loss_BT[i][loss_BT[i]], weights_BT[i][loss_BT[i]], behaviour_BT[i][loss_BT[i]])
        for i in range(len(target_BT))
    ]
    return outs, rows, logprob_N


def _of_targets(
    logits_BTV: torch.Tensor, target_BL: torch.Tensor, loss_BL: torch.Tensor
) -> torch.Tensor:
    """Log-probability of every next token, L = T − 1; zero where there is no loss.

    A position is a row here, its vocabulary side by side in memory: over a vocabulary that is not,
    torch sums in turn, takes twice as long and loses tens of times as much to rounding (49,152
    tokens: 5e-4 of a gradient). No position is cut off beforehand: that would be a copy.
    """
    none_B1 = target_BL.new_full((len(target_BL), 1), -100)
    wanted_BT = torch.cat([target_BL.masked_fill(~loss_BL, -100), none_B1], dim=1)
    nll_N = torch.nn.functional.cross_entropy(
        logits_BTV.float().flatten(0, 1), wanted_BT.flatten(), reduction="none", ignore_index=-100
    )
    return -nll_N.view(wanted_BT.shape)[:, :-1]


def _at(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits of the distribution at a temperature above 0; at 1 the same, bit for bit."""
    return logits if temperature == 1.0 else logits.float() / temperature


@torch.no_grad()
def keeps_agent_logits(model: Callable[..., Any], device: torch.device | str) -> bool:
    """Whether a model computes only the logits it is asked for, tried on public rows.

    False where it ignores the question, refuses it, or answers it otherwise.
    """
    probe = PROBE.to(device)
    keep_BT = positions_before(probe.mask)
    try:
        kept = model(input_ids=probe.ids, use_cache=False, logits_to_keep=keep_BT).logits
    except (TypeError, ValueError, IndexError, RuntimeError):
        return False
    full_NV = model(input_ids=probe.ids, use_cache=False).logits[keep_BT]
    if kept.numel() != full_NV.numel() or kept.shape[-1] != full_NV.shape[-1]:
        return False
    # 16-bit weights may round a product of another shape differently; another position is far off.
    scale = float(full_NV.float().abs().max())
    gap = float((kept.reshape(full_NV.shape).float() - full_NV.float()).abs().max())
    return gap <= 0.02 * scale


def positions_before(mask_BT: torch.Tensor) -> torch.Tensor:
    """True at each position whose next token is in the mask: there the loss looks."""
    keep_BT = torch.zeros_like(mask_BT)
    keep_BT[:, :-1] = mask_BT[:, 1:]
    return keep_BT


def _padded(rows: Sequence[np.ndarray], width: int, dtype: torch.dtype) -> torch.Tensor:
    padded = torch.zeros(len(rows), width, dtype=dtype)
    for index, values in enumerate(rows):
        padded[index, : len(values)] = torch.as_tensor(values)
    return padded


def _public(answer_tokens: int) -> Row:
    ids = [0, 1, *(index % 3 for index in range(answer_tokens))]
    mask = [False, False] + [True] * answer_tokens
    return Row(
        token_ids=np.array(ids, dtype=np.int64),
        mask=np.array(mask, dtype=np.bool_),
        weights=np.ones(len(ids), dtype=np.float32),
        logprobs=np.zeros(len(ids), dtype=np.float32),
        name=f"public {answer_tokens}",
        known={
            name: np.full(len(ids), -1.0, dtype=np.float32)
            for name in ("base", "first", "old", "old_value", "reference", "teacher")
        },
    )


PROBE_ROWS: Final = (_public(3), _public(7))
"""Two made-up rows of low token ids, which every vocabulary has."""
PROBE: Final = as_batch(PROBE_ROWS)
"""The same as a batch."""
