"""Descriptor D: signature, rules, bounds, and that every field counts."""

import math
from dataclasses import fields, replace

import pytest

from secagg import transcript
from secagg.descriptor import (
    AggregationId,
    MetricsLayout,
    check_descriptor,
    check_identity,
    sign_descriptor,
    verify_descriptor,
)
from secagg.errors import Check, MalformedMessageError, ParameterError, VerificationError
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    ROOT_KEY,
    make_descriptor,
    make_roster,
    signed_descriptor,
)

_ROSTER = make_roster()
_D = make_descriptor(_ROSTER)


def test_a_good_descriptor_is_accepted():
    parameters = verify_descriptor(signed_descriptor(_D), _ROSTER)
    assert (parameters.n, parameters.c, parameters.t, parameters.n_min) == (5, 1, 4, 3)
    assert _D.words == 1002
    assert _D.length_bytes == 4008


def test_only_the_coordinator_signs_descriptors():
    with pytest.raises(VerificationError) as caught:
        verify_descriptor(sign_descriptor(_D, ROOT_KEY), _ROSTER)
    assert caught.value.check is Check.DESCRIPTOR_SIGNATURE


_METRICS = _D.metrics
_CHANGED = {
    "suite": 2,
    "identity": replace(_D.identity, attempt=1),
    "roster_sha256": bytes(32),
    "roster_epoch": 9,
    "cohort": _D.cohort[:-1],
    "colluding": 2,
    "threshold": 3,
    "n_min": 4,
    "plan_sha256": bytes(32),
    "base_model_sha256": bytes(32),
    "adapter_sha256": bytes(32),
    "layout_sha256": bytes(32),
    "dimension": 1001,
    "unit_clip": 2.0,
    "vector_clip": 2.0,
    "max_units": 2,
    "scale": 1.0,
    "metrics": replace(_METRICS, grid=4097),
    "ring_bits": 31,
    "noise_mechanism": "none",
    "noise_sigma": 999.0,
    "privacy_spec_sha256": bytes(32),
    "deadlines_unix_s": (1000, 1100, 1200, 1300, 1401),
}


# Fields that version 2 added.
_LATER = {
    "families": ("craft",),
    "task_sha256": bytes(32),
    "digest_id": 2,
}
_HYBRID = make_descriptor(_ROSTER, **HYBRID_FIELDS)


def test_the_table_of_changes_is_complete():
    assert {"version", *_CHANGED, *_LATER} == {field.name for field in fields(_D)}


def _assert_counts(original, altered):
    assert altered.sha256 != original.sha256
    assert transcript.context(altered, ()) != transcript.context(original, ())
    with pytest.raises(VerificationError) as caught:
        verify_descriptor(replace(signed_descriptor(original), descriptor=altered), _ROSTER)
    assert caught.value.check is Check.DESCRIPTOR_SIGNATURE


@pytest.mark.parametrize("name", sorted(_CHANGED))
def test_flipping_any_field_changes_the_digest_the_ctx_and_breaks_the_signature(name):
    _assert_counts(_D, replace(_D, **{name: _CHANGED[name]}))


@pytest.mark.parametrize("name", sorted({"version", *_CHANGED, *_LATER}))
def test_every_field_of_version_two_counts(name):
    changes = {**_CHANGED, **_LATER, "version": 3, "suite": 1}
    _assert_counts(_HYBRID, replace(_HYBRID, **{name: changes[name]}))


def test_a_version_has_its_one_suite_and_its_own_fields():
    assert not _D.is_hybrid
    assert verify_descriptor(signed_descriptor(_HYBRID), _ROSTER).t == 4
    assert _HYBRID.is_hybrid
    for changes in ({"version": 2}, {"families": ("craft",)}, {"digest_id": 1}):
        with pytest.raises(MalformedMessageError):
            replace(_D, **changes)
    for changes in ({"version": 1}, {"families": ()}, {"task_sha256": b""}, {"digest_id": 0}):
        with pytest.raises(MalformedMessageError):
            replace(_HYBRID, **changes)


@pytest.mark.parametrize("name", ["run_id", "round", "step", "part", "attempt"])
def test_every_part_of_the_identity_counts(name):
    changed = "run-2" if name == "run_id" else 7
    assert replace(_D, identity=replace(_D.identity, **{name: changed})).sha256 != _D.sha256


