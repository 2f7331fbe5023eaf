"""The gradient of each unit on its own: what DP-SGD clips.

A unit u is a set of rows (training sequences). With all its own tokens that count in one mean,

    ℓ_u = Σ_{rows of u} Σ_{tokens of the row} term  /  number of such tokens of u,

or with their sum divided by a public constant, ``divisor``, ``unit_gradients`` yields −∇ℓ_u for
every unit: a direction of descent, float32, flat in the order of the given parameters. A unit
without such a token yields zeros.

Invariants:

1. A unit's vector is a function of the model and of that unit's rows. ``LoopBackend`` computes one
   unit at a time, no more than 16 of its rows at once: no other unit can change a bit.
   ``HooksBackend`` and ``FunctorchBackend`` compute several rows at once, in batches of whatever
   shape comes: there a neighbour may change the last bits of a float32. The default,
   ``dp.steps.fixed``, has fixed shapes and tests that nobody's bits change in them.
2. A loss gives a sum and a count per row. One number for a batch is refused, and so is a model that
   ties rows together: batch norm and dropout in training mode by inspection, anything else because
   a row's gradient is compared alone and beside another row when a backend is made. The rows of
   that check are the caller's public ones; it never reads private data.
3. Parameters are float32 and so is every gradient, whatever the base model is held in. Nothing is
   clipped here; the clip acts on float32 and is checked in integers (``dp.noise.unit_sum``).

    backend     rows at once    parameters                        several rows share
    loop        of one unit     any                               nothing
    fixed       a chunk         as hooks, else as loop            shapes, which are tested
    hooks       a chunk         weights of ``torch.nn.Linear``     a batched matrix product
    functorch   a chunk         any                               a vectorised backward

Hooks: with x the input of a linear layer and y its output, the gradient of row b with respect to
the weight is Σ_t (∂ℓ_b/∂y_bt) x_btᵀ (Goodfellow, arXiv 1510.01799, §3, for sequences). The sum over
the batch is never formed.

Covered: adapters on a frozen base, sequences of any length, several rows per unit.
Not covered: ghost clipping; embeddings and biases in ``hooks``; layers that mix rows.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.func import functional_call, grad, vmap

from dp.errors import CouplingError, SpecError
from dp.steps.low_rank import add_per_row, pairs_in

__all__ = [
    "MOST_COORDINATES",
    "FunctorchBackend",
    "GradientBackend",
    "HooksBackend",
    "LoopBackend",
    "RowLoss",
    "Vector",
]

RowT = TypeVar("RowT")
RowT_contra = TypeVar("RowT_contra", contravariant=True)
Vector = npt.NDArray[np.float32]

_CHUNK_TOKENS: Final = 2048
"""Tokens computed at once, padding included; more gains nothing on a CPU."""
_UNIT_ROWS: Final = 16
"""Rows of one unit computed at once."""
MOST_COORDINATES: Final = 1 << 26
"""Coordinates of all rows computed at once: 256 MiB of float32."""
_LOSS_SHAPES: Final = "a loss gives a sum and a count for each row, not one number for the batch"


def _chunks(
    rows: Iterable[RowT], length: Callable[[RowT], int], *, most_rows: int
) -> Iterator[list[RowT]]:
    """The rows in their order, as many at once as the limits allow, padding included."""
    chunk: list[RowT] = []
    width = 0
    for row in rows:
        width = max(width, length(row))
        if chunk and ((len(chunk) + 1) * width > _CHUNK_TOKENS or len(chunk) == most_rows):
            yield chunk
            chunk, width = [], length(row)
        chunk.append(row)
    if chunk:
        yield chunk


class RowLoss(Protocol[RowT_contra]):
    """How rows become a loss."""

    def length(self, row: RowT_contra) -> int:
        """Tokens of a row; rows of equal length need no padding."""

    def collate(self, rows: Sequence[RowT_contra]) -> tuple[torch.Tensor, ...]:
        """Tensors of rows × tokens; zeros pad a row on the right, and are no token of it."""

    def sums(
        self, model: Callable[..., Any], *batch: torch.Tensor, alone: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of each row's terms, and how many tokens they are about.

        ``alone`` says that no row of another unit is in the batch: what is asked of the model may
        then depend on all of it.
        """


