"""A noisy step: what it reads of the data, what it spends, and what its noise depends on."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import ReceiptError, RingOverflowError, SpecError, TooManyUnitsError
from dp.ledger.ledger import Ledger
from dp.noise.grid import l2_norm
from dp.steps import sgd
from dp.steps.grads import LoopBackend
from dp.steps.sgd import DpStep, unit_sum
from dp.steps.units import UnitId
from tests.kit.dp import tiny_lm as tiny

CLIP, Z, MEAN = 0.5, 1.5, 8
SPEC = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=CLIP,
    noise_multiplier=Z,
    delta=1e-5,
    epsilon_cap=1e6,
    grid=1 << 14,
    metrics_noise_multiplier=1.0,
    record=RecordSpec(sampling_rate=1.0, expected_units=MEAN, steps_per_round=3, delta_clip_l2=1.0),
)


class Vectors:
    """A backend whose rows are gradients already; counts how often it is asked."""

    def __init__(self, dimension):
        self.dimension = dimension
        self.asked = 0

    def longest(self, rows):
        return len(rows)

    def unit_gradients(self, units):
        self.asked += 1
        for rows in units:
            yield np.sum(rows, axis=0, dtype=np.float32)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"task": 1e9}) as opened:
        yield opened


@pytest.fixture
def receipt(ledger):
    def reserve(round_number=0, **changes):
        record = dataclasses.replace(
            SPEC.record,
            **{k: changes.pop(k) for k in list(changes) if hasattr(SPEC.record, k)},
        )
        return ledger.reserve_training(
            run="r",
            round=round_number,
            spec=dataclasses.replace(SPEC, record=record, **changes),
            adapter_sha256=bytes(32),
        )

    return reserve


def units(count):
    return tuple(UnitId("craft", str(index)) for index in range(count))


def rows(population, gradient):
    return dict.fromkeys(population, (gradient,))


@pytest.fixture
def silent(monkeypatch):
    """Takes the noise out, so that the rest of a step is exact."""
    monkeypatch.setattr(sgd, "add_noise", lambda _out, _sigma, _source: None)


def test_the_normaliser_is_the_plans_and_not_the_number_of_units(receipt, silent):
    gradient = np.zeros(4, dtype=np.float32)
    gradient[2] = -0.25
    for number, count in enumerate((0, 1, 5, 10)):
        step = DpStep(receipt=receipt(number), dimension=4, backend=Vectors(4))
        population = units(count)
        got = step.gradient(population, rows(population, gradient))
        assert got.dtype == np.float32
        assert np.allclose(got, gradient * count / MEAN, atol=count * CLIP / SPEC.grid / MEAN)


@pytest.mark.parametrize("count", [0, 9, 10, 11])
def test_pure_noise_is_the_same_for_any_number_of_units(receipt, count):
    dimension = 40_000
    step = DpStep(receipt=receipt(), dimension=dimension, backend=Vectors(dimension))
    population = units(count)
    zero = np.zeros(dimension, dtype=np.float32)
    expected = Z * CLIP / MEAN
    for _ in range(3):
        got = step.gradient(population, rows(population, zero))
        # Five standard errors of an estimated standard deviation.
        assert abs(got.std() / expected - 1) < 5 / math.sqrt(2 * dimension)
        assert abs(got.mean()) < 5 * expected / math.sqrt(dimension)


def test_the_noise_of_two_steps_is_unrelated(receipt):
    dimension = 20_000
    step = DpStep(receipt=receipt(), dimension=dimension, backend=Vectors(dimension))
    one, two = (step.gradient((), {}) for _ in range(2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(dimension)


def test_several_rows_of_a_unit_are_clipped_together():
    """Clipping row by row would let one unit move the sum by 1.75 clips."""
    model = tiny.model()
    parameters = tiny.trained(model)
    backend = LoopBackend(model=model, parameters=parameters, loss=tiny.RowSums(), probe=tiny.PROBE)
    ids, _ = tiny.row(3, 9)
    unit = tuple((ids[:length], (True,) * length) for length in (7, 8, 9))
    clip = 1e-3
    spec = dataclasses.replace(SPEC, clip_l2=clip)
    (population, total) = units(1), np.zeros(backend.dimension, dtype=np.uint32)
    unit_sum(
        population,
        {population[0]: unit},
        spec=spec,
        dimension=backend.dimension,
        backend=backend,
    ).add_to(total)
    ours = l2_norm(total.view(np.int32).astype(np.float64)) / SPEC.grid
    each = [tiny.naive(model, (row,)) for row in unit]
    row_by_row = np.sum([g / np.linalg.norm(g) for g in each], axis=0)
    assert np.linalg.norm(each[0]) > clip
    assert 0.9 < ours <= 1.0
    assert np.linalg.norm(row_by_row) >= 1.75


def test_a_step_adds_the_clipped_gradients_of_real_units(receipt, silent):
    model = tiny.model()
    backend = LoopBackend(
        model=model, parameters=tiny.trained(model), loss=tiny.RowSums(), probe=tiny.PROBE
    )
    population = units(4)
    # The second unit has no rows: it may be sampled and adds nothing.
    rows_of = {
        population[0]: (tiny.row(1, 6),),
        population[2]: (tiny.row(2, 9), tiny.row(3, 4)),
        population[3]: (tiny.row(4, 12),),
    }
    step = DpStep(receipt=receipt(), dimension=backend.dimension, backend=backend)
    got = step.gradient(population, rows_of)
    expected = np.zeros(backend.dimension)
    for unit in rows_of.values():
        gradient = tiny.naive(model, unit).astype(np.float64)
        expected += gradient * min(1.0, CLIP / np.linalg.norm(gradient))
    margin = 3 * math.sqrt(backend.dimension) * CLIP / SPEC.grid
    assert np.linalg.norm(got * MEAN - expected) < margin


def test_an_overflowing_sample_is_spent_and_reads_nothing(receipt):
    most = SPEC.record.max_units
    backend = Vectors(4)
    mine = receipt()
    step = DpStep(receipt=mine, dimension=4, backend=backend)
    population = units(most + 1)
    with pytest.raises(TooManyUnitsError):
        step.gradient(population, rows(population, np.ones(4, dtype=np.float32)))
    with pytest.raises(TooManyUnitsError):
        # Units without rows count: otherwise the failure would tell how many have none.
        step.gradient(population, {})
    assert backend.asked == 0
    assert mine.steps_left == 1
    step.gradient(units(most), {})
    assert mine.steps_left == 0


def test_a_step_beyond_the_reserved_ones_reads_nothing(receipt):
    backend = Vectors(4)
    step = DpStep(receipt=receipt(), dimension=4, backend=backend)
    for _ in range(3):
        step.gradient((), {})
    asked = backend.asked
    with pytest.raises(ReceiptError):
        step.gradient(units(2), rows(units(2), np.ones(4, dtype=np.float32)))
    assert backend.asked == asked


class Bad(Vectors):
    """A row of one number cannot be differentiated; ``how`` says what it does instead."""

    def __init__(self, dimension, how):
        super().__init__(dimension)
        self.how = how

    def longest(self, rows):
        if self.how == "length" and any(row.size == 1 for row in rows):
            raise TypeError("a length that is no number")
        return super().longest(rows)

    def unit_gradients(self, units):
        if self.how == "chunk" and any(row.size == 1 for rows in units for row in rows):
            raise MemoryError("out of memory in a batch of several units")
        for gradient in super().unit_gradients(units):
            if gradient.size == 1 and self.how == "raises":
                raise MemoryError("out of memory on one unit")
            yield gradient


@pytest.mark.parametrize("how", ["raises", "chunk", "length", "shape"])
def test_a_unit_that_fails_moves_the_sum_by_no_more_than_its_clip(receipt, silent, how):
    population = units(8)
    good = np.full(4, 0.1, dtype=np.float32)
    without = rows(population, good)
    del without[population[3]]
    present = {**without, population[3]: (np.ones(1, dtype=np.float32),)}
    honest = DpStep(receipt=receipt(), dimension=4, backend=Vectors(4))
    failing = DpStep(receipt=receipt(1), dimension=4, backend=Bad(4, how))
    expected = honest.gradient(population, without)
    assert np.linalg.norm(expected) > 0
    assert np.array_equal(failing.gradient(population, present), expected)
    assert failing.null_units == 1


def test_a_step_is_spent_and_noisy_when_every_gradient_fails(receipt):
    class Failing(Vectors):
        def unit_gradients(self, units):
            raise RuntimeError("out of memory")

    mine = receipt()
    step = DpStep(receipt=mine, dimension=4, backend=Failing(4))
    found = step.gradient(units(2), rows(units(2), np.ones(4, dtype=np.float32)))
    assert found.all()
    assert step.null_units == 2
    assert mine.steps_left == 2


def test_noise_comes_before_the_data_and_the_debit_too(receipt, monkeypatch):
    order = []

    def noted(name, call):
        return lambda *args, **options: (order.append(name), call(*args, **options))[1]

    class Noted(Vectors):
        def unit_gradients(self, units):
            order.append("data")
            return super().unit_gradients(units)

    mine = receipt()
    monkeypatch.setattr(sgd, "add_noise", noted("noise", sgd.add_noise))
    monkeypatch.setattr(type(mine), "take_step", noted("spend", type(mine).take_step))
    monkeypatch.setattr(sgd, "poisson_sample", noted("sample", sgd.poisson_sample))
    step = DpStep(receipt=mine, dimension=4, backend=Noted(4))
    step.gradient(units(2), rows(units(2), np.ones(4, dtype=np.float32)))
    assert order == ["noise", "spend", "sample", "data"]


def test_a_gradient_that_is_not_finite_counts_as_zero(receipt, silent):
    population = units(3)
    good, bad = np.full(4, 0.1, dtype=np.float32), np.array([0, math.nan, math.inf, 1], "f4")
    rows_of = {population[0]: (good,), population[1]: (bad,), population[2]: (good,)}
    step = DpStep(receipt=receipt(), dimension=4, backend=Vectors(4))
    got = step.gradient(population, rows_of)
    assert np.allclose(got * MEAN, 2 * good, atol=1e-3)
    assert step.null_units == 1


def test_every_call_draws_a_sample_of_its_own():
    record = dataclasses.replace(SPEC.record, sampling_rate=0.5, expected_units=32)
    spec = dataclasses.replace(SPEC, record=record)
    population = units(64)
    eye = np.eye(64, dtype=np.float32)
    rows_of = {unit: (eye[index],) for index, unit in enumerate(population)}
    seen = set()
    for _ in range(6):
        total = np.zeros(64, dtype=np.uint32)
        unit_sum(population, rows_of, spec=spec, dimension=64, backend=Vectors(64)).add_to(total)
        assert 8 <= np.count_nonzero(total) <= 56
        seen.add(total.tobytes())
    assert len(seen) == 6


def test_what_no_step_can_be_is_refused(receipt):
    with pytest.raises(SpecError, match="coarse"):
        DpStep(receipt=receipt(0, grid=16), dimension=1000, backend=Vectors(1000))
    with pytest.raises(SpecError, match="sigma"):
        DpStep(receipt=receipt(1, grid=16, noise_multiplier=0.1), dimension=1, backend=Vectors(1))
    with pytest.raises(RingOverflowError):
        DpStep(
            receipt=receipt(2, grid=1 << 24, expected_units=256), dimension=4, backend=Vectors(4)
        )
    with pytest.raises(ReceiptError):
        DpStep(receipt=object(), dimension=4, backend=Vectors(4))
    with pytest.raises(SpecError, match="coordinates"):
        unit_sum((), {}, spec=SPEC, dimension=5, backend=Vectors(4))
    silo = dataclasses.replace(SPEC, mode=Mode.SILO, record=None)
    with pytest.raises(SpecError, match="record settings"):
        unit_sum((), {}, spec=silo, dimension=4, backend=Vectors(4))


def test_a_step_cannot_be_copied_and_shows_nothing(receipt):
    step = DpStep(receipt=receipt(), dimension=4, backend=Vectors(4))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ReceiptError):
            attempt(step)
    assert repr(step) == "<DpStep d=4 steps_left=3>"
