"""One noisy optimiser step over the units of a silo, and the sum that a shared step needs.

    S ~ Poisson(q) over the population          G = (C/Δ)/B̄ · (Σ_{u∈S} enc(g_u) + N_Z(0, (zΔ)²))

enc clips to C and rounds to the integer grid of Δ steps (``dp.noise.unit_sum``); this is DP-SGD
(Abadi et al., arXiv 1607.00133, Algorithm 1) with a discrete Gaussian in place of the continuous
one. q, B̄, z, C and Δ come from the plan; no number of the data is a normaliser.

Ordered invariants of a step:

1. The noise is drawn first, from a source of its own. Nothing about the data decides whether, when
   or how much of it is drawn.
2. A step of the receipt is taken before any unit is read: whatever fails afterwards, it is spent.
3. The sample is drawn from the whole population, of which units without rows are members: their
   gradient is zero, and they count against B_max. More than B_max fails the step with nothing
   returned; the probability of that is part of δ.
4. An empty sample is a step like any other: pure noise.
5. A unit whose gradient cannot be computed counts as one and contributes nothing (``null_units``).
   The others stay in the sum: whatever one unit's rows do, the sum moves by at most C. A failure
   that costs every unit its gradient is one of the machine or of the configuration.

Covered: ``record_local`` (``DpStep``) and the silo's side of ``record_distributed`` (``unit_sum``,
whose noise and receipt are ``NoiseShare``'s). No torch: gradients come from a backend.
Not covered: where gradients come from (``dp.steps.grads``), the optimiser, the accounting
(``dp.accounting.charge``, ``dp.ledger.ledger``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import NormExceededError, ReceiptError, SpecError, TooManyUnitsError
from dp.ledger.receipt import TrainingReceipt
from dp.noise.grid import Grid
from dp.noise.share import add_noise, no_wrap, per_silo_sigma
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from dp.steps.units import UnitId, poisson_sample

__all__ = ["DpStep", "UnitGradients", "require_exact", "unit_sum"]

RowT = TypeVar("RowT")
RowT_contra = TypeVar("RowT_contra", contravariant=True)
Vector = npt.NDArray[np.float32]

_TILE: Final = 1 << 16


class UnitGradients(Protocol[RowT_contra]):
    """What a step asks of a gradient backend (``dp.steps.grads``)."""

    dimension: int
    """Length of the vectors."""

    def longest(self, rows: Sequence[RowT_contra]) -> int:
        """Tokens of a unit's longest row."""

    def unit_gradients(self, units: Sequence[Sequence[RowT_contra]]) -> Iterator[Vector]:
        """−∇ℓ_u for every unit."""


def require_exact(spec: PrivacySpec, dimension: int) -> None:
    """Check, without data, that the steps of a spec can be taken exactly.

    Raises:
        SpecError: If the spec has no record settings or is too coarse for the dimension.
        RingOverflowError: If a step inside a silo could leave the 32-bit integers.
    """
    record = _record_of(spec)
    Grid(clip_l2=spec.clip_l2, steps=spec.grid, dimension=dimension)
    if spec.mode is Mode.RECORD_LOCAL:
        no_wrap(1, record.max_units, spec.grid, _sigma_alone(spec))


def unit_sum(
    population: Sequence[UnitId],
    rows_of: Mapping[UnitId, Sequence[RowT]],
    *,
    spec: PrivacySpec,
    dimension: int,
    backend: UnitGradients[RowT],
) -> UnitSum:
    """Draw a fresh sample and add up its clipped gradients, without noise.

    The population is every unit that may be sampled, with rows or without; the spec is the plan's,
    with record settings. The integers can only be added to noise, never read as floats.

    Raises:
        TooManyUnitsError: If the sample holds more than B_max units.
        SpecError: If the spec has no record settings or the backend another dimension.
    """
    record = _record_of(spec)
    if backend.dimension != dimension:
        raise SpecError(f"the backend has {backend.dimension} coordinates, expected {dimension}")
    total = UnitSum(
        Grid(clip_l2=spec.clip_l2, steps=spec.grid, dimension=dimension),
        max_units=record.max_units,
    )
    sample = poisson_sample(population, record.sampling_rate, NoiseSource.fresh("unit sample"))
    if len(sample) > record.max_units:
        # Units without rows count as well, or the failure would tell how many units have none.
        raise TooManyUnitsError(f"a step sampled more than {record.max_units} units")
    measured: list[tuple[int, Sequence[RowT]]] = []
    for unit in sample:
        rows = rows_of.get(unit)
        if rows:
            try:
                measured.append((backend.longest(rows), rows))
            except Exception:  # noqa: BLE001  # rows are data: what they raise is their unit's alone
                _add_null(total)
    # The sum of integers does not depend on the order; similar lengths waste least padding.
    measured.sort(key=lambda entry: entry[0])
    _add_gradients(total, [rows for _, rows in measured], backend)
    return total


