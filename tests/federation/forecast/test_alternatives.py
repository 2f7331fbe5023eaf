"""The same plan in the other modes: calibrated to the cap, from the plan alone."""

from __future__ import annotations

import math

import pytest

from dp.accounting.charge import run_charges
from dp.accounting.compose import Epsilon, epsilon_of
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import SpecError
from federation.forecast.alternatives import Alternative, alternatives
from federation.plan.charges import epsilon_of_releases, units_of
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
SILO = read_plan((EXAMPLES / "plan-silo-dp.toml").read_bytes())
LOCAL = read_plan((EXAMPLES / "plan-record-local.toml").read_bytes())
DISTRIBUTED = read_plan((EXAMPLES / "plan-record-distributed.toml").read_bytes())
CONSTANT = read_plan((EXAMPLES / "plan-constant.toml").read_bytes())


def rows(plan: Plan, *, silos: int = 10, dimension: int = 3072) -> dict[str, Alternative]:
    found = alternatives(plan, silos=silos, colluding=1, dimension=dimension)
    assert [row.mode for row in found] == ["none", "silo", "record_local", "record_distributed"]
    return {row.mode: row for row in found}


def spec_of(row: Alternative, plan: Plan) -> PrivacySpec:
    mode = Mode(row.mode)
    record = None
    if row.expected_units is not None:
        record = RecordSpec(
            sampling_rate=row.sampling_rate,
            expected_units=row.expected_units,
            steps_per_round=row.steps_per_round,
            delta_clip_l2=1.0 if mode is Mode.RECORD_LOCAL else None,
        )
    return PrivacySpec(
        mode=mode,
        unit="task",
        clip_l2=1.0,
        noise_multiplier=row.noise_multiplier,
        metrics_noise_multiplier=row.metrics_noise_multiplier,
        delta=plan.privacy.delta,
        epsilon_cap=plan.privacy.epsilon_cap,
        grid=2**16,
        record=record,
    )


@pytest.mark.parametrize("plan", [SILO, LOCAL, DISTRIBUTED], ids=lambda plan: plan.name)
def test_every_mode_spends_the_cap_and_no_more(plan):
    """Charged like a ledger would, and a thousandth less noise would pass the cap."""
    for mode, row in rows(plan, silos=200).items():
        if mode == "none":
            continue
        releases = row.releases + math.ceil(0.2 * row.releases)
        for share, within in ((1.0, True), (0.998, False)):
            spec = spec_of(row, plan)
            less = PrivacySpec(
                **{name: getattr(spec, name) for name in spec.__slots__}
                | {"noise_multiplier": spec.noise_multiplier * share}
            )
            spent = epsilon_of(run_charges(less, releases=releases, first_steps=12), 1e-5)
            assert (spent[row.unit] <= 8.0) is within
        assert row.epsilon_total == pytest.approx(8.0, rel=5e-3)
        assert row.epsilon_round < row.epsilon_total


def test_the_unit_is_that_of_the_mode_and_none_has_no_epsilon():
    found = rows(LOCAL)
    assert [row.unit for row in found.values()] == [None, "silo", "task", "task"]
    bare = found["none"]
    assert bare.epsilon_total == bare.epsilon_round == math.inf
    assert (bare.predicted_cosine, bare.noise_multiplier) == (1.0, 0.0)


def test_sharing_the_noise_is_worth_the_root_of_the_divisor():
    """At the same epsilon and batch the noise in the mean differs by √(n·k/n) = √6."""
    found = rows(LOCAL)
    ratios = [
        math.sqrt(1 / found[mode].predicted_cosine ** 2 - 1)
        for mode in ("record_local", "record_distributed")
    ]
    assert ratios[0] / ratios[1] == pytest.approx(math.sqrt(6), rel=1e-3)
    assert found["silo"].predicted_cosine < 0.1
    assert found["record_local"].predicted_cosine > 0.9


def test_what_is_needed_shrinks_from_silo_to_record_distributed():
    found = rows(LOCAL, dimension=1_000_000)
    silo, local, shared = (found[m] for m in ("silo", "record_local", "record_distributed"))
    assert silo.silos_for_min_cosine > local.silos_for_min_cosine
    assert local.silos_for_min_cosine > shared.silos_for_min_cosine
    assert local.units_for_min_cosine > shared.units_for_min_cosine
    assert silo.units_for_min_cosine is None


def test_a_plan_without_a_record_table_lends_its_training():
    """B̄ = batch_size of 32 tasks, and as many steps as its two epochs are."""
    found = rows(SILO, silos=200)
    for mode in ("record_local", "record_distributed"):
        row = found[mode]
        assert (row.sampling_rate, row.expected_units, row.steps_per_round) == (0.25, 8, 8)
    assert (found["record_local"].releases, found["record_distributed"].releases) == (10, 80)
    own = rows(DISTRIBUTED)["record_local"]
    assert (own.sampling_rate, own.expected_units, own.steps_per_round) == (0.0625, 64, 16)


def test_a_mode_that_cannot_be_had_says_why():
    found = rows(CONSTANT)
    for mode in ("record_local", "record_distributed"):
        assert "nothing is explored" in found[mode].reason
        assert found[mode].unit is None
    assert found["silo"].reason == ""
    strict = read_plan(
        (EXAMPLES / "plan-record-local.toml")
        .read_bytes()
        .replace(b"epsilon_cap = 8.0", b"epsilon_cap = 0.0005")
    )
    for mode, row in rows(strict).items():
        assert (row.reason == "") is (mode == "none")
        assert row.reason == "" or "epsilon" in row.reason


def test_epsilon_has_a_figure_for_every_unit_of_the_plan():
    local, silo, bare = (plan.spec for plan in (LOCAL, SILO, CONSTANT))
    assert (units_of(local), units_of(silo), units_of(bare)) == (("task",), ("silo",), ("silo",))
    assert epsilon_of_releases(local, releases=0, first_steps=0) == {"task": Epsilon(0.0)}
    assert epsilon_of_releases(bare, releases=0, first_steps=0) == {"silo": Epsilon(0.0)}
    assert epsilon_of_releases(bare, releases=1, first_steps=1) == {
        "silo": Epsilon(math.inf, unprotected_releases=1)
    }
    spent = [
        epsilon_of_releases(local, releases=n, first_steps=n)["task"].epsilon for n in range(13)
    ]
    assert spent == sorted(spent)
    with pytest.raises(SpecError):
        epsilon_of_releases(local, releases=1, first_steps=2)


def test_composed_modes_state_both_units():
    plan = read_plan(
        (EXAMPLES / "plan-record-local.toml")
        .read_bytes()
        .replace(b"delta_clip_l2 = 2.0", b"delta_clip_l2 = 2.0\nsilo_noise_multiplier = 3.0")
    )
    spent = epsilon_of_releases(plan.spec, releases=12, first_steps=12)
    # A user lies between the two: the silo's noise is all that hides it.
    assert set(spent) == {"silo", "task", "user"}
    assert all(0 < found.epsilon < math.inf for found in spent.values())
    assert not any(found.exceptions for found in spent.values())
    # The other modes are compared without the composition.
    assert rows(plan)["record_local"].unit == "task"
