"""The privacy spec: refusals, and a digest that no two specs share."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct

import pytest

from dp.config import Mode, PrivacySpec
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


def test_record_modes_validate_but_cannot_be_run():
    for mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED):
        spec = dataclasses.replace(BASE, mode=mode)
        with pytest.raises(SpecError, match="not available yet"):
            spec.require_supported()
    BASE.require_supported()
    NONE.require_supported()


def test_digest_changes_with_every_field():
    changes = {
        "mode": Mode.RECORD_LOCAL,
        "unit": "user",
        "clip_l2": math.nextafter(1.0, 2.0),
        "noise_multiplier": 6.0,
        "delta": 1e-6,
        "epsilon_cap": 8.5,
        "grid": 2**19,
        "metrics_noise_multiplier": 1.5,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(PrivacySpec)}
    digests = {BASE.sha256()} | {
        dataclasses.replace(BASE, **{name: value}).sha256() for name, value in changes.items()
    }
    swapped = dataclasses.replace(BASE, noise_multiplier=6.0, metrics_noise_multiplier=1.5)
    digests.add(swapped.sha256())
    assert len(digests) == len(changes) + 2


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
        + prefixed(b"metrics_noise_multiplier", number(6.0))
    )
    assert BASE.sha256() == hashlib.sha256(encoding).digest()


def test_joint_noise_multiplier_charges_both_releases():
    assert BASE.joint_noise_multiplier == pytest.approx((1 / 1.5**2 + 1 / 36) ** -0.5, rel=1e-14)
    assert NONE.joint_noise_multiplier == 0.0
