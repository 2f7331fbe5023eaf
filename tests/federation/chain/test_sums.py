"""The published sum: bytes, the metrics block's coordinates, agreement under noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp.noise.estimate import Estimate
from federation.chain.sums import (
    agreement,
    encode_sum,
    heterogeneity,
    metrics_layout,
    signed_sum,
    success_ratios,
)
from federation.errors import LayoutError, UpdateError
from federation.plan.plan import Plan
from tests.kit.federation.adapters import CLIP, plan_of, record_plan


def plan_with_episodes(count: int) -> Plan:
    plan = plan_of("fedavg")
    privacy = plan.privacy.model_copy(update={"exact_figures": True})
    evolve = plan.evolve.model_copy(update={"episodes_per_round": count})
    return plan.model_copy(update={"evolve": evolve, "privacy": privacy})


PLAN = plan_with_episodes(128)


def test_the_norm_is_bounded_by_what_a_silo_uploads():
    """A delta's clip where a delta goes up, B_max clips where a sum of units does."""
    declared = {f"silo{k}": ("maze",) for k in range(4)}
    for mode, bound in (("record_local", 2.0**2), ("record_distributed", (CLIP * 31) ** 2)):
        plan = record_plan(mode)
        spec = plan.spec
        names, bounds = metrics_layout(plan, declared, t=3, n_min=3)
        assert names[0] == "update_norm_sq"
        assert bounds[0] == bound == spec.release.vector_clip_l2**2


def test_a_sum_is_published_as_its_ring_elements():
    total = np.array([0, 1, -1, 2**31 - 1, -(2**31)], dtype=np.int64)
    content = encode_sum(total)
    ring = (total % 2**32).astype("<u4")
    assert content == ring.tobytes()
    assert content == encode_sum(np.frombuffer(content, "<i4"))
    for outside in (2**31, -(2**31) - 1):
        with pytest.raises(UpdateError, match="32 bits"):
            encode_sum(np.array([outside], dtype=np.int64))


@pytest.mark.parametrize("total", [np.zeros(3, np.uint32), np.zeros(3), np.zeros((3, 1), np.int64)])
def test_what_is_no_signed_vector_is_refused(total):
    with pytest.raises(UpdateError):
        signed_sum(total)


def test_families_declared_by_enough_silos_have_coordinates():
    declared = {f"silo{k}": ("maze", "craft") for k in range(4)}
    names, bounds = metrics_layout(PLAN, declared, t=3, n_min=3)
    assert names == (
        "update_norm_sq",
        "episodes/craft",
        "successes/craft",
        "episodes/maze",
        "successes/maze",
    )
    assert bounds == (CLIP**2, 128.0, 128.0, 128.0, 128.0)


def test_without_noise_there_are_no_coordinates_unless_the_plan_asks_for_them():
    """One silo that alone had something to report would report it in clear."""
    quiet = PLAN.model_copy(update={"privacy": plan_of("fedavg").privacy})
    declared = dict.fromkeys("abcd", ("maze",))
    assert quiet.spec.sha256() == PLAN.spec.sha256()
    assert metrics_layout(quiet, declared, t=3, n_min=3) == ((), ())
    with pytest.raises(LayoutError):
        metrics_layout(quiet, {"a": ("a b",)}, t=3, n_min=3)
    for mode in ("record_local", "record_distributed"):
        assert metrics_layout(record_plan(mode), declared, t=3, n_min=3).names


def test_rare_families_are_folded():
    declared = {"a": ("maze",), "b": ("craft",), "c": ("wordle",), "d": ("babyai",)}
    names, _ = metrics_layout(PLAN, declared, t=3, n_min=3)
    assert names == ("update_norm_sq", "episodes/other", "successes/other")


@pytest.mark.parametrize(("t", "n_min"), [(3, 3), (3, 4), (4, 3)])
def test_the_least_number_is_the_larger_of_t_and_n_min(t, n_min):
    declared = {"a": ("maze",), "b": ("maze",), "c": ("maze",)}
    names, _ = metrics_layout(PLAN, declared, t=t, n_min=n_min)
    assert ("episodes/maze" in names) == (max(t, n_min) == 3)


def test_other_needs_as_many_silos_as_a_family():
    """One silo's rare family alone under ``other`` would be that silo's own figure."""
    declared = {"a": ("maze",), "b": ("maze",), "c": ("maze",), "d": ("maze", "rare")}
    names, _ = metrics_layout(PLAN, declared, t=3, n_min=3)
    assert names == ("update_norm_sq", "episodes/maze", "successes/maze")


def test_only_families_of_the_plan_fill_other():
    declared = {silo: ("maze", f"own-{silo}") for silo in "abc"} | {"d": ("maze", "craft")}
    names, _ = metrics_layout(PLAN, declared, t=3, n_min=3)
    assert "episodes/other" in names
    filling = ("craft", "maze")
    names, _ = metrics_layout(PLAN, declared, t=3, n_min=3, filling=filling)
    assert names == ("update_norm_sq", "episodes/maze", "successes/maze")
    declared |= {"c": ("maze", "craft"), "b": ("craft",)}
    plenty = {**declared, "e": ("wordle",), "f": ("wordle",), "g": ("wordle",)}
    names, _ = metrics_layout(PLAN, plenty, t=4, n_min=3, filling=(*filling, "wordle"))
    assert "episodes/other" in names


