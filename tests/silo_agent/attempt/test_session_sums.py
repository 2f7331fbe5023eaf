"""A session whose vector is a sum of unit gradients that may still be under way."""

from concurrent.futures import Future

import numpy as np
import pytest

from dp.accounting.charge import attempt_charges
from dp.accounting.compose import epsilon_of
from dp.config import Mode
from dp.errors import TooManyUnitsError
from secagg.descriptor import AggregationId
from silo_agent.errors import NotReadyError
from tests.kit.silo_agent.session_round import CLIP, DIMENSION, GRID, Round, spec_of
from tests.kit.silo_agent.unit_sums import UNIT, UNITS, sum_of

MODE = Mode.RECORD_DISTRIBUTED


def identity_of(step, attempt=1):
    return AggregationId(run_id="run-1", round=4, step=step, part=0, attempt=attempt)


@pytest.fixture
def rounds(tmp_path):
    made = []

    def make(step=0):
        made.append(Round(tmp_path, mode=MODE, delta=Future(), identity=identity_of(step)))
        return made[-1]

    yield make
    for one in made:
        one.session.close()
        one.ledger.close()


def test_the_sum_is_in_the_release_under_its_noise(rounds):
    one = rounds()
    one.delta.set_result(sum_of(UNITS))
    decoded = one.finish()
    # Five units of 0.25: the noise of σ = Δ/√2 on forty coordinates does not hide their mean.
    expected = UNITS * 0.25 * GRID / CLIP
    assert np.mean(decoded.delta) == pytest.approx(expected, abs=5 * GRID / np.sqrt(2 * DIMENSION))
    assert 0.3 < np.std(decoded.delta) / (GRID / np.sqrt(2)) < 1.8


@pytest.mark.parametrize("step", [0, 1])
def test_what_is_charged_is_one_subsampled_release(rounds, step):
    one = rounds(step)
    one.delta.set_result(sum_of(UNITS))
    one.finish()
    expected = epsilon_of(attempt_charges(spec_of(MODE), step=step), 1e-5)
    spent = one.ledger.spent_epsilons()
    assert spent["task"] == pytest.approx(expected["task"])
    assert spent["silo"] == 0.0


def test_boxes_that_come_too_early_change_nothing_and_are_taken_later(rounds):
    one = rounds()
    delivery = one.delivery()
    head = one.ledger.head()
    for _ in range(2):
        with pytest.raises(NotReadyError):
            one.session.handle(delivery)
    assert one.ledger.head() == head
    assert [name for name, _ in one.wire.sent] == ["advertise_keys", "share_keys"]
    one.delta.set_result(sum_of(UNITS))
    one.session.handle(delivery)
    assert [name for name, _ in one.wire.sent] == ["advertise_keys", "share_keys", "upload"]
    # Charged once, and the same boxes again get the same bytes.
    charged = one.ledger.head()
    one.session.handle(delivery)
    assert one.ledger.head() == charged
    assert charged[0] == head[0] + 1


def test_a_sample_of_too_many_units_ends_the_attempt_before_anything_is_charged(rounds):
    one = rounds()
    delivery = one.delivery()
    one.delta.set_exception(TooManyUnitsError("more units than may be summed"))
    with pytest.raises(TooManyUnitsError):
        one.session.handle(delivery)
    assert not one.ledger.has_spent(one.identity())
    assert "upload" not in [name for name, _ in one.wire.sent]
    assert one.spools() == []
    assert repr(one.session._state._vault) == "Vault(0 secrets)"


def test_a_session_that_is_closed_stops_a_sum_that_has_not_begun(rounds):
    one = rounds()
    one.bundles()
    one.session.close()
    assert one.delta.cancelled()


def test_a_sum_without_units_carries_the_full_noise(rounds):
    one = rounds()
    one.delta.set_result(sum_of(0))
    decoded = one.finish()
    assert 0.3 < np.std(decoded.delta) / (GRID / np.sqrt(2)) < 1.8


@pytest.mark.parametrize("units", [0, UNITS])
def test_a_sum_without_its_noise_never_reaches_the_upload(rounds, units):
    """What goes up is masked; taking every mask away still leaves the noise."""
    one = rounds()
    one.delta.set_result(sum_of(units))
    decoded = one.finish()
    plain = np.rint(units * UNIT * GRID / CLIP)
    assert np.count_nonzero(np.abs(decoded.delta - plain) > GRID / 1000) > 0.9 * DIMENSION
