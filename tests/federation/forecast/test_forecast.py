"""Forecasts: figures agree with the privacy core, and every gate refuses and can be passed."""

from __future__ import annotations

import math

import pytest

from dp.accounting.charge import run_charges
from dp.accounting.compose import Epsilon, shown_epsilon_of
from dp.accounting.rdp import epsilon, rdp_gaussian
from dp.accounting.snr import predicted_cosine
from dp.noise.share import per_silo_sigma
from federation.adapter.layout import Layout, TensorSpec
from federation.errors import PlanError
from federation.forecast.alternatives import alternatives
from federation.forecast.forecast import Forecast, forecast_plan, shared_dimension
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
SILO_DP = (EXAMPLES / "plan-silo-dp.toml").read_text()
DIMENSION = 4000


def plan_with(*edits: tuple[str, str], base: str = SILO_DP) -> Plan:
    for old, new in edits:
        assert base.count(old) == 1, old
        base = base.replace(old, new)
    return read_plan(base.encode())


def test_the_figures_are_those_of_the_privacy_core():
    plan = plan_with()
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert shown.refusals == ()
    assert shown.threshold == 111
    assert shown.drops == 40
    z = plan.privacy.noise_multiplier
    z_metrics = plan.privacy.metrics_noise_multiplier
    joint = (z**-2 + z_metrics**-2) ** -0.5
    assert (shown.mode, shown.noise_multiplier, shown.max_units) == ("silo", z, 1)
    assert (shown.releases, shown.charged_releases) == (10, 12)
    # A change inside a silo moves its delta by up to two clips, its metrics by √2 grids.
    inside = (4 * z**-2 + 2 * z_metrics**-2) ** -0.5
    for found, count in ((shown.epsilon_round, 1), (shown.epsilon_total, 12)):
        assert [*found] == ["silo", "task", "user"]
        for unit, of in (("silo", joint), ("task", inside), ("user", inside)):
            assert found[unit].epsilon == pytest.approx(epsilon(rdp_gaussian(of, count), 1e-5))
            assert not found[unit].exceptions
    assert shown.epsilon_total["silo"].epsilon < 8 < epsilon(rdp_gaussian(joint, 24), 1e-5)
    assert shown.units_for_min_cosine is None
    assert shown.silo_sigma == per_silo_sigma(z, 2**20, 111, 160, 20)
    assert shown.predicted_cosine == predicted_cosine(
        noise_multiplier=z, dimension=DIMENSION, silos=200, divisor=140
    )
    assert 0 < shown.ring_headroom_bits < 31


def test_bytes_follow_the_vector():
    plan = plan_with()
    small = forecast_plan(plan, silos=200, colluding=20, dimension=4000)
    large = forecast_plan(plan, silos=200, colluding=20, dimension=5000)
    assert large.bytes_up - small.bytes_up == 4 * 1000
    assert large.bytes_down - small.bytes_down == 8 * 1000
    assert small.bytes_up == 4 * 4005 + 1024 * 200


def test_the_cosine_gate_refuses_and_is_passed_only_by_the_flag():
    shown = forecast_plan(plan_with(), silos=200, colluding=20, dimension=1_000_000)
    (refusal,) = shown.refusals
    assert refusal.startswith("privacy.min_cosine")
    assert str(shown.silos_for_min_cosine) in refusal
    assert shown.silos_for_min_cosine > 200
    enough = predicted_cosine(
        noise_multiplier=2.4,
        dimension=1_000_000,
        silos=shown.silos_for_min_cosine,
        divisor=(shown.silos_for_min_cosine + 20) // 2 + 1 - 20,
    )
    assert 0.5 <= enough < 0.51
    accepted = plan_with(("min_cosine = 0.5", "min_cosine = 0.5\naccept_low_cosine = true"))
    assert forecast_plan(accepted, silos=200, colluding=20, dimension=1_000_000).refusals == ()


def test_epsilon_over_the_cap_is_refused():
    shown = forecast_plan(
        plan_with(("epsilon_cap = 8.0", "epsilon_cap = 4.0")),
        silos=200,
        colluding=20,
        dimension=DIMENSION,
    )
    (refusal,) = shown.refusals
    assert refusal.startswith("privacy.epsilon_cap")


def test_spare_attempts_are_paid_for():
    spare = forecast_plan(
        plan_with(("count = 10", "count = 10\nspare_attempts = 30")),
        silos=200,
        colluding=20,
        dimension=DIMENSION,
    )
    assert spare.charged_releases == 40
    assert any("epsilon_cap" in refusal for refusal in spare.refusals)


def test_a_small_cohort_is_refused_with_figures_all_the_same():
    shown = forecast_plan(plan_with(), silos=2, colluding=1, dimension=10)
    text = " ".join(shown.refusals)
    assert "roster" in text
    assert "n_min" in text
    assert "quorum" in text
    assert shown.drops < 0
    with pytest.raises(PlanError):
        forecast_plan(plan_with(), silos=0, colluding=1, dimension=10)


