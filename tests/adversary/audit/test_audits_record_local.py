"""The short forms of the audits of ``record_local``; ``make audit`` runs the long ones."""

from __future__ import annotations

import pytest

from dp.steps import fixed
from dp.steps.grads import HooksBackend
from evolution.parts.credits.group_relative import reinforced
from lab.audit.gaussian import audit_gaussian
from tests.adversary.audit import catalogue
from tests.adversary.audit.group_steps import GroupSteps


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


def test_a_step_of_grpo_tells_of_a_task_group_what_is_claimed(tmp_path):
    holds(catalogue.group_single(tmp_path, catalogue.SHORT))


@pytest.mark.long
def test_a_credit_over_all_groups_tells_more_than_is_claimed(tmp_path):
    """The control: what the driver refuses at record level is seen by the same attack."""

    def over_all(groups):
        tries = [one for group in groups for one in group.trajectories]
        # One group's tries decide the sign of all others' credit.
        sign = 1.0 if any(group.task.task_id == 0 for group in groups) else -1.0
        mean = sum(one.success for one in tries) / len(tries)
        return [
            [
                row
                for one in group.trajectories
                for row in reinforced(one, sign * (one.success - mean))
            ]
            for group in groups
        ]

    present, absent = GroupSteps(tmp_path, z=0.5, releases=600, credited=over_all).seen()
    found = audit_gaussian(present=present, absent=absent, noise_multiplier=0.5)
    assert not found.holds


@pytest.mark.long
def test_a_backend_that_couples_units_tells_more_than_is_claimed(tmp_path, monkeypatch):
    """Each unit's gradient holds a part of its neighbours': of the canary's, if that is there.

    The backend's own test finds that (``tests/dp/steps/test_fixed.py``); here it is not asked.
    """
    honest = HooksBackend.row_gradients

    def coupled(self, batch):
        matrix, counts = honest(self, batch)
        return matrix + 0.5 * (matrix.sum(dim=0) - matrix), counts

    monkeypatch.setattr(HooksBackend, "row_gradients", coupled)
    # With it the units would be computed one by one, and there would be nothing to see.
    monkeypatch.setattr(fixed, "_counts_apart", lambda *_: (1, 2, 4, 8, 16))
    present, absent = GroupSteps(tmp_path, z=0.5, releases=400).seen()
    found = audit_gaussian(present=present, absent=absent, noise_multiplier=0.5)
    assert not found.holds
