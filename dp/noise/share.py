"""One silo's share of a release: its noise, then its encoded vector, in the ring Z_2^32.

Ordered invariants of one release:
    1. The noise is drawn into the output buffer first, from a source that serves this release
       only. Nothing about the data decides whether, when or how much noise is drawn.
    2. The data are checked and their clip is settled (``dp.noise.grid``,
       ``dp.noise.metrics_block``). A non-finite vector raises here, before the receipt is touched,
       and the same share can then be finished with ``delta=None``: zeros with full noise.
    3. The ledger's receipt is consumed; without one there is no way to a vector.
    4. Tile by tile the data are clipped, rounded, checked as integers and added modulo 2^32. A norm
       that is too long after all ends the share: the buffer is zeroed and nothing is returned.

Memory: the vector, the buffer, and tiles. No third array of full length exists at any time.

Noise: every silo adds N_Z(0, σ_i²) with σ_i² = (zΔ)²/(max(t, n_min) − c), so every sum that can be
released holds variance ≥ (zΔ)² whoever drops and even if c silos add none. Sums of discrete
Gaussians are as good as one for σ_i ≥ 4: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian
Mechanism" (arXiv 2102.06387), Prop. 14.

What is added, and with which noise:

    mode                 data                 noise on it    noise on the metrics block
    none                 delta                –              –
    silo                 delta                σ_i            σ_i(z_m, its grid)
    record_local         delta, protected     –              z_m·unit_steps, by each silo alone
      with silo noise                         σ_i            the larger of the two above
    record_distributed   ``UnitSum``          σ_i            σ_i(z_m, unit_steps)

Covered: all modes. Not covered: per-unit clipping (``dp.noise.unit_sum``), masks, and the policy
that compares σ_i with what a site demands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from dp.config import Mode, PrivacySpec
from dp.errors import NoiseSourceError, ReceiptError, RingOverflowError, SpecError
from dp.ledger.receipt import Receipt
from dp.noise import dgauss
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.source import NoiseSource, WordSource
from dp.noise.unit_sum import UnitSum

RingVector = npt.NDArray[np.uint32]

MIN_SIGMA: Final = 4.0
"""Least σ_i in grid units at which a sum of discrete Gaussians behaves like one."""
NOISE_TAIL_SIGMAS: Final = 12
_TILE: Final = 1 << 16


def per_silo_sigma(noise_multiplier: float, grid_steps: int, t: int, n_min: int, c: int) -> float:
    """Standard deviation, in grid units, of the noise that each silo adds.

    Rounded up, so that max(t, n_min) − c shares hold variance ≥ (zΔ)² in exact arithmetic.

    Args:
        noise_multiplier: z; zero under ``Mode.NONE`` only.
        grid_steps: Δ, the integer sensitivity.
        t: Threshold of the secure aggregation.
        n_min: Least number of summed silos that a silo accepts.
        c: Colluding silos assumed.

    Raises:
        SpecError: If fewer than one honest silo would be left, or σ_i falls below 4.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise SpecError(f"the noise multiplier must not be negative, got {noise_multiplier!r}")
    honest = max(t, n_min) - c
    if c < 0 or honest < 1 or grid_steps < 1:
        raise SpecError(f"no honest silo is left with t={t}, n_min={n_min}, c={c}")
    if noise_multiplier == 0:
        return 0.0
    sigma = noise_multiplier * grid_steps / math.sqrt(honest)
    target = (Fraction(noise_multiplier) * grid_steps) ** 2
    while math.isfinite(sigma) and Fraction(sigma) ** 2 * honest < target:
        sigma = math.nextafter(sigma, math.inf)
    if not MIN_SIGMA <= sigma < math.inf:
        raise SpecError(
            f"sigma {sigma:.3g} per silo is outside what the discrete Gaussian supports: raise "
            f"the grid's steps or the noise multiplier until it is at least {MIN_SIGMA:g}"
        )
    return sigma