def test_a_sum_that_could_wrap_is_refused():
    plan = plan_with(("epsilon_cap = 8.0", "epsilon_cap = 8.0\ngrid = 10000000"))
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("ring:") for refusal in shown.refusals)
    assert shown.ring_headroom_bits < 0


def test_a_grid_too_coarse_for_the_dimension_is_refused():
    plan = plan_with(("epsilon_cap = 8.0", "epsilon_cap = 8.0\ngrid = 1000"))
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("privacy.grid:") for refusal in shown.refusals)


def test_noise_below_the_discrete_gaussian_is_refused():
    plan = plan_with(
        ("\nnoise_multiplier = 2.4", "\nnoise_multiplier = 1e-5"),
        ("epsilon_cap = 8.0", "epsilon_cap = 1e15"),
    )
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("noise:") for refusal in shown.refusals)


def test_without_noise_no_privacy_is_claimed():
    plan = read_plan((EXAMPLES / "plan-constant.toml").read_bytes())
    shown = forecast_plan(plan, silos=4, colluding=1, dimension=100)
    assert shown.refusals == ()
    assert shown.epsilon_round == {"silo": Epsilon(math.inf, unprotected_releases=1)}
    assert shown.epsilon_total["silo"].epsilon == math.inf
    assert shown.predicted_cosine == 1.0
    assert shown.silo_sigma == 0.0


COHORTS = {
    "plan-constant": (4, 1, 100),
    "plan-demo-environments": (4, 1, 49_152),
    "plan-demo-shards": (4, 1, 49_152),
    "plan-fed-se": (5, 1, 20_190_000),
    "plan-grpo": (4, 1, 305_280),
    "plan-record-distributed": (10, 1, 3072),
    "plan-record-local": (10, 1, 3072),
    "plan-silo-dp": (200, 20, DIMENSION),
}
"""Silos, colluders and uploaded coordinates that each shipped plan is written for."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("plan-*.toml")), ids=lambda path: path.stem)
def test_every_shipped_plan_can_start_with_the_cohort_it_is_written_for(path):
    silos, colluding, dimension = COHORTS[path.stem]
    plan = read_plan(path.read_bytes())
    shown = forecast_plan(plan, silos=silos, colluding=colluding, dimension=dimension)
    assert shown.refusals == ()
    if shown.mode in {"record_local", "record_distributed"}:
        assert shown.epsilon_total["task"].epsilon <= 8.0
        assert plan.privacy.delta == 1e-5
        assert shown.predicted_cosine > 0.9
    assert all(
        row.reason == "" or "explored" in row.reason
        for row in alternatives(plan, silos=silos, colluding=colluding, dimension=dimension)
    )


RECORD_LOCAL = (EXAMPLES / "plan-record-local.toml").read_text()
RECORD_DISTRIBUTED = (EXAMPLES / "plan-record-distributed.toml").read_text()


def record(base: str, *edits: tuple[str, str], silos: int = 10, dimension: int = 3072) -> Forecast:
    plan = plan_with(*edits, base=base)
    return forecast_plan(plan, silos=silos, colluding=1, dimension=dimension)


def test_the_record_modes_are_charged_as_the_ledger_charges_them():
    """One table for all: what ``dp.accounting.charge`` lists for the run, and nothing else."""
    for base, releases, charged in ((RECORD_LOCAL, 10, 12), (RECORD_DISTRIBUTED, 160, 192)):
        shown, spec = record(base), plan_with(base=base).spec
        charges = run_charges(spec, releases=charged, first_steps=12)
        assert shown.refusals == ()
        assert (shown.releases, shown.charged_releases) == (releases, charged)
        assert shown.epsilon_total == shown_epsilon_of(charges, 1e-5)
        assert 7.0 < shown.epsilon_total["task"].epsilon < 8.0
        one = run_charges(spec, releases=spec.sums_per_round, first_steps=1)
        assert shown.epsilon_round == shown_epsilon_of(one, 1e-5)


def test_the_upload_of_each_record_mode_has_its_own_clip_and_noise():
    local, distributed = record(RECORD_LOCAL), record(RECORD_DISTRIBUTED)
    assert (local.max_units, distributed.max_units) == (1, 128)
    assert local.silo_sigma == 0.0
    assert distributed.silo_sigma == per_silo_sigma(0.95, 2**20, 6, 7, 1)
    reach = 10 * 128 * (2**20 + 1) + 12 * distributed.silo_sigma * math.sqrt(10)
    assert distributed.ring_headroom_bits == pytest.approx(31 - math.log2(reach))
    assert local.ring_headroom_bits > 7
    # Every step is an aggregation of its own, with all its messages.
    assert distributed.bytes_up == 16 * local.bytes_up


def test_the_cosine_of_a_step_is_that_of_the_formula():
    """Noise √d·z·C/B̄ against a signal of C; shared by the silos in one mode, not in the other."""
    z_over_b, d = 0.95 / 64, 3072
    for base, divisor in ((RECORD_LOCAL, 1), (RECORD_DISTRIBUTED, 6)):
        noise = z_over_b * math.sqrt(d / (10 * divisor))
        assert record(base).predicted_cosine == pytest.approx(1 / math.hypot(1, noise), rel=1e-12)
    composed = record(
        RECORD_LOCAL, ("delta_clip_l2 = 2.0", "delta_clip_l2 = 2.0\nsilo_noise_multiplier = 0.5")
    )
    noise_sq = z_over_b**2 * d / 10 + 0.25 * d / (10 * 6)
    assert composed.predicted_cosine == pytest.approx(1 / math.sqrt(1 + noise_sq), rel=1e-12)
    assert set(composed.epsilon_total) == {"silo", "task", "user"}
    assert any("for a silo" in refusal for refusal in composed.refusals)


@pytest.mark.parametrize("base", [RECORD_LOCAL, RECORD_DISTRIBUTED], ids=["local", "distributed"])
def test_what_the_gate_says_would_help_does_help(base):
    """Silos or batch: the stated number passes the gate, one less does not."""
    large = 10_000_000
    shown = record(base, dimension=large)
    (refusal,) = shown.refusals
    assert refusal.startswith("privacy.min_cosine is 0.5")
    silos, units = shown.silos_for_min_cosine, shown.units_for_min_cosine
    assert f"use {silos} silos" in refusal
    assert f"expected_units to {units}" in refusal
    for count, passes in ((silos, True), (silos - 1, False)):
        assert (record(base, silos=count, dimension=large).predicted_cosine >= 0.5) is passes
    for count, passes in ((units, True), (units - 1, False)):
        batch = ("expected_units = 64", f"expected_units = {count}")
        edits = [batch]
        if "grid = 1_048_576" in base:
            edits.append(("grid = 1_048_576", "grid = 65536"))
        assert (record(base, *edits, dimension=large).predicted_cosine >= 0.5) is passes
    accepted = record(
        base, ("min_cosine = 0.5", "min_cosine = 0.5\naccept_low_cosine = true"), dimension=large
    )
    assert accepted.refusals == ()


def test_a_user_is_charged_as_a_user_and_hides_in_a_louder_block():
    """A user may have any number of tasks, so the whole block is one user's to change."""
    task, user = record(RECORD_LOCAL), record(RECORD_LOCAL, ('unit = "task"', 'unit = "user"'))
    assert user.epsilon_total["user"] == task.epsilon_total["task"]
    assert set(task.epsilon_total) == {"task"}
    # Its tasks pay as units inside it: another task in it is another contribution, not none.
    assert user.epsilon_total["task"].epsilon > 1.5 * user.epsilon_total["user"].epsilon
    assert user.metrics_silo_sigma == 20.0 * 2**16 > 10 * task.metrics_silo_sigma
    shared = record(RECORD_DISTRIBUTED)
    assert shared.metrics_silo_sigma == pytest.approx(task.metrics_silo_sigma / math.sqrt(6))


