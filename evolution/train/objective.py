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
    value        V(x_<t) of the value head, with its gradient; how it is made and how far back that
                 gradient reaches: ``evolution/model/value_head.py``
    old_value    the same before the training's first step, without
    teacher      log-probability of each token after a teacher's opening (``Row.taught_ids``)

``old``, ``reference``, ``first``, ``base``, ``teacher`` and the values are there where the
objective asks for them. Where units are protected all but ``base`` and ``value`` are under the
released adapter that the round, or the step, began with. Where the card says ``tempered``, all of
it, entropy and likeliest tokens too, is of the distribution at the temperature that tries are
played at, else at 1.

Before each step the trainer tells a ``BasePart`` its ``progress`` (``evolution/part.py``).

An objective whose class names ``watches`` is given a ``Watch`` where nobody is protected, and notes
in it what the silo's own operator wants to see of a training.

A ``Batchwise`` objective gets a whole mini-batch, and so couples all units: it runs only where none
is protected, in one process, without micro-batches, and under a normaliser that takes all rows of
a mini-batch alike.

Covered: the seam. Not covered: more than one value for a token.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from evolution.errors import EvolverSetupError

__all__ = ["Batchwise", "Objective", "RowTensors", "TokenOut", "Watch"]


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
        self,
        logprob: torch.Tensor,
        logits: torch.Tensor,
        known: Mapping[str, torch.Tensor],
        value: torch.Tensor | None = None,
    ) -> None:
        """Hold log-probabilities of length L and logits L×V; ``known`` is without gradient."""
        self.logprob = logprob
        self._logits = logits
        self._known = known
        self._value = value

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
    def value(self) -> torch.Tensor:
        """See the module."""
        if self._value is None:
            raise EvolverSetupError("the objective needs a value, and the model has no value head")
        return self._value

    @property
    def teacher(self) -> torch.Tensor:
        """See the module."""
        return self._of("teacher")

    @property
    def old_value(self) -> torch.Tensor:
        """See the module."""
        return self._of("old_value")

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


class Watch:
    """Figures of a training, over the tokens of all its passes; see the module.

    Means, but for names that end in ``_max`` or ``_min``. The names are fixed, so that processes
    that share a training can put theirs together.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Note nothing yet."""
        self._sums = {name: 0.0 for name in names if not _extreme(name)}
        self._counts = dict.fromkeys(self._sums, 0.0)
        self._most = {name: -math.inf for name in names if _extreme(name)}
        self.paused = False
        """Whether a pass is made-up rows."""
        self.first_step = True
        """Whether no step has been taken: the policy is the one that played, as far as engine and
        trainer agree."""

    @torch.no_grad()
    def note(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Note one value a token; those outside the mask count as nothing."""
        if self.paused:
            return
        kept = values.detach()[mask].double()
        if name in self._most:
            if len(kept):
                found = float(-kept.min() if name.endswith("_min") else kept.max())
                self._most[name] = max(self._most[name], found)
            return
        self._sums[name] += float(kept.sum())
        self._counts[name] += len(kept)

    def figures(
        self,
        total: Callable[[torch.Tensor], torch.Tensor],
        greatest: Callable[[torch.Tensor], torch.Tensor],
    ) -> dict[str, float]:
        """All of them, over all processes; what no token was noted for is left out."""
        names, extremes = sorted(self._sums), sorted(self._most)
        sums = [*(self._sums[name] for name in names), *(self._counts[name] for name in names)]
        summed = total(torch.tensor(sums, dtype=torch.float64)).tolist()
        most = greatest(
            torch.tensor([self._most[name] for name in extremes], dtype=torch.float64)
        ).tolist()
        found = {
            name: value / count
            for name, value, count in zip(names, summed, summed[len(names) :], strict=False)
            if count
        }
        for name, value in zip(extremes, most, strict=True):
            if value > -math.inf:
                found[name] = -value if name.endswith("_min") else value
        return found


def _extreme(name: str) -> bool:
    return name.endswith(("_max", "_min"))


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