def metrics_sigma(
    spec: PrivacySpec, block: MetricsBlock, *, tries: int, t: int, n_min: int, c: int
) -> float:
    """Standard deviation, in the block's grid units, of each silo's noise on the metrics block.

    In ``record_local`` every silo adds all of it, so that it holds against everybody; in the other
    modes the silos share it, as they share the noise of the vector. ``tries`` is the most episodes
    of one task; t, n_min, c and the errors are those of ``per_silo_sigma``.
    """
    if not block.size:
        return 0.0  # There is no coordinate to put noise on.
    z = spec.metrics_noise_multiplier
    if spec.mode in (Mode.NONE, Mode.SILO):
        return per_silo_sigma(z, block.grid, t, n_min, c)
    # A user may have any number of tasks.
    steps = block.unit_steps(tries=tries) if spec.unit == "task" else block.grid
    if spec.mode is Mode.RECORD_DISTRIBUTED:
        return per_silo_sigma(z, steps, t, n_min, c)
    alone = per_silo_sigma(z, steps, 1, 1, 0)
    if spec.release.noise_multiplier == 0:
        return alone
    return max(alone, per_silo_sigma(z, block.grid, t, n_min, c))


def summed_sigma(sigma: float, count: int) -> float:
    """Standard deviation of the noise in a sum of ``count`` shares."""
    return sigma * math.sqrt(count)


def no_wrap(n: int, b_max: int, grid_steps: int, sigma_max: float, ring_bits: int = 32) -> None:
    """Check n·B_max·(Δ+1) + 12·σ_max < 2^(ring_bits−1).

    Args:
        n: Silos in the cohort.
        b_max: Clipped vectors that one silo may add up; 1 for a clipped delta.
        grid_steps: Δ.
        sigma_max: Largest standard deviation of the summed noise, all n silos adding theirs.
        ring_bits: Width of the ring.

    Raises:
        RingOverflowError: If the sum could wrap.
    """
    if n < 1 or b_max < 1 or grid_steps < 1 or ring_bits < 2:
        raise SpecError("the ring bound needs positive counts")
    if not (math.isfinite(sigma_max) and sigma_max >= 0):
        raise RingOverflowError(f"noise of standard deviation {sigma_max!r} fits no ring")
    # Exact: floats would lose the last unit at the bound.
    reach = n * b_max * (grid_steps + 1) + NOISE_TAIL_SIGMAS * Fraction(sigma_max)
    if reach >= 1 << (ring_bits - 1):
        raise RingOverflowError(
            f"a sum of {n} x {b_max} vectors of {grid_steps} steps with noise {sigma_max:.4g} "
            f"may wrap a {ring_bits}-bit ring: lower the grid's steps"
        )


def lift(total: RingVector) -> npt.NDArray[np.int64]:
    """Read ring elements as signed integers, which is right whenever ``no_wrap`` held."""
    if total.dtype != np.uint32:
        raise SpecError(f"expected ring elements, got {total.dtype}")
    return total.view(np.int32).astype(np.int64)


def add_noise(out: RingVector, sigma: float, source: WordSource) -> None:
    """Add N_Z(0, σ²) to every element of ``out`` modulo 2^32; σ = 0 adds nothing."""
    if sigma == 0:
        return
    tile = np.empty(min(_TILE, out.size), dtype=np.int64)
    for start in range(0, out.size, _TILE):
        part = tile[: min(_TILE, out.size - start)]
        dgauss.sample_into(part, sigma, source)
        # Conversion to uint32 keeps the low 32 bits: the residue modulo 2^32.
        out[start : start + part.size] += part.astype(np.uint32)


def _zeros(dimension: int) -> npt.NDArray[np.float32]:
    """A zero vector of one element's memory, which takes the path of any other vector."""
    return np.broadcast_to(np.zeros((), dtype=np.float32), dimension)