def test_no_batch_makes_up_for_the_noise_of_the_silo_mode():
    """Noise of the silo mode that drowns everything is not cured by a larger batch."""
    shown = record(
        RECORD_LOCAL,
        ("delta_clip_l2 = 2.0", "delta_clip_l2 = 2.0\nsilo_noise_multiplier = 100.0"),
    )
    assert shown.units_for_min_cosine is None
    assert "expected_units" not in " ".join(shown.refusals)


def test_a_grid_too_coarse_for_a_unit_is_refused_in_both_record_modes():
    for base in (RECORD_LOCAL, RECORD_DISTRIBUTED):
        edit = ("grid = 1_048_576", "grid = 500")
        if base is RECORD_LOCAL:
            edit = ("min_cosine = 0.5", "min_cosine = 0.5\ngrid = 500")
        shown = record(base, edit)
        assert any(refusal.startswith("privacy.grid:") for refusal in shown.refusals)


def test_the_shared_dimension_is_the_larger_factor():
    layout = Layout(
        (
            TensorSpec(name="l.lora_A.weight", shape=(2, 5)),
            TensorSpec(name="l.lora_B.weight", shape=(7, 2)),
        )
    )
    assert shared_dimension(plan_with(), layout) == 14
    assert shared_dimension(plan_with(('method = "rolora"', 'method = "fedavg"')), layout) == 24


@pytest.mark.parametrize(
    ("base", "line"),
    [
        (RECORD_LOCAL, "ready_after_s = 900"),
        (RECORD_DISTRIBUTED, "ready_after_s = 900"),
        (RECORD_DISTRIBUTED, "step_answer_after_s = 60"),
    ],
)
def test_a_record_plan_that_lets_times_show_cannot_start(base, line):
    """``run plan`` and ``run start`` refuse by these."""
    (refusal,) = record(base, (f"\n{line}", "")).refusals
    assert refusal.startswith(f"rounds.{line.split()[0]}: ")
