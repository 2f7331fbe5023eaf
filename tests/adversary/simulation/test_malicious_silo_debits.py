"""Attack 19 inside one aggregation: an upload whose charge is older than the silo's own R0.

A silo signs the head of its ledger in R0, and in the header of its upload the record that charged
it. A ledger that was put back between the two charges under a number it had used before. A failure:
survivors signed with such an upload among them, or an honest coordinator that counts it. Not a
failure: the silo is lost.
"""

from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import Check, VerificationError
from secagg.messages import DebitHead, Survivors
from tests.kit.simulation.secagg_cohort import LEDGER_SEQ, Cohort
from tests.kit.simulation.secagg_tampering import ME, PEER, assert_refused, resigned_upload

NOT_ABOVE = {
    "the head of R0 itself": DebitHead(seq=LEDGER_SEQ, sha256=bytes(32)),
    "before the head of R0": DebitHead(seq=LEDGER_SEQ - 1, sha256=bytes([9]) * 32),
    "no charge at all": DebitHead(seq=0, sha256=bytes(32)),
}


def uploaded(cohort):
    deliveries = cohort.share(cohort.advertise())
    headers = {}
    for name in cohort.names:
        cohort.states[name], _ = cohort.states[name].handle(deliveries[name])
        headers[name] = cohort.masked(name)
    return headers


@pytest.mark.parametrize("case", sorted(NOT_ABOVE))
def test_a19a_a_debit_that_does_not_rise_is_not_counted(case):
    """Attack 19: the coordinator goes on without that silo; the sum of the others is exact."""
    cohort = Cohort(5, suite=2)
    headers = uploaded(cohort)
    bad = resigned_upload(cohort, headers[PEER], cohort.members, debit=NOT_ABOVE[case])
    with pytest.raises(VerificationError) as caught:
        cohort.server.expect(bad)
    assert (caught.value.check, caught.value.silo) == (Check.DEBIT_HEAD, PEER)
    for name, header in headers.items():
        if name != PEER:
            cohort.take(header)
    signatures = cohort.agree(cohort.declare())
    cohort.unmask(signatures).apply(cohort.accumulator)
    np.testing.assert_array_equal(cohort.accumulator.view("<i4"), cohort.expected(cohort.alive))
    assert PEER not in cohort.alive


@pytest.mark.parametrize("case", sorted(NOT_ABOVE))
def test_a19b_no_silo_signs_survivors_with_a_debit_that_does_not_rise(case):
    """Attack 19: a coordinator that counts it gets no signature."""
    cohort = Cohort(5, suite=2)
    headers = uploaded(cohort)
    headers[PEER] = resigned_upload(cohort, headers[PEER], cohort.members, debit=NOT_ABOVE[case])
    survivors = Survivors(headers=tuple(headers.values()))
    for name in (ME, "silo-000", "silo-004"):
        assert_refused(cohort.states[name], survivors, Check.DEBIT_HEAD, PEER)


def test_a19c_a_debit_rewritten_by_the_coordinator_is_not_the_silos():
    """Attack 19: the header's signature covers it, and this silo's own header stays verbatim."""
    for name, check in ((PEER, Check.UPLOAD_SIGNATURE), (ME, Check.OWN_UPLOAD)):
        cohort = Cohort(5, suite=2)
        headers = uploaded(cohort)
        later = DebitHead(seq=LEDGER_SEQ + 9, sha256=bytes(32))
        headers[name] = replace(headers[name], debit=later)
        survivors = Survivors(headers=tuple(headers.values()))
        assert_refused(cohort.states[ME], survivors, check)