class GradientBackend(ABC, Generic[RowT]):
    """A model, a loss and the parameters to differentiate by; see the module."""

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        loss: RowLoss[RowT],
        probe: Sequence[RowT],
        divisor: float | None = None,
    ) -> None:
        """Check that rows stand apart, on a probe of two public rows of different lengths.

        The backend holds on to the model, which is in evaluation mode. The parameters are float32,
        in the order of the flat vector, and each requires a gradient. A unit's terms are divided by
        their number, or by ``divisor``, a public number.

        Raises:
            CouplingError: If one row's gradient depends on another row.
            SpecError: If the parameters or the probe cannot be used.
        """
        if not parameters:
            raise SpecError("there is no parameter to train")
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32 or not parameter.requires_grad:
                raise SpecError(f"{name} must be a float32 parameter that requires a gradient")
        self._model = model
        self._parameters = list(parameters.values())
        self._slices: list[slice] = []
        start = 0
        for parameter in self._parameters:
            self._slices.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        self.dimension: int = start
        self._loss = loss
        if divisor is not None and not 0.0 < divisor < float("inf"):
            raise SpecError(f"a unit's terms are divided by a positive number, not {divisor!r}")
        self._divisor = divisor
        _require_no_batch_state(model)
        self._require_apart(probe)

    def longest(self, rows: Sequence[RowT]) -> int:
        """Tokens of a unit's longest row; units of similar length waste least when adjacent."""
        return max(map(self._loss.length, rows), default=0)

    @abstractmethod
    def unit_gradients(self, units: Sequence[Sequence[RowT]]) -> Iterator[Vector]:
        """Yield −∇ℓ_u for every unit, in the order given; each array is the caller's to keep."""

    @property
    def one_by_one(self) -> str:
        """What is computed one unit at a time without having been asked for, and why; or empty."""
        return ""

    def renew(self) -> None:  # most backends find nothing out as they go
        """Find out again whatever was found out about libraries and machine on the way."""

    def _sums(
        self,
        model: Callable[..., Any],
        batch: Sequence[torch.Tensor],
        rows: int,
        *,
        alone: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sums_B, counts_B = self._loss.sums(model, *batch, alone=alone)
        if sums_B.shape != (rows,) or counts_B.shape != (rows,):
            raise CouplingError(_LOSS_SHAPES)
        if counts_B.dtype.is_floating_point:
            raise CouplingError("the count of a row's tokens is an integer")
        return sums_B, counts_B

    def _require_apart(self, probe: Sequence[RowT]) -> None:
        if len(probe) < 2 or self._loss.length(probe[0]) == self._loss.length(probe[1]):
            raise SpecError("the coupling check needs two rows of different lengths")
        first, second = probe[:2]
        # Where the other factor is zero the gradient is too, so the sum itself is compared as well.
        gradient, nll, count = self._probe_row([first], 0)
        # A 16-bit base rounds differently in batches of other shapes; coupling is far larger.
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in self._model.parameters())
        allowed = 0.05 if half else 1e-4
        for rows, index in (([first], 0), ([first, second], 0), ([second, first], 1)):
            other, other_nll, other_count = self._probe_row(rows, index)
            if (
                other_count != count
                or not abs(other_nll - nll) <= allowed * abs(nll)
                or not float((other - gradient).norm()) <= allowed * float(gradient.norm())
            ):
                raise CouplingError("a row's gradient changes with the rows beside it")
        (own,) = self.unit_gradients([[first]])
        expected = -gradient / self._by(max(1, count))
        if not float((torch.from_numpy(own) - expected).norm()) <= allowed * float(expected.norm()):
            raise SpecError("this backend misses a part of the gradient: use the loop backend")

    def _summed(self, rows: Iterable[tuple[int, Vector, int]], units: int) -> Iterator[Vector]:
        """−∇ℓ_u of so many units, from the number of the unit of each row, ascending, the row's −∇
        and its count.
        """  # noqa: D205  # one sentence
        current, tokens = 0, 0
        total: Vector | None = None
        for index, gradient, count in rows:
            while current < index:
                yield self._finished(total, tokens)
                current, tokens, total = current + 1, 0, None
            # The row may be a part of a matrix: whoever kept it would keep all of that.
            total = gradient.copy() if total is None else np.add(total, gradient, out=total)
            tokens += count
        while current < units:
            yield self._finished(total, tokens)
            current, tokens, total = current + 1, 0, None

    def _finished(self, total: Vector | None, tokens: int) -> Vector:
        if total is None or not tokens:
            return np.zeros(self.dimension, dtype=np.float32)
        return np.divide(total, np.float32(self._by(tokens)), out=total)

    def _by(self, tokens: int) -> float:
        """What a unit of so many tokens is divided by."""
        return tokens if self._divisor is None else self._divisor

    def _probe_row(self, rows: Sequence[RowT], index: int) -> tuple[torch.Tensor, float, int]:
        sums_B, counts_B = self._sums(self._model, self._loss.collate(rows), len(rows))
        gradients = torch.autograd.grad(sums_B[index], self._parameters, allow_unused=True)
        flat = torch.zeros(self.dimension)
        for gradient, part in zip(gradients, self._slices, strict=True):
            if gradient is not None:
                flat[part] = gradient.reshape(-1)
        return flat, float(sums_B[index].detach()), int(counts_B[index])