class NoiseShare:
    """Noise for one release, waiting for data: draw it while the silo trains."""

    __slots__ = ("_block", "_buffer", "_grid", "_metrics_sigma", "_sigma", "_source")

    def __init__(
        self,
        *,
        grid: Grid,
        block: MetricsBlock,
        sigma: float,
        metrics_sigma: float,
        source: NoiseSource,
    ) -> None:
        """Draw the noise of σ_i on the delta and on the metrics block, each in its own grid units.

        The source is a fresh production source; a deterministic one is refused.
        """
        if type(source) is not NoiseSource:
            raise NoiseSourceError("a release takes its noise from a NoiseSource only")
        for value in (sigma, metrics_sigma):
            if value != 0 and not MIN_SIGMA <= value < math.inf:
                raise SpecError(f"sigma per silo must be 0 or at least {MIN_SIGMA:g}: {value!r}")
        self._grid = grid
        self._block = block
        self._sigma = sigma
        self._metrics_sigma = metrics_sigma
        self._source = source
        buffer = np.zeros(grid.dimension + block.size, dtype=np.uint32)
        add_noise(buffer[: grid.dimension], sigma, source)
        add_noise(buffer[grid.dimension :], metrics_sigma, source)
        self._buffer: RingVector | None = buffer

    def encode(
        self,
        *,
        delta: npt.NDArray[np.floating] | UnitSum | None,
        metrics: Mapping[str, float] | None,
        receipt: Receipt,
        descriptor_sha256: bytes,
    ) -> RingVector:
        """Add the data and hand the buffer over; the share is empty afterwards.

        ``delta`` is the silo's vector, in ``record_distributed`` its sum of units, or None for the
        zero vector; without ``metrics`` the figures are zeros. The receipt is the ledger's for the
        descriptor in force, whose digest is given too. The buffer has d + m ring elements: the
        delta, then the metrics block.

        Raises:
            NonFiniteError: If the data hold a NaN or an infinity; nothing was consumed.
            NormExceededError: If the integers are too long; the share and the receipt are used up.
            ReceiptError: If the receipt does not cover this release or these data.
            NoiseSourceError: If the source served another release.
            SpecError: If the sum of units is on another grid.
        """
        buffer = self._buffer
        if buffer is None:
            raise ReceiptError("this noise share was already used")
        dimension = self._grid.dimension
        receipt.require(descriptor_sha256=descriptor_sha256, dimension=dimension)
        self._require_noise(receipt)
        self._require_data(receipt.mode, delta)
        fitted = None
        if not isinstance(delta, UnitSum):
            fitted = self._grid.fit(_zeros(dimension) if delta is None else delta)
        figures = self._block.encode(
            dict.fromkeys(self._block.names, 0.0) if metrics is None else metrics
        )
        self._source.bind(descriptor_sha256)
        receipt.consume(descriptor_sha256=descriptor_sha256, dimension=dimension)
        self._buffer = None
        if isinstance(delta, UnitSum):
            delta.add_to(buffer[:dimension])
        elif fitted is not None:
            fitted.add_into(buffer[:dimension])
        buffer[dimension:] += figures.view(np.uint32)
        return buffer

    def _require_noise(self, receipt: Receipt) -> None:
        """Noise is present exactly where the debited mechanism has it."""
        mode = receipt.mode
        # A delta of record_local has its noise already; the ring adds more iff the silo pays too.
        noised = "silo" in receipt.units if mode is Mode.RECORD_LOCAL else mode is not Mode.NONE
        if (self._sigma > 0) != noised:
            raise ReceiptError(f"delta noise {self._sigma:g} does not fit mode {mode.value!r}")
        if (self._metrics_sigma > 0) != (mode is not Mode.NONE):
            raise ReceiptError(
                f"metrics noise {self._metrics_sigma:g} does not fit mode {mode.value!r}"
            )

    def _require_data(self, mode: Mode, delta: npt.NDArray[np.floating] | UnitSum | None) -> None:
        """A vector that is clipped as a whole has not the sensitivity of clipped units."""
        if delta is None:
            return
        if isinstance(delta, UnitSum) != (mode is Mode.RECORD_DISTRIBUTED):
            raise ReceiptError(f"mode {mode.value!r} was debited for data of another kind")
        if isinstance(delta, UnitSum) and delta.grid != self._grid:
            raise SpecError("the sum of units is on another grid than the release")

    def __repr__(self) -> str:
        return f"<NoiseShare d={self._grid.dimension} m={self._block.size} noise=redacted>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise NoiseSourceError("a noise share cannot be copied or stored")