def _add_gradients(
    total: UnitSum, units: Sequence[Sequence[RowT]], backend: UnitGradients[RowT]
) -> None:
    """Add every unit's gradient; a unit that fails by itself is null and ends no other."""
    done = 0
    try:
        for gradient in backend.unit_gradients(units):
            total.add(gradient)
            done += 1
    except (TooManyUnitsError, NormExceededError, ReceiptError):
        # The sum itself is over, and no gradient did that.
        raise
    except Exception:  # noqa: BLE001  # one of the rest failed: which one shows when each is alone
        rest = units[done:]
    else:
        return
    for rows in rest:
        try:
            (gradient,) = backend.unit_gradients([rows])
            total.add(gradient)
        except (TooManyUnitsError, NormExceededError, ReceiptError):
            raise
        except Exception:  # noqa: BLE001  # raising for everybody would tell of this unit's data
            _add_null(total)


def _add_null(total: UnitSum) -> None:
    """Count a unit without a gradient: a vector that is not finite contributes nothing."""
    total.add(np.full(total.grid.dimension, np.nan, dtype=np.float32))


class DpStep(Generic[RowT]):
    """The noisy steps of one local training, as many as its receipt has."""

    __slots__ = ("_backend", "_dimension", "_null_units", "_receipt", "_record", "_sigma")

    def __init__(
        self, *, receipt: TrainingReceipt, dimension: int, backend: UnitGradients[RowT]
    ) -> None:
        """Check that the steps, which the ledger's receipt names and limits, can be exact.

        Raises:
            SpecError: If the spec is of another mode or too coarse for the dimension.
            RingOverflowError: If a step could leave the 32-bit integers.
            ReceiptError: If the receipt is not one.
        """
        if type(receipt) is not TrainingReceipt:
            raise ReceiptError("training takes a receipt of the ledger")
        spec = receipt.spec
        if spec.mode is not Mode.RECORD_LOCAL:
            raise SpecError(f"mode {spec.mode.value!r} has no noisy steps inside a silo")
        require_exact(spec, dimension)
        self._receipt = receipt
        self._record = _record_of(spec)
        self._sigma = _sigma_alone(spec)
        self._dimension = dimension
        self._backend = backend
        self._null_units = 0

    @property
    def null_units(self) -> int:
        """Units so far whose gradient failed or was not finite; never leaves the silo."""
        return self._null_units

    def gradient(
        self, population: Sequence[UnitId], rows_of: Mapping[UnitId, Sequence[RowT]]
    ) -> Vector:
        """Take one step on a sample of the population, every unit with rows or without.

        It is a direction of descent, protected; everything made of it is post-processing.

        Raises:
            TooManyUnitsError: If the sample holds more than B_max units; the step is spent.
            ReceiptError: If the reserved steps are used up.
        """
        noisy = np.zeros(self._dimension, dtype=np.uint32)
        add_noise(noisy, self._sigma, NoiseSource.fresh("training step"))
        self._receipt.take_step()
        spec = self._receipt.spec
        total = unit_sum(
            population, rows_of, spec=spec, dimension=self._dimension, backend=self._backend
        )
        self._null_units += total.null_units
        total.add_to(noisy)
        per_step = spec.clip_l2 / spec.grid / self._record.expected_units
        signed = noisy.view(np.int32)
        result = np.empty(self._dimension, dtype=np.float32)
        for start in range(0, result.size, _TILE):
            part = slice(start, start + _TILE)
            # The product is taken in float64 and rounded once.
            result[part] = signed[part].astype(np.float64) * per_step
        return result

    def __repr__(self) -> str:
        return f"<DpStep d={self._dimension} steps_left={self._receipt.steps_left}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ReceiptError("a training step cannot be copied or stored")


def _sigma_alone(spec: PrivacySpec) -> float:
    """One honest party adds all the noise: σ = zΔ, rounded up, and at least 4 grid steps."""
    return per_silo_sigma(spec.noise_multiplier, spec.grid, 1, 1, 0)


def _record_of(spec: PrivacySpec) -> RecordSpec:
    if spec.record is None:
        raise SpecError(f"mode {spec.mode.value!r} has no record settings")
    return spec.record
