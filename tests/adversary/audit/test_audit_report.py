"""Claims that the audits are held against, and that the long form forgets none of them."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from tests.adversary.audit import catalogue, report
from tests.adversary.audit.language_model import language_model


@pytest.mark.parametrize("steps", catalogue.CLAIMED_EPSILON)
def test_the_claim_is_the_accountants(steps):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    step = dp_accounting.PoissonSampledDpEvent(
        catalogue.Q, dp_accounting.GaussianDpEvent(catalogue.Z)
    )
    claimed = accountant.compose(step, steps).get_epsilon(catalogue.DELTA)
    assert claimed == pytest.approx(catalogue.CLAIMED_EPSILON[steps], abs=0.005)


def test_the_long_form_runs_every_audit():
    assert len(report.LONG) == len(catalogue.AUDITS) + 1


def test_one_run_on_the_language_model_in_small(tmp_path):
    (result,) = language_model(tmp_path, canaries=40, steps=2)
    assert result.holds
    assert 0.0 < result.claimed <= 8.0