@pytest.mark.parametrize(
    "metrics",
    [
        replace(_METRICS, names=("episodes", "returns")),
        replace(_METRICS, bounds=(64.0, 65.0)),
        replace(_METRICS, sigma=17.0),
    ],
)
def test_every_part_of_the_metrics_layout_counts(metrics):
    assert replace(_D, metrics=metrics).sha256 != _D.sha256


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({**HYBRID_FIELDS, "version": 3}, Check.DESCRIPTOR_VERSION),
        ({**HYBRID_FIELDS, "suite": 1}, Check.DESCRIPTOR_VERSION),
        ({**HYBRID_FIELDS, "digest_id": 3}, Check.DESCRIPTOR_VERSION),
        ({"suite": 2}, Check.DESCRIPTOR_VERSION),
        ({"suite": 0}, Check.DESCRIPTOR_VERSION),
        ({"roster_sha256": bytes(32)}, Check.DESCRIPTOR_ROSTER),
        ({"roster_epoch": 2}, Check.DESCRIPTOR_ROSTER),
        ({"cohort": _D.cohort[::-1]}, Check.COHORT),
        ({"cohort": (*_D.cohort[:-1], _D.cohort[-2])}, Check.COHORT),
        ({"cohort": (*_D.cohort[:-1], "stranger")}, Check.COHORT),
        ({"n_min": 6}, Check.COHORT_SIZE),
        ({"n_min": 0}, Check.POLICY_THRESHOLD),
        ({"cohort": _D.cohort[:2], "n_min": 2}, Check.POLICY_THRESHOLD),
        ({"colluding": 0}, Check.POLICY_THRESHOLD),
        ({"colluding": 2}, Check.POLICY_THRESHOLD),
        ({"threshold": 3}, Check.POLICY_THRESHOLD),
        ({"threshold": 5}, Check.POLICY_THRESHOLD),
        ({"ring_bits": 64}, Check.RING),
        ({"noise_mechanism": "laplace"}, Check.NOISE),
        ({"noise_mechanism": "none"}, Check.NOISE),
        ({"noise_sigma": 0.0}, Check.NOISE),
        ({"noise_sigma": 3.99}, Check.NOISE),
        ({"metrics": replace(_METRICS, sigma=0.0)}, Check.NOISE),
        ({"metrics": MetricsLayout(names=(), bounds=(), grid=0, sigma=9.0)}, Check.NOISE),
        ({"scale": 2.0**29}, Check.NO_WRAP),
        ({"max_units": 2**12}, Check.NO_WRAP),
        ({"noise_sigma": 1e8}, Check.NO_WRAP),
        ({"noise_sigma": 1.7e308}, Check.NO_WRAP),
        ({"metrics": replace(_METRICS, grid=2**30)}, Check.NO_WRAP),
        ({"deadlines_unix_s": (1000, 1000, 1200, 1300, 1400)}, Check.DEADLINES),
        ({"deadlines_unix_s": (1000, 1100, 1200, 1400, 1300)}, Check.DEADLINES),
    ],
)
def test_rules(changes, check):
    with pytest.raises(VerificationError) as caught:
        check_descriptor(replace(_D, **changes), _ROSTER)
    assert caught.value.check is check


def test_noiseless_is_spelled_out():
    quiet = {"noise_mechanism": "none", "noise_sigma": 0.0}
    for sigma in (0.0, 16.0):
        check_descriptor(replace(_D, **quiet, metrics=replace(_METRICS, sigma=sigma)), _ROSTER)
    with pytest.raises(VerificationError) as caught:
        check_descriptor(replace(_D, **quiet, metrics=replace(_METRICS, sigma=3.99)), _ROSTER)
    assert caught.value.check is Check.NOISE


def test_no_wrap_at_the_exact_bound():
    # n·(Δ+1) < 2^31 with n = 4: Δ + 1 may reach 2^29 - 1 and not 2^29.
    roster = make_roster(n=4)
    noiseless = {
        "noise_mechanism": "none",
        "noise_sigma": 0.0,
        "metrics": replace(_METRICS, sigma=0.0),
    }
    at_bound = make_descriptor(roster, scale=2.0**29 - 2, **noiseless)
    check_descriptor(at_bound, roster)
    with pytest.raises(VerificationError) as caught:
        check_descriptor(replace(at_bound, scale=2.0**29 - 1), roster)
    assert caught.value.check is Check.NO_WRAP


@pytest.mark.parametrize(
    "changes",
    [
        {"unit_clip": math.nan},
        {"vector_clip": math.inf},
        {"scale": 0.0},
        {"scale": -1.0},
        {"noise_sigma": -0.0},
        {"noise_sigma": -1.0},
        {"unit_clip": 1},
        {"dimension": 0},
        {"dimension": 2**27 + 1},
        {"max_units": 0},
        {"cohort": ()},
        {"cohort": ("Bad",)},
        {"cohort": ["silo-000"]},
        {"plan_sha256": bytes(31)},
        {"noise_mechanism": ""},
        {"deadlines_unix_s": (1, 2, 3, 4)},
        {"deadlines_unix_s": (0, 1, 2, 3, 4)},
        {"version": True},
        {"identity": None},
    ],
)
def test_bounds(changes):
    with pytest.raises(MalformedMessageError):
        replace(_D, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"names": ("a",)},
        {"names": ("a", "a")},
        {"names": ("a", "")},
        {"bounds": (1.0, 0.0)},
        {"bounds": (1.0, math.inf)},
        {"grid": 0},
        {"sigma": math.nan},
    ],
)
def test_metrics_bounds(changes):
    with pytest.raises(MalformedMessageError):
        replace(_METRICS, **changes)


def test_identities_are_ordered_within_a_run():
    first = AggregationId(run_id="r", round=1, step=0, part=0, attempt=0)
    later = [
        replace(first, attempt=1),
        replace(first, part=1),
        replace(first, step=1),
        replace(first, round=2),
    ]
    assert sorted([*later, first]) == [first, *later]
    check_identity(first, None)
    for newer in later:
        check_identity(newer, first)
        with pytest.raises(VerificationError) as caught:
            check_identity(first, newer)
        assert caught.value.check is Check.IDENTITY
    with pytest.raises(VerificationError):
        check_identity(first, first)
    with pytest.raises(ParameterError):
        check_identity(first, replace(first, run_id="s"))


def test_malformed_identities():
    for changes in ({"round": -1}, {"attempt": 2**32}, {"run_id": ""}, {"run_id": "a b"}):
        with pytest.raises(MalformedMessageError):
            replace(_D.identity, **changes)
