"""Drawing tokens so that a conversation does not depend on its neighbours.

Each draw uses one uniform number that is a hash of (seed, conversation key, token position), put
through the inverse of the cumulative distribution. A conversation therefore samples the same tokens
whatever batch it is played in, up to rounding in the model itself.

This is reproducible pseudo-randomness for play, not for keys or noise.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["draw", "seeds", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def uniforms(seed: int, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One uniform number in [0, 1) per conversation key and token position.

    Doubles with 53 random bits; the seed is taken modulo 2⁶⁴.
    """
    words = _words(seed, keys, positions)
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def seeds(seed: int, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One seed per conversation key and token position, for an engine that draws elsewhere.

    Integers in [0, 2⁶³), as int64; the seed is taken modulo 2⁶⁴.
    """
    return np.asarray((_words(seed, keys, positions) >> np.uint64(1)).astype(np.int64))


def _words(seed: int, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    state = np.full(keys.shape, seed & _MASK, dtype=np.uint64)
    for part in (keys, positions):
        state = _mix(state * _GOLDEN ^ _mix(part.astype(np.uint64) + _GOLDEN))
    return state


def _mix(x: np.ndarray) -> np.ndarray:
    # The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 16).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def draw(
    logits_BV: torch.Tensor, temperature: float, uniform_B: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of scores, with one uniform number each; temperature 0 is greedy.

    Returns the tokens, and their natural-log probabilities under the distribution that they were
    drawn from: at this temperature, and 0 for every token where it is greedy.
    """
    logits_BV = logits_BV.float()
    if temperature == 0:
        tokens = logits_BV.argmax(dim=-1)
        return tokens, torch.zeros_like(logits_BV[:, 0])
    logits_BV = logits_BV / temperature
    weights = torch.softmax(logits_BV, dim=-1).double().cumsum(dim=-1)
    target = torch.from_numpy(uniform_B)[:, None].to(weights.device) * weights[:, -1:]
    tokens = torch.searchsorted(weights, target, right=True)[:, 0]
    tokens = tokens.clamp_max(logits_BV.shape[-1] - 1)
    logprobs = torch.log_softmax(logits_BV, dim=-1).gather(-1, tokens[:, None])[:, 0]
    return tokens, logprobs