class LoopBackend(GradientBackend[RowT]):
    """One unit at a time; the reference for the others."""

    def unit_gradients(self, units: Sequence[Sequence[RowT]]) -> Iterator[Vector]:
        """Yield −∇ℓ_u for every unit; backward adds into the yielded array itself."""
        for rows in units:
            flat = torch.zeros(self.dimension)
            tokens = 0
            try:
                for parameter, part in zip(self._parameters, self._slices, strict=True):
                    parameter.grad = flat[part].view_as(parameter)
                by_length = sorted(rows, key=self._loss.length)
                for batch in _chunks(by_length, self._loss.length, most_rows=_UNIT_ROWS):
                    tensors = self._loss.collate(batch)
                    sums_B, counts_B = self._sums(self._model, tensors, len(batch), alone=True)
                    torch.autograd.backward(-sums_B.sum(), inputs=self._parameters)
                    tokens += int(counts_B.sum())
            finally:
                for parameter in self._parameters:
                    parameter.grad = None
            if tokens:
                flat /= self._by(tokens)
            yield flat.numpy()


class _ChunkedBackend(GradientBackend[RowT]):
    """Rows of several units at once; the sums over a unit's rows are formed afterwards."""

    @abstractmethod
    def row_gradients(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """−∇ of the sum of each collated row, one row of the matrix each, and the counts."""

    def unit_gradients(self, units: Sequence[Sequence[RowT]]) -> Iterator[Vector]:
        """Yield −∇ℓ_u for every unit."""
        return self._summed(self._computed(units), len(units))

    def _computed(self, units: Sequence[Sequence[RowT]]) -> Iterator[tuple[int, Vector, int]]:
        listed = [(index, row) for index, rows in enumerate(units) for row in rows]
        most_rows = max(1, MOST_COORDINATES // self.dimension)
        for chunk in _chunks(listed, lambda one: self._loss.length(one[1]), most_rows=most_rows):
            matrix, counts = self.row_gradients(self._loss.collate([row for _, row in chunk]))
            gradients = matrix.detach().numpy()
            for (index, _), gradient, count in zip(chunk, gradients, counts, strict=True):
                yield index, gradient, count


class HooksBackend(_ChunkedBackend[RowT]):
    """Inputs and output gradients of linear layers, multiplied row by row; a low-rank pair beside
    a frozen layer in one step (``dp.steps.low_rank``).
    """  # noqa: D205  # one sentence

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        loss: RowLoss[RowT],
        probe: Sequence[RowT],
        divisor: float | None = None,
    ) -> None:
        """Find the layers; see ``GradientBackend`` for the arguments.

        Raises:
            SpecError: If a parameter is not the weight of exactly one linear layer.
        """
        owners: dict[int, list[torch.nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                owners.setdefault(id(parameter), []).append(module)
        # Looking for them through all layers takes a tenth of a short pass.
        self._all_parameters = list(model.parameters())
        self._pairs = pairs_in(model, parameters.values())
        taken = {id(one) for pair in self._pairs for one in (pair.A, pair.B)}
        self._layers: list[tuple[torch.nn.Linear, torch.nn.Parameter]] = []
        for name, parameter in parameters.items():
            match owners.get(id(parameter)):
                case [torch.nn.Linear() as layer] if layer.weight is parameter:
                    if id(parameter) not in taken:
                        self._layers.append((layer, parameter))
                case _:
                    raise SpecError(
                        f"{name} is not the weight of one linear layer: use the loop backend"
                    )
        super().__init__(
            model=model, parameters=parameters, loss=loss, probe=probe, divisor=divisor
        )

    def row_gradients(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """−∇ of the sum of each collated row, and the counts."""
        rows = len(batch[0])
        matrix = torch.zeros(rows, self.dimension)

        def watch(
            into: torch.Tensor,
        ) -> Callable[[torch.nn.Module, tuple[Any, ...], torch.Tensor], None]:
            def on_forward(
                _layer: torch.nn.Module, inputs: tuple[Any, ...], output: torch.Tensor
            ) -> None:
                x = inputs[0].detach()
                if len(x) != rows:
                    raise CouplingError("a layer does not keep the rows of a batch apart")

                def on_backward(by_output: torch.Tensor) -> None:
                    by_y_BTO = by_output.float().reshape(rows, -1, by_output.shape[-1])
                    add_per_row(into, by_y_BTO, x.float().reshape(rows, -1, x.shape[-1]))

                # With every parameter frozen, the first layers are where the graph begins.
                output.requires_grad_()
                output.register_hook(on_backward)  # type: ignore[no-untyped-call]  # untyped in torch

            return on_forward

        into = {
            id(parameter): matrix[:, part]
            for parameter, part in zip(self._parameters, self._slices, strict=True)
        }
        trained = [p for p in self._all_parameters if p.requires_grad]
        with ExitStack() as watched:
            for layer, parameter in self._layers:
                handle = layer.register_forward_hook(watch(into[id(parameter)]))
                watched.callback(handle.remove)
            for pair in self._pairs:
                by = (into.get(id(pair.A)), into.get(id(pair.B)))
                watched.enter_context(pair.watched(rows, *by))
            # Frozen weights: backward reaches every output and forms no sum over the batch.
            for parameter in trained:
                watched.callback(parameter.requires_grad_)
                parameter.requires_grad_(False)
            sums_B, counts_B = self._sums(self._model, batch, rows)
        if sums_B.requires_grad:
            torch.autograd.backward(-sums_B.sum())
        return matrix, counts_B.tolist()


class FunctorchBackend(_ChunkedBackend[RowT]):
    """``torch.func``: the backward of one row, vectorised over rows."""

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        loss: RowLoss[RowT],
        probe: Sequence[RowT],
        divisor: float | None = None,
    ) -> None:
        """Find the parameters' names in the model; see ``GradientBackend`` for the arguments.

        Raises:
            SpecError: If a parameter is not in the model exactly once.
        """
        paths: dict[int, list[str]] = {}
        for path, parameter in model.named_parameters(remove_duplicate=False):
            paths.setdefault(id(parameter), []).append(path)
        for name, parameter in parameters.items():
            # A shared module would be left holding the traced values instead of its own.
            if len(paths.get(id(parameter), [])) != 1:
                raise SpecError(
                    f"{name} is not a parameter of exactly one place in the model: use the loop "
                    "backend"
                )
        names = {key: found[0] for key, found in paths.items()}
        self._names = [names[id(parameter)] for parameter in parameters.values()]
        super().__init__(
            model=model, parameters=parameters, loss=loss, probe=probe, divisor=divisor
        )

    def row_gradients(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """−∇ of the sum of each collated row, and the counts."""

        def one_row(
            values: dict[str, torch.Tensor], *row: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            def model(**inputs: Any) -> Any:
                return functional_call(self._model, values, (), inputs)

            sums_B, counts_B = self._sums(model, [tensor[None] for tensor in row], 1)
            return -sums_B[0], counts_B[0]

        values = {
            name: parameter.detach()
            for name, parameter in zip(self._names, self._parameters, strict=True)
        }
        with warnings.catch_warnings():
            # Attention has no batching rule on CPU and runs row by row; that is known and measured.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            per_row, counts_B = vmap(
                grad(one_row, has_aux=True), in_dims=(None, *(0 for _ in batch))
            )(values, *batch)
        flat = [per_row[name].reshape(len(batch[0]), -1) for name in self._names]
        return torch.cat(flat, dim=1), counts_B.tolist()


def _require_no_batch_state(model: torch.nn.Module) -> None:
    """Refuse layers whose training mode mixes rows or draws randomness."""
    for name, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  # the base of all batch norms has no public name
            raise CouplingError(f"{name} is batch norm in training mode: it mixes the rows")
        for attribute in ("p", "dropout", "attention_dropout", "hidden_dropout"):
            chance = getattr(module, attribute, None)
            if isinstance(chance, float) and chance > 0:
                raise CouplingError(f"{name} has dropout in training mode: switch it off")