def test_the_reserved_name_cannot_be_declared_into_place():
    declared = dict.fromkeys("abcd", ("other",))
    names, _ = metrics_layout(PLAN, declared, t=3, n_min=3)
    assert names == ("update_norm_sq", "episodes/other", "successes/other")


def test_the_order_of_declarations_does_not_matter():
    one = {"a": ("maze", "craft"), "b": ("craft", "maze"), "c": ("maze", "craft")}
    two = {key: tuple(reversed(one[key])) for key in "cba"}
    assert metrics_layout(PLAN, one, t=3, n_min=3) == metrics_layout(PLAN, two, t=3, n_min=3)


def test_a_plan_without_episodes_counts_none():
    declared = dict.fromkeys("abc", ("maze",))
    names, bounds = metrics_layout(plan_with_episodes(0), declared, t=3, n_min=3)
    assert names == ("update_norm_sq",)
    assert bounds == (CLIP**2,)


@pytest.mark.parametrize(
    "families",
    [("",), ("a b",), ("x" * 65,), ("a", "a"), tuple(f"f{k}" for k in range(65))],
    ids=["empty", "space", "long", "twice", "many"],
)
def test_malformed_declarations_are_refused(families):
    with pytest.raises(LayoutError):
        metrics_layout(PLAN, {"a": families}, t=3, n_min=3)


def test_success_ratios_carry_their_error():
    ratios = success_ratios(
        {
            "update_norm_sq": Estimate(1.0, 0.0),
            "episodes/maze": Estimate(100.0, 3.0),
            "successes/maze": Estimate(25.0, 4.0),
            "episodes/none": Estimate(0.0, 0.0),
            "successes/none": Estimate(0.0, 0.0),
        }
    )
    assert ratios["maze"].mean == 0.25
    assert ratios["maze"].standard_error == pytest.approx(math.hypot(4.0, 0.75) / 100)
    assert math.isnan(ratios["none"].mean)
    assert ratios["none"].standard_error == math.inf


def figures(vectors: np.ndarray, sigma: float, seed: int) -> tuple[Estimate, Estimate]:
    count, dimension = vectors.shape
    noise = np.random.default_rng(seed).normal(size=dimension) * sigma
    mean = (vectors.sum(axis=0) + noise) / count
    norm_sq = Estimate(float((vectors**2).sum(axis=1).mean()), 0.0)
    given = (float(mean @ mean), dimension * sigma**2 / count**2, norm_sq)
    return (
        agreement(*given, dimension=dimension),
        heterogeneity(*given, dimension=dimension),
    )


def test_equal_and_orthogonal_moves():
    same = np.tile(np.array([3.0, 4.0, 0.0, 0.0]), (4, 1))
    kappa, spread = figures(same, 0.0, 0)
    assert kappa.reportable == 1.0
    assert spread.mean == 0.0
    kappa, spread = figures(np.eye(4), 0.0, 0)
    assert kappa.reportable == pytest.approx(0.25)
    assert spread.reportable == pytest.approx(0.75)


def test_noise_is_subtracted_without_bias_and_its_error_is_right():
    vectors = np.random.default_rng(1).normal(size=(5, 400)) * 0.05 + 0.05
    true_kappa, true_spread = figures(vectors, 0.0, 0)
    runs = [figures(vectors, 0.2, seed) for seed in range(400)]
    for index, truth in enumerate((true_kappa, true_spread)):
        values = np.array([run[index].mean for run in runs])
        errors = np.array([run[index].standard_error for run in runs])
        spread = float(values.std())
        assert abs(values.mean() - truth.mean) < 4 * spread / math.sqrt(len(runs))
        assert float(errors.mean()) == pytest.approx(spread, rel=0.15)


def test_below_noise_is_not_reported():
    vectors = np.random.default_rng(2).normal(size=(4, 1000)) * 1e-3
    hidden = [figures(vectors, 10.0, seed)[0] for seed in range(50)]
    assert sum(math.isnan(figure.reportable) for figure in hidden) > 25
    assert all(figure.standard_error > 10 for figure in hidden)
    lost = agreement(1.0, 0.0, Estimate(0.5, 1.0), dimension=3)
    assert math.isnan(lost.reportable)


@pytest.mark.parametrize(
    ("mean_sq", "energy", "dimension"),
    [(math.nan, 0.0, 1), (-1.0, 0.0, 1), (1.0, -1.0, 1), (1.0, math.inf, 1), (1.0, 0.0, 0)],
)
def test_impossible_energies_are_refused(mean_sq, energy, dimension):
    with pytest.raises(UpdateError):
        agreement(mean_sq, energy, Estimate(1.0, 0.0), dimension=dimension)
