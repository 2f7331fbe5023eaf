"""The privacy spec: refusals, and a digest that no two specs share."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct

import pytest
from scipy import stats

from dp.config import DELTA_GRID, Mode, PrivacySpec, RecordSpec
from dp.errors import Reason, SpecError

BASE = PrivacySpec(
    mode=Mode.SILO,
    unit="task",
    clip_l2=1.0,
    noise_multiplier=1.5,
    delta=1e-5,
    epsilon_cap=8.0,
    metrics_noise_multiplier=6.0,
)
NONE = dataclasses.replace(BASE, mode=Mode.NONE, noise_multiplier=0.0, metrics_noise_multiplier=0.0)
LOCAL = dataclasses.replace(
    BASE,
    mode=Mode.RECORD_LOCAL,
    record=RecordSpec(sampling_rate=0.05, expected_units=50, steps_per_round=2, delta_clip_l2=2.0),
)
DISTRIBUTED = dataclasses.replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=dataclasses.replace(LOCAL.record, delta_clip_l2=None),
)


def local(**change):
    return dataclasses.replace(LOCAL, record=dataclasses.replace(LOCAL.record, **change))


def test_mode_has_no_default():
    with pytest.raises(TypeError, match="mode"):
        PrivacySpec(
            unit="task",
            clip_l2=1.0,
            noise_multiplier=0.0,
            delta=1e-5,
            epsilon_cap=8.0,
            metrics_noise_multiplier=0.0,
        )


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "silo"},
        {"unit": "row"},
        {"clip_l2": 0.0},
        {"clip_l2": -1.0},
        {"clip_l2": math.nan},
        {"clip_l2": math.inf},
        {"clip_l2": True},
        {"clip_l2": "1"},
        {"clip_l2": 10**400},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"metrics_noise_multiplier": 0.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"epsilon_cap": 0.0},
        {"epsilon_cap": math.inf},
        {"grid": 1.5},
        {"grid": 15},
        {"grid": 2**24 + 1},
        {"grid": True},
    ],
)
def test_refused(change):
    with pytest.raises(SpecError) as caught:
        dataclasses.replace(BASE, **change)
    assert caught.value.reason is Reason.SPEC


@pytest.mark.parametrize("field", ["noise_multiplier", "metrics_noise_multiplier"])
def test_mode_none_takes_no_noise(field):
    with pytest.raises(SpecError, match="mode 'none'"):
        dataclasses.replace(NONE, **{field: 1.0})


def test_digest_changes_with_every_field():
    changes = {
        "unit": "user",
        "clip_l2": math.nextafter(1.0, 2.0),
        "noise_multiplier": 6.0,
        "delta": 1e-6,
        "epsilon_cap": 8.5,
        "grid": 2**19,
        "metrics_noise_multiplier": 1.5,
    }
    # Mode and record settings go together, so they are changed below.
    assert set(changes) | {"mode", "record"} == {
        field.name for field in dataclasses.fields(PrivacySpec)
    }
    specs = [dataclasses.replace(BASE, **{name: value}) for name, value in changes.items()]
    specs += [
        BASE,
        dataclasses.replace(BASE, noise_multiplier=6.0, metrics_noise_multiplier=1.5),
        LOCAL,
        DISTRIBUTED,
    ]
    record_changes = {
        "sampling_rate": 0.06,
        "expected_units": 51,
        "steps_per_round": 3,
        "delta_clip_l2": 2.5,
        "silo_noise_multiplier": 0.5,
    }
    assert set(record_changes) == {field.name for field in dataclasses.fields(RecordSpec)}
    specs += [local(**{name: value}) for name, value in record_changes.items()]
    specs.append(local(expected_units=2, steps_per_round=50))
    assert len({spec.sha256() for spec in specs}) == len(specs)


def test_equal_specs_have_equal_digests():
    assert dataclasses.replace(BASE, clip_l2=1).sha256() == BASE.sha256()
    assert dataclasses.replace(NONE, noise_multiplier=-0.0).sha256() == NONE.sha256()


def test_digest_is_the_documented_encoding():
    def prefixed(*values):
        return b"".join(struct.pack(">I", len(value)) + value for value in values)

    def number(value):
        return struct.pack(">d", value)

    encoding = (
        prefixed(b"chorale/v1/privacy-spec")
        + prefixed(b"mode", b"silo", b"unit", b"task", b"clip_l2", number(1.0))
        + prefixed(b"noise_multiplier", number(1.5), b"delta", number(1e-5))
        + prefixed(b"epsilon_cap", number(8.0), b"grid", struct.pack(">Q", 2**20))
        + prefixed(b"metrics_noise_multiplier", number(6.0), b"record", b"")
    )
    assert BASE.sha256() == hashlib.sha256(encoding).digest()
    encoding = encoding.replace(b"\0\0\0\4silo", prefixed(b"record_local"))
    fields = number(0.05) + struct.pack(">QQ", 50, 2) + prefixed(number(2.0)) + number(0.0)
    encoding = encoding.removesuffix(prefixed(b"")) + prefixed(fields)
    assert LOCAL.sha256() == hashlib.sha256(encoding).digest()


# Record level -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.01},
        {"sampling_rate": math.nan},
        {"sampling_rate": True},
        {"expected_units": 0},
        {"expected_units": 1.0},
        {"expected_units": True},
        {"steps_per_round": 0},
        {"steps_per_round": "2"},
        {"delta_clip_l2": 0.0},
        {"delta_clip_l2": math.inf},
        {"silo_noise_multiplier": -1.0},
        {"silo_noise_multiplier": math.nan},
    ],
)
def test_impossible_record_settings(change):
    with pytest.raises(SpecError):
        dataclasses.replace(LOCAL.record, **change)


def test_record_settings_are_there_exactly_at_record_level():
    for spec, change, match in (
        (LOCAL, {"record": None}, "needs its record"),
        (DISTRIBUTED, {"record": None}, "needs its record"),
        (BASE, {"record": LOCAL.record}, "takes no record"),
        (NONE, {"record": LOCAL.record}, "takes no record"),
        (LOCAL, {"record": DISTRIBUTED.record}, "set delta_clip_l2"),
        (DISTRIBUTED, {"record": LOCAL.record}, "remove delta_clip_l2"),
    ):
        with pytest.raises(SpecError, match=match):
            dataclasses.replace(spec, **change)
    with pytest.raises(SpecError, match="record_local' only"):
        dataclasses.replace(
            DISTRIBUTED, record=dataclasses.replace(DISTRIBUTED.record, silo_noise_multiplier=1.0)
        )


def test_what_is_released_in_each_mode():
    silo = BASE.release
    assert (silo.clip_l2, silo.grid, silo.noise_multiplier, silo.max_units) == (1.0, 2**20, 1.5, 1)
    assert NONE.release.noise_multiplier == 0.0
    delta = local(silo_noise_multiplier=0.7).release
    assert (delta.clip_l2, delta.grid, delta.noise_multiplier) == (2.0, DELTA_GRID, 0.7)
    assert (delta.max_units, delta.vector_clip_l2) == (1, 2.0)
    summed = DISTRIBUTED.release
    assert (summed.clip_l2, summed.grid, summed.noise_multiplier) == (1.0, 2**20, 1.5)
    assert (summed.max_units, summed.vector_clip_l2) == (107, 107.0)
    sums = [spec.sums_per_round for spec in (NONE, BASE, LOCAL, DISTRIBUTED)]
    assert sums == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("expected", "most"), [(1, 9), (4, 20), (50, 107), (64, 128), (256, 384), (10_000, 10_800)]
)
def test_most_units_of_a_step_and_what_exceeding_them_costs(expected, most):
    """The bound against exact binomial tails, for every way to reach the expected number."""
    record = dataclasses.replace(LOCAL.record, expected_units=expected)
    assert record.max_units == most
    for population in (most + 1, 2 * most, 10 * most, 1000 * most):
        tail = stats.binom.sf(most, population, expected / population)
        assert 0 <= tail <= record.overflow_delta
    # It is no empty bound: tiny beside any δ, and not tinier than the Poisson tail itself.
    assert stats.poisson.sf(most, expected) <= record.overflow_delta < 1e-5
    if expected >= 50:
        assert record.overflow_delta < 2e-11
