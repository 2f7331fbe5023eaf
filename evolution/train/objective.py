"""What an objective is: the loss of a row, token by token, and what it may look at.

An objective gets one row at a time: a ``TokenOut`` of what the model says about the row's tokens
and a ``RowTensors`` of what is known of them. It returns one number a token, to be minimised and
un-normalised; the trainer adds them up and divides (``evolution/train/loop.py``,
``dp.steps.grads``). Tokens outside the mask count as nothing whatever it returns for them. Only
operations of torch that ``torch.func.vmap`` takes may be used.

    logprob      log π(x_t | x_<t) under the present factors
    old          the same before the training's first step
    reference    the same under the anchor: the adapter that the round was given
    base         the same under the base model without an adapter
    first        the same at the row's first pass of this training, without gradient
    entropy      of the distribution that the token was predicted from, in nats
    top(k)       log-probabilities and ids of its k likeliest tokens

``old``, ``reference``, ``first`` and ``base`` are there where the objective asks for them. Where
units are protected the first three are under the released adapter that the round, or the step,
began with. Where the card says ``tempered``, all of it, entropy and likeliest tokens too, is of the
distribution at the temperature that tries are played at, else at 1.

An objective that has ``figures`` is asked for them when the training is over: numbers for the
silo's own operator, of the tokens that its terms were asked for. Where units are protected it is
made anew for each row, and nobody asks.

A ``Batchwise`` objective gets a whole mini-batch, and so couples all units: it runs only where none
is protected, in one process and without micro-batches.

Covered: the seam. Not covered: a value head, which nothing here has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from evolution.errors import EvolverSetupError

__all__ = ["Batchwise", "Objective", "RowTensors", "TokenOut"]


class RowTensors(NamedTuple):
    """What is known of a row's predicted tokens; each of length L."""

    mask: torch.Tensor
    """Boolean: the tokens that the objective is about."""
    weights: torch.Tensor
    """The credit's weight of each token, float32."""
    logprobs: torch.Tensor
    """The behaviour policy's log-probability of each token; zero where it sampled none."""


class TokenOut:
    """What a model says about a row's predicted tokens; see the module."""

    def __init__(
        self, logprob: torch.Tensor, logits: torch.Tensor, known: Mapping[str, torch.Tensor]
    ) -> None:
        """Hold log-probabilities of length L and logits L×V; ``known`` is without gradient."""
        self.logprob = logprob
        self._logits = logits
        self._known = known

    @property
    def old(self) -> torch.Tensor:
        """See the module."""
        return self._of("old")

    @property
    def reference(self) -> torch.Tensor:
        """See the module."""
        return self._of("reference")

    @property
    def first(self) -> torch.Tensor:
        """See the module."""
        return self._of("first")

    @property
    def base(self) -> torch.Tensor:
        """See the module."""
        return self._of("base")

    @property
    def entropy(self) -> torch.Tensor:
        """See the module."""
        logp = torch.log_softmax(self._logits.float(), dim=-1)
        return -(logp.exp() * logp).sum(dim=-1)

    def top(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and token ids, each L×k; see the module."""
        found = torch.log_softmax(self._logits.float(), dim=-1).topk(k, dim=-1)
        return found.values, found.indices

    def _of(self, name: str) -> torch.Tensor:
        if name not in self._known:
            raise EvolverSetupError(f"the objective's card does not say that it needs {name!r}")
        return self._known[name]


@runtime_checkable
class Objective(Protocol):
    """The loss of one row."""

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """One number for each of the row's predicted tokens."""


class Batchwise(ABC):
    """The loss of a mini-batch; a class of its own, so that nobody takes one for the other."""

    @abstractmethod
    def batch_terms(self, outs: Sequence[TokenOut], rows: Sequence[RowTensors]) -> torch.Tensor:
        """Numbers whose sum is the mini-batch's loss before it is divided."""
