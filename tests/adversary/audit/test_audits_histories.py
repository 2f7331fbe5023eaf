"""ε of every kind of unit in random histories, against privacy loss distributions."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from tests.adversary.audit import catalogue
from tests.adversary.audit.histories import DELTA, Observer

REPLACED = dp_accounting.NeighboringRelation.REPLACE_ONE


def test_no_kind_is_shown_less_than_it_pays(tmp_path):
    results = catalogue.histories(tmp_path, catalogue.SHORT)
    assert [result.audit.split()[-1] for result in results] == ["silo", "user", "task"]
    for result in results:
        assert result.holds, str(result)
        # The other side is no stranger: accountants differ by a few parts in a hundred.
        assert result.measured > 0.8 * result.claimed


@pytest.mark.parametrize("kind", ["silo", "user", "task"])
def test_the_other_side_is_what_the_accountant_says(kind):
    """Two silo releases with one set of figures each, as one accountant composes them."""
    observer = Observer(kind)
    spec = catalogue.silo_spec(3.0)
    for step in range(2):
        observer.release(spec, step=step)
    own = kind == "silo"
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL if own else REPLACED
    vectors = PLDAccountant(relation, value_discretization_interval=1e-3)
    vectors.compose(dp_accounting.GaussianDpEvent(spec.noise_multiplier), 2)
    assert observer.epsilon() > vectors.get_epsilon(DELTA)
    # Figures lie √2 apart in the same z, where any two vectors lie 2 apart.
    figures = spec.metrics_noise_multiplier * (1.0 if own else 2.0**0.5)
    vectors.compose(dp_accounting.GaussianDpEvent(figures), 2)
    assert observer.epsilon() == pytest.approx(vectors.get_epsilon(DELTA), abs=0.02)
