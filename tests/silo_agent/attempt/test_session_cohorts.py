"""Without noise a silo signs for those of its newest sum alone; every debit is known before R3."""

from __future__ import annotations

import pytest

from dp.config import Mode
from secagg import hybrid
from secagg.descriptor import AggregationId
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from silo_agent.books.ledger import ledger_identity, require_shrinking, round_entry
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import PolicyRefusalError, SessionError, TransportError
from tests.kit.silo_agent.policy_samples import MODES, make_plan
from tests.kit.silo_agent.session_round import NAMES, Round, spec_of


def at(number, *, run="run-1", part=0):
    return AggregationId(run_id=run, round=number, step=0, part=part, attempt=1)


def summed_before(one, cohort, *, identity=None):
    """The ledger holds a sum without noise of an earlier run."""
    place = identity or at(1, run="before")
    entry = round_entry(
        spec_of(Mode.NONE), identity=place, dimension=3, descriptor_sha256=bytes(32)
    )
    one.ledger.reserve(entry)
    one.ledger.mark_agreed(ledger_identity(place), cohort=cohort)


@pytest.fixture
def rounds(tmp_path):
    made = []

    def make(**arguments):
        made.append(Round(tmp_path, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.ledger.close()


@pytest.mark.parametrize("suite", [1, hybrid.SUITE])
def test_without_noise_nobody_signs_for_a_silo_that_was_not_there_before(rounds, suite):
    one = rounds(suite=suite)
    summed_before(one, NAMES[:3])
    message = one.survivors()
    for _ in range(2):
        with pytest.raises((VerificationError, UnexpectedMessageError)) as refused:
            one.session.handle(message)
        assert refused.value.check in {Check.COHORT_GREW, Check.UNEXPECTED_MESSAGE}
    assert one.session._state.aborted.check is Check.COHORT_GREW
    assert not one.ledger.has_agreed("run-1", 4, 0)
    assert one.wire.sent[-1][0] == "upload"
    assert one.ledger.cohort == set(NAMES[:3])


@pytest.mark.parametrize("suite", [1, hybrid.SUITE])
def test_a_cohort_that_does_not_grow_is_signed_and_is_the_newest_then(rounds, suite):
    one = rounds(suite=suite)
    summed_before(one, (*NAMES, "silo-999"))
    one.finish()
    assert one.ledger.cohort == set(NAMES)


def test_noise_asks_nobody_and_changes_nothing(rounds):
    one = rounds(mode=Mode.SILO)
    summed_before(one, NAMES[:1])
    one.finish()
    assert one.ledger.cohort == set(NAMES[:1])


def test_every_silos_word_lets_a_cohort_grow(rounds):
    one = rounds()
    one.may_vary = set(NAMES)
    summed_before(one, NAMES[:3])
    one.finish()
    assert one.ledger.cohort == set(NAMES)


def test_one_silos_word_is_not_everybodys(rounds):
    one = rounds()
    one.may_vary = set(NAMES[:3])
    summed_before(one, NAMES[:3])
    message = one.survivors()
    with pytest.raises(VerificationError) as refused:
        one.session.handle(message)
    assert refused.value.check is Check.COHORT_GREW


def test_a_cohort_that_cannot_be_agreed_on_is_refused_before_any_key(rounds):
    one = rounds()
    summed_before(one, NAMES[:3])
    plan = make_plan(*MODES["none"])
    require_shrinking(one.ledger, plan, NAMES[:3], may_vary=False)
    require_shrinking(one.ledger, plan, NAMES, may_vary=True)
    require_shrinking(one.ledger, make_plan(), NAMES, may_vary=False)
    with pytest.raises(PolicyRefusalError) as refused:
        require_shrinking(one.ledger, plan, NAMES, may_vary=False)
    assert refused.value.rule == "cohort_grew"
    assert NAMES[3] in refused.value.detail
    assert NAMES[3] not in refused.value.public_reason


def test_after_one_part_was_signed_no_other_part_is_joined(rounds):
    one = rounds()
    summed_before(one, NAMES, identity=at(4, part=2))
    with pytest.raises(SessionError, match="already signed"):
        one.open()
    assert one.wire.sent == []


def test_the_survivors_debits_are_known_before_the_signature_leaves(rounds, tmp_path):
    one = rounds()
    message = one.survivors()
    one.wire.fails_at = "check_consistency"
    with pytest.raises(TransportError):
        one.session.handle(message)
    known = LocalStore(tmp_path).peer_heads()
    for header in message.headers:
        assert known[header.silo_id].debit == header.debit


def test_an_upload_names_the_record_that_paid_for_it(rounds):
    one = rounds(mode=Mode.SILO)
    one.survivors()
    header = dict(one.wire.sent)["upload"]
    assert header.debit.seq == one.ledger.newest_debit().seq
    one.ledger.require_contains(header.debit.seq, header.debit.sha256)
    bundle = dict(one.wire.sent)["advertise_keys"]
    assert bundle.debit.seq == 0
    assert header.debit.seq > bundle.ledger_seq
