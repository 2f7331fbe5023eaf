"""Noise shares: enough variance for every survivor set, no wrap, no release without a receipt."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from dp.config import Mode
from dp.errors import (
    NoiseSourceError,
    NonFiniteError,
    NormExceededError,
    ReceiptError,
    RingOverflowError,
    SpecError,
)
from dp.grid import Grid
from dp.ledger import Ledger, LedgerEntry
from dp.metrics_block import MetricsBlock
from dp.receipt import ISSUER, Receipt
from dp.share import (
    NoiseShare,
    add_noise,
    encode_round,
    lift,
    no_wrap,
    per_silo_sigma,
    summed_sigma,
)
from dp.source import NoiseSource

D = 500
DESCRIPTOR = bytes(range(32))
GRID = Grid(clip_l2=1.0, steps=2**20, dimension=D)
BLOCK = MetricsBlock(("episodes", "successes"), (64.0, 64.0))
METRICS = {"episodes": 10, "successes": 3}


def receipt(mode=Mode.NONE, *, descriptor=DESCRIPTOR, dimension=D):
    return Receipt(issuer=ISSUER, descriptor_sha256=descriptor, dimension=dimension, mode=mode)


def release(**change):
    arguments = {
        "delta": np.zeros(D),
        "metrics": METRICS,
        "grid": GRID,
        "block": BLOCK,
        "sigma": 0.0,
        "metrics_sigma": 0.0,
        "source": NoiseSource.fresh("test"),
        "receipt": receipt(),
        "descriptor_sha256": DESCRIPTOR,
    }
    return encode_round(**{**arguments, **change})


def threshold(n, c):
    return max((n + c) // 2 + 1, c + 2)


@pytest.mark.parametrize("z", [1e-3, 0.3, 1.0, 8.21])
def test_every_survivor_set_keeps_the_variance(z):
    """Exhaustive over silos, survivors and which c of them added nothing."""
    target = (Fraction(z) * 2**20) ** 2
    checked = 0
    for n in range(3, 8):
        for c in range(1, n - 1):
            t = threshold(n, c)
            if t > n:
                continue
            for n_min in range(1, n + 1):
                variance = Fraction(per_silo_sigma(z, 2**20, t, n_min, c)) ** 2
                for size in range(max(t, n_min), n + 1):
                    for survivors in itertools.combinations(range(n), size):
                        for silent in itertools.combinations(survivors, c):
                            assert variance * len(set(survivors) - set(silent)) >= target
                            checked += 1
    assert checked > 1000


def test_sizing_for_all_silos_would_not_survive_a_drop():
    sigma = per_silo_sigma(1.0, 2**20, 7, 8, 3)
    assert sigma == pytest.approx(2**20 / math.sqrt(5))
    assert sigma**2 * (8 - 3) >= 2.0**40 * (1 - 1e-12)
    assert (2**20 / math.sqrt(10)) ** 2 * 5 < 2.0**40 * 0.6


def test_least_sigma_is_enforced():
    assert per_silo_sigma(0.0, 2**20, 3, 3, 1) == 0.0
    assert per_silo_sigma(8.0, 1, 5, 5, 1) == 4.0
    for arguments in (
        (7.99, 1, 5, 5, 1),
        (-1.0, 2**20, 3, 3, 1),
        (math.nan, 2**20, 3, 3, 1),
        (math.inf, 2**20, 3, 3, 1),
        (1e308, 2**24, 3, 3, 1),
        (1.0, 2**20, 3, 3, 3),
        (1.0, 2**20, 3, 3, -1),
    ):
        with pytest.raises(SpecError):
            per_silo_sigma(*arguments)


def test_ring_bound_is_exact():
    no_wrap(7, 1, 72, 0.0, ring_bits=10)
    with pytest.raises(RingOverflowError):
        no_wrap(8, 1, 63, 0.0, ring_bits=10)
    no_wrap(1, 1, 498, math.nextafter(1.0 + 1 / 12, 0.0), ring_bits=10)
    with pytest.raises(RingOverflowError):
        no_wrap(1, 1, 498, math.nextafter(1.0 + 1 / 12, 2.0), ring_bits=10)
    no_wrap(10, 1, 2**20, summed_sigma(per_silo_sigma(1.0, 2**20, 7, 7, 3), 10))
    # A sum of up to 256 + 8·16 unit vectors per silo wraps at this grid.
    with pytest.raises(RingOverflowError):
        no_wrap(10, 384, 2**20, 0.0)
    for sigma in (math.nan, math.inf, -1.0):
        with pytest.raises(RingOverflowError):
            no_wrap(1, 1, 1, sigma)
    for arguments in ((0, 1, 1, 0.0), (1, 0, 1, 0.0), (1, 1, 0, 0.0)):
        with pytest.raises(SpecError):
            no_wrap(*arguments)


@pytest.mark.parametrize("sign", [1, -1])
def test_ring_sum_is_the_integer_sum_at_the_bound(sign):
    steps, n = 2**24, 127
    no_wrap(n, 1, steps, 0.0)
    total = np.zeros(1, dtype=np.uint32)
    for _ in range(n):
        total += np.array([sign * steps], dtype=np.int32).view(np.uint32)
    assert lift(total).tolist() == [sign * n * steps]
    with pytest.raises(RingOverflowError):
        no_wrap(n + 1, 1, steps, 0.0)
    wrapped = np.array([128 * steps], dtype=np.int64).astype(np.uint32)
    assert lift(wrapped).tolist() != [128 * steps]
    with pytest.raises(SpecError):
        lift(np.zeros(1, dtype=np.int64))


def test_without_noise_each_silo_leaves_its_own_pattern_in_the_sum():
    n, total = 5, np.zeros(D + 2, dtype=np.uint32)
    for silo in range(n):
        pattern = np.full(D, (-1) ** silo * 2.0**silo / 1024)
        total += release(delta=pattern, metrics={"episodes": 2**silo, "successes": 0})
    signed = lift(total)
    expected = sum((-1) ** silo * 2**silo for silo in range(n)) / 1024
    assert np.array_equal(GRID.decode(signed[:D]), np.full(D, expected))
    means = BLOCK.decode(signed[D:], n, 0.0)
    assert means["episodes"].mean == pytest.approx(31 / 5, abs=64 / BLOCK.scale)
    assert means["successes"].mean == 0.0


def test_noise_is_on_every_coordinate_with_its_own_scale():
    grid = Grid(clip_l2=1.0, steps=2**20, dimension=150_000)
    y = release(
        grid=grid,
        delta=np.zeros(150_000, dtype=np.float32),
        metrics_sigma=9000.0,
        sigma=700_000.0,
        receipt=receipt(Mode.SILO, dimension=150_000),
    )
    noise = lift(y)[:150_000]
    assert noise.std() == pytest.approx(700_000.0, rel=0.01)
    # Tiles are noised independently: no stretch repeats.
    assert np.unique(noise[: 2**16] - noise[2**16 : 2**17]).size > 60_000
    assert np.abs(lift(y)[150_000:] - BLOCK.encode(METRICS)).max() < 9000 * 8


@pytest.mark.parametrize("fill", ["data", "zeros", "none"])
def test_noise_is_drawn_first_and_does_not_depend_on_the_data(monkeypatch, fill):
    """With the key fixed, output minus encoding is the same noise whatever the data are."""
    monkeypatch.setattr("dp.source.os.urandom", bytes)
    delta = {"data": np.full(D, 0.01), "zeros": np.zeros(D), "none": None}[fill]
    metrics = None if fill == "none" else METRICS
    y = release(
        delta=delta,
        metrics=metrics,
        sigma=5e5,
        metrics_sigma=5e3,
        source=NoiseSource.fresh("test"),
        receipt=receipt(Mode.SILO),
    )
    encoded = np.zeros(D + 2, dtype=np.int64)
    if fill == "data":
        encoded[:D] = GRID.encode(delta)
    if metrics is not None:
        encoded[D:] = BLOCK.encode(metrics)
    noise = np.zeros(D + 2, dtype=np.uint32)
    source = NoiseSource.fresh("again")
    add_noise(noise[:D], 5e5, source)
    add_noise(noise[D:], 5e3, source)
    assert np.array_equal(lift(y) - encoded, lift(noise))


def test_pure_noise_variance_over_survivors_with_silent_colluders():
    """Three silos, one of which adds nothing: the sum still holds (zΔ)²."""
    z, n, c, t = 1.0, 4, 1, 3
    sigma = per_silo_sigma(z, GRID.steps, t, t, c)
    grid = Grid(clip_l2=1.0, steps=2**20, dimension=40_000)
    total = np.zeros(40_002, dtype=np.uint32)
    for _ in range(t - c):
        total += release(
            grid=grid,
            delta=None,
            metrics=None,
            sigma=sigma,
            metrics_sigma=sigma,
            source=NoiseSource.fresh("test"),
            receipt=receipt(Mode.SILO, dimension=40_000),
        )
    no_wrap(n, 1, grid.steps, summed_sigma(sigma, n))
    assert lift(total).std() == pytest.approx(z * grid.steps, rel=5 / math.sqrt(2 * 40_000))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_delta_leaves_receipt_and_noise_usable(bad):
    held, source = receipt(Mode.SILO), NoiseSource.fresh("test")
    delta = np.zeros(D)
    delta[3] = bad
    noisy = {"sigma": 1e5, "metrics_sigma": 1e4, "receipt": held, "source": source}
    with pytest.raises(NonFiniteError):
        release(delta=delta, **noisy)
    with pytest.raises(NonFiniteError):
        release(metrics={"episodes": bad, "successes": 0}, **noisy)
    assert not held.used
    y = release(delta=None, metrics=None, **noisy)
    assert held.used
    assert lift(y)[:D].std() == pytest.approx(1e5, rel=0.2)


def test_share_drawn_ahead_survives_a_bad_delta_and_is_used_once():
    share = NoiseShare(
        grid=GRID,
        block=BLOCK,
        sigma=1e5,
        metrics_sigma=1e4,
        source=NoiseSource.fresh("test"),
    )
    arguments = {"metrics": METRICS, "descriptor_sha256": DESCRIPTOR}
    with pytest.raises(NonFiniteError):
        share.encode(delta=np.full(D, math.nan), receipt=receipt(Mode.SILO), **arguments)
    y = share.encode(delta=None, receipt=receipt(Mode.SILO), **arguments)
    assert y.shape == (D + 2,)
    assert y.dtype == np.uint32
    with pytest.raises(ReceiptError, match="already used"):
        share.encode(delta=None, receipt=receipt(Mode.SILO), **arguments)
    with pytest.raises(NoiseSourceError):
        pickle.dumps(share)
    assert "redacted" in repr(share)


def test_receipt_from_the_ledger_is_used_once_and_for_its_release_only(tmp_path):
    entry = LedgerEntry(
        run="run",
        round=0,
        attempt=0,
        step=0,
        part=0,
        mode=Mode.NONE,
        q=1.0,
        z=0.0,
        steps=1,
        dimension=D,
        descriptor_sha256=DESCRIPTOR,
    )
    with Ledger.open(tmp_path / "ledger", delta=1e-5, epsilon_cap=1.0) as ledger:
        held = ledger.reserve(entry)
    other = Grid(clip_l2=1.0, steps=2**20, dimension=D + 1)
    with pytest.raises(ReceiptError, match="another descriptor"):
        release(receipt=held, descriptor_sha256=bytes(32))
    with pytest.raises(ReceiptError, match="coordinates"):
        release(receipt=held, grid=other, delta=np.zeros(D + 1))
    release(receipt=held)
    with pytest.raises(ReceiptError, match="already used"):
        release(receipt=held)


def test_receipts_cannot_be_made_copied_or_read():
    with pytest.raises(ReceiptError, match="only the ledger"):
        Receipt(issuer=object(), descriptor_sha256=DESCRIPTOR, dimension=D, mode=Mode.NONE)
    held = receipt()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ReceiptError):
            attempt(held)
    assert repr(held) == "<Receipt unused, contents redacted>"
    with pytest.raises(TypeError):
        encode_round(
            delta=None,
            metrics=None,
            grid=GRID,
            block=BLOCK,
            sigma=0.0,
            metrics_sigma=0.0,
            source=NoiseSource.fresh("test"),
            descriptor_sha256=DESCRIPTOR,
        )


@pytest.mark.parametrize(
    ("mode", "sigma", "metrics_sigma", "fits"),
    [
        (Mode.NONE, 0.0, 0.0, True),
        (Mode.NONE, 5.0, 0.0, False),
        (Mode.NONE, 0.0, 5.0, False),
        (Mode.SILO, 5.0, 5.0, True),
        (Mode.SILO, 0.0, 5.0, False),
        (Mode.SILO, 5.0, 0.0, False),
        (Mode.RECORD_LOCAL, 0.0, 5.0, True),
        (Mode.RECORD_LOCAL, 5.0, 5.0, False),
        (Mode.RECORD_DISTRIBUTED, 5.0, 5.0, True),
        (Mode.RECORD_DISTRIBUTED, 0.0, 5.0, False),
    ],
)
def test_noise_must_fit_the_debited_mode(mode, sigma, metrics_sigma, fits):
    held = receipt(mode)
    if fits:
        release(sigma=sigma, metrics_sigma=metrics_sigma, receipt=held)
    else:
        with pytest.raises(ReceiptError, match="does not fit"):
            release(sigma=sigma, metrics_sigma=metrics_sigma, receipt=held)
    assert held.used == fits


@pytest.mark.parametrize("sigma", [3.99, -5.0, math.nan, math.inf])
def test_sigma_below_the_floor(sigma):
    with pytest.raises(SpecError):
        release(sigma=sigma, metrics_sigma=5.0, receipt=receipt(Mode.SILO))


def test_deterministic_and_reused_sources_are_refused():
    class Predictable(NoiseSource):
        pass

    with pytest.raises(NoiseSourceError, match="NoiseSource only"):
        release(source=Predictable.fresh("test"))
    source = NoiseSource.fresh("test")
    release(source=source)
    with pytest.raises(NoiseSourceError, match="another release"):
        release(
            source=source,
            receipt=receipt(descriptor=bytes(32)),
            descriptor_sha256=bytes(32),
        )


def test_a_norm_that_is_too_long_after_all_ends_the_share(monkeypatch):
    share = NoiseShare(
        grid=GRID, block=BLOCK, sigma=1e5, metrics_sigma=1e4, source=NoiseSource.fresh("test")
    )
    held = receipt(Mode.SILO)
    arguments = {"metrics": METRICS, "descriptor_sha256": DESCRIPTOR}
    monkeypatch.setattr(Grid, "clip_steps", property(lambda self: self.steps + 200.0))
    with pytest.raises(NormExceededError):
        share.encode(delta=np.ones(D), receipt=held, **arguments)
    # Neither the noise nor the receipt can be used for anything else.
    assert held.used
    with pytest.raises(ReceiptError, match="already used"):
        share.encode(delta=None, receipt=receipt(Mode.SILO), **arguments)


@pytest.mark.parametrize("kind", ["data", "zeros", "not finite"])
def test_encoding_takes_no_third_array(kind):
    """numpy reports to tracemalloc, so the peak is what was allocated, to the byte."""
    dimension = 3_000_000
    grid = Grid(clip_l2=1.0, steps=2**20, dimension=dimension)
    delta = np.full(dimension, 1e-4, dtype=np.float32)
    delta[-1] = math.nan if kind == "not finite" else 1e-4
    tracemalloc.start()
    try:
        share = NoiseShare(
            grid=grid, block=BLOCK, sigma=40.0, metrics_sigma=40.0, source=NoiseSource.fresh("t")
        )
        held = receipt(Mode.SILO, dimension=dimension)
        arguments = {"metrics": METRICS, "receipt": held, "descriptor_sha256": DESCRIPTOR}
        if kind == "not finite":
            with pytest.raises(NonFiniteError):
                share.encode(delta=delta, **arguments)
        y = share.encode(delta=delta if kind == "data" else None, **arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert y.size == dimension + BLOCK.size
    # The delta was there before; the buffer is the only array of its length beside it.
    assert peak < y.nbytes + (4 << 20)
