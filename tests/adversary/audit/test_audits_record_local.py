"""The short forms of the audits of ``record_local``; ``make audit`` runs the long ones."""

from __future__ import annotations

from tests.adversary.audit import catalogue


def holds(results):
    assert results
    found = [str(result) for result in results if not result.holds]
    assert not found, "\n".join(found)


def test_one_release_is_a_gaussian_of_the_claimed_noise(tmp_path):
    holds(catalogue.local_single(tmp_path, catalogue.SHORT))


def test_a_run_leaks_no_more_than_the_accountant_says(tmp_path):
    holds(catalogue.local_run(tmp_path, catalogue.SHORT))


def test_noise_is_in_every_coordinate_and_new_in_every_step(tmp_path):
    holds(catalogue.local_noise(tmp_path, catalogue.SHORT))


def test_noise_does_not_depend_on_the_number_of_units(tmp_path):
    holds(catalogue.local_scale(tmp_path, catalogue.SHORT))
