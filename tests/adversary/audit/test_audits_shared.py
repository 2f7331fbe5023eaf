"""The short forms of the audits of sums over several silos; ``make audit`` runs the long ones."""

from __future__ import annotations

from tests.adversary.audit import catalogue


def holds(results):
    assert results
    found = [str(result) for result in results if not result.holds]
    assert not found, "\n".join(found)


def test_one_sum_of_units_is_a_gaussian_of_the_claimed_noise(tmp_path):
    holds(catalogue.shared_single(tmp_path, catalogue.SHORT))


def test_one_sum_of_deltas_and_its_metrics_are_gaussians_of_the_claimed_noise(tmp_path):
    holds(catalogue.silo_single(tmp_path, catalogue.SHORT))


def test_noise_shares_are_whole_and_unrelated(tmp_path):
    holds(catalogue.shared_noise(tmp_path, catalogue.SHORT))
