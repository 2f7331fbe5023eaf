"""Noise shares: no release without a receipt, and none with other noise than was debited."""

from __future__ import annotations

import copy
import math
import pickle
import tracemalloc

import numpy as np
import pytest

from dp.config import Mode
from dp.errors import (
    NoiseSourceError,
    NonFiniteError,
    NormExceededError,
    ReceiptError,
    SpecError,
)
from dp.ledger.ledger import Head, Ledger, LedgerEntry
from dp.ledger.receipt import Receipt
from dp.noise.grid import Grid
from dp.noise.share import NoiseShare, lift
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from tests.kit.dp.shares import BLOCK, DESCRIPTOR, GRID, METRICS, D, receipt, release


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
        charges=(),
        dimension=D,
        descriptor_sha256=DESCRIPTOR,
    )
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={}) as ledger:
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
        Receipt(
            issuer=object(),
            descriptor_sha256=DESCRIPTOR,
            dimension=D,
            mode=Mode.NONE,
            record=Head(seq=1, sha256=bytes(32)),
        )
    held = receipt()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ReceiptError):
            attempt(held)
    assert repr(held) == "<Receipt unused, contents redacted>"
    share = NoiseShare(
        grid=GRID, block=BLOCK, sigma=0.0, metrics_sigma=0.0, source=NoiseSource.fresh("test")
    )
    with pytest.raises(TypeError):
        share.encode(delta=None, metrics=None, descriptor_sha256=DESCRIPTOR)


BOTH = ("task", "silo")
FITS = {
    (Mode.NONE, (), 0.0, 0.0),
    (Mode.SILO, ("silo",), 5.0, 5.0),
    (Mode.RECORD_LOCAL, ("task",), 0.0, 5.0),
    # The silo is charged as well exactly where the ring adds noise to the delta.
    (Mode.RECORD_LOCAL, BOTH, 5.0, 5.0),
    (Mode.RECORD_DISTRIBUTED, ("user",), 5.0, 5.0),
}


@pytest.mark.parametrize("metrics_noise", [0.0, 5.0])
@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.parametrize(
    ("mode", "units"),
    [
        (Mode.NONE, ()),
        (Mode.SILO, ("silo",)),
        (Mode.RECORD_LOCAL, ("task",)),
        (Mode.RECORD_LOCAL, BOTH),
        (Mode.RECORD_DISTRIBUTED, ("user",)),
    ],
)
def test_noise_must_fit_what_was_debited(mode, units, noise, metrics_noise):
    held = receipt(mode, units=units)
    arguments = {"delta": None, "sigma": noise, "metrics_sigma": metrics_noise, "receipt": held}
    fits = (mode, units, noise, metrics_noise) in FITS
    if fits:
        release(**arguments)
    else:
        with pytest.raises(ReceiptError, match="does not fit"):
            release(**arguments)
    assert held.used == fits


@pytest.mark.parametrize("mode", [Mode.SILO, Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED])
def test_only_a_sum_of_clipped_units_has_the_sensitivity_of_one(mode):
    """A vector clipped as a whole would let one unit move it by twice the clip."""
    noise = 0.0 if mode is Mode.RECORD_LOCAL else 1e5
    units = UnitSum(GRID, max_units=3)
    units.add(np.full(D, 0.01))
    wrong = np.full(D, 0.01) if mode is Mode.RECORD_DISTRIBUTED else units
    held = receipt(mode)
    with pytest.raises(ReceiptError, match="another kind"):
        release(delta=wrong, sigma=noise, metrics_sigma=5.0, receipt=held)
    assert not held.used


def test_a_sum_of_units_gets_the_same_noise_as_any_vector(monkeypatch):
    monkeypatch.setattr("dp.noise.source.os.urandom", bytes)
    vectors = np.random.default_rng(0).normal(size=(3, D)) / 20
    units = UnitSum(GRID, max_units=3)
    for vector in vectors:
        units.add(vector)
    noise = {"sigma": 1e5, "metrics_sigma": 1e4}
    y = release(delta=units, receipt=receipt(Mode.RECORD_DISTRIBUTED), **noise)
    silent = release(delta=None, receipt=receipt(Mode.RECORD_DISTRIBUTED), **noise)
    expected = sum(GRID.encode(vector).astype(np.int64) for vector in vectors)
    assert np.array_equal(lift(y - silent)[:D], expected)
    assert not lift(y - silent)[D:].any()
    assert lift(silent)[:D].std() == pytest.approx(1e5, rel=0.2)
    # It was handed over: nothing of it is left for a second release.
    with pytest.raises(ReceiptError):
        release(delta=units, receipt=receipt(Mode.RECORD_DISTRIBUTED), **noise)


def test_a_sum_on_another_grid_is_refused():
    other = Grid(clip_l2=1.0, steps=2**19, dimension=D)
    held = receipt(Mode.RECORD_DISTRIBUTED)
    with pytest.raises(SpecError, match="another grid"):
        release(delta=UnitSum(other, max_units=1), sigma=1e5, metrics_sigma=1e4, receipt=held)
    assert not held.used


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
