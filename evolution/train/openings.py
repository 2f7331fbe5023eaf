"""What a pass's rows open with alike, computed once.

Tries at one task share its prompt, and tries at any tasks of an environment its instruction and its
example turns: often most of a row. Where no loss looks at it, the model reads the opening once, and
each row goes on from the same keys and values. Their gradients add up over the rows, so what is
computed is the gradient of the whole, up to rounding.

Covered: a pass in one process, for a model that goes on from a cache (``goes_on``). Not covered:
recomputed activations, several processes, record-level gradients: each reads every row whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from evolution.train.loss import PROBE, positions_before

__all__ = ["goes_on", "reads_openings_once"]

_LEAST_SAVED: Final = 256
"""Tokens below which a second pass costs more than it saves."""


def reads_openings_once(
    model: Callable[..., Any], *, least: int = _LEAST_SAVED
) -> Callable[..., Any]:
    """The model, asked as ``evolution/train/loss.py`` asks it for the logits of B×T positions."""

    def read(
        *, input_ids: torch.Tensor, use_cache: bool, logits_to_keep: torch.Tensor | int = 0
    ) -> Any:
        shared = _shared(input_ids, logits_to_keep)
        if shared * (len(input_ids) - 1) < least:
            return model(input_ids=input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep)
        opening = model(input_ids=input_ids[:1, :shared], use_cache=True, logits_to_keep=1)
        cache = opening.past_key_values
        cache.batch_repeat_interleave(len(input_ids))
        return model(
            input_ids=input_ids[:, shared:],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep[:, shared:],  # type: ignore[index]  # no number: see _shared
        )

    return read


def _shared(ids_BT: torch.Tensor, keep_BT: torch.Tensor | int) -> int:
    """The leading columns that are the same in all rows, before any whose logits are asked for."""
    if isinstance(keep_BT, int):
        return 0
    alike_T = (ids_BT == ids_BT[:1]).all(dim=0) & ~keep_BT.any(dim=0)
    return int(alike_T.long().cumprod(dim=0).sum())


@torch.no_grad()
def goes_on(model: Callable[..., Any], device: torch.device | str) -> bool:
    """Whether a model says the same when it reads an opening once, tried on public rows.

    It has to compute only the logits it is asked for (``loss.keeps_agent_logits``).
    """
    probe = PROBE.to(device)
    keep_BT = positions_before(probe.mask)
    whole = model(input_ids=probe.ids, use_cache=False, logits_to_keep=keep_BT).logits
    try:
        once = reads_openings_once(model, least=1)(
            input_ids=probe.ids, use_cache=False, logits_to_keep=keep_BT
        ).logits
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):
        return False
    # As there: 16-bit weights may round otherwise, another position is far off.
    gap = float((once.float() - whole.float()).abs().max())
    return gap <= 0.02 * float(whole.float().abs().max())
