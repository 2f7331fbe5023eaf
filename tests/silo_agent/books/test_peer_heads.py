"""A peer whose ledger went back in time is named, before any share leaves."""

import json
from dataclasses import replace

import pytest

from dp.ledger.ledger import Ledger
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from secagg.hybrid import KEM_KEY_BYTES
from secagg.messages import (
    NO_DEBIT,
    DebitHead,
    KemKeys,
    KeyBundle,
    KeyBundles,
    MaskedInputHeader,
    Survivors,
)
from silo_agent.books.ledger import ledger_identity
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.errors import LocalStoreError
from tests.kit.secagg.secagg_samples import make_roster, silo_names
from tests.kit.silo_agent.session_round import ME, NAMES, Round

ROSTER = make_roster(4)
PEER = silo_names(4)[1]


def digest_of(seq):
    return bytes([seq % 256]) * 32


def debit_of(seq, digest=None):
    return DebitHead(seq=seq, sha256=digest_of(seq) if digest is None else digest)


def bundle(silo_id, seq, digest=None, debit=None):
    """Of version 2 if it carries a debit."""
    kem_keys = KemKeys(cipher_key=bytes(KEM_KEY_BYTES), mask_key=bytes(KEM_KEY_BYTES))
    return KeyBundle(
        silo_id=silo_id,
        cipher_key=bytes(32),
        mask_key=bytes(32),
        ledger_seq=seq,
        ledger_sha256=digest_of(seq) if digest is None else digest,
        families=(),
        signature=bytes(64),
        kem_keys=None if debit is None else kem_keys,
        debit=debit,
    )


def uploads(*debits):
    """U3 as its headers show it: a silo and the record that its upload was charged by."""
    return Survivors(
        headers=tuple(
            MaskedInputHeader(
                silo_id=silo_id,
                length_bytes=4,
                masked_sha256=bytes(32),
                signature=bytes(64),
                debit=debit,
            )
            for silo_id, debit in debits
        )
    )


def bundles(*heads):
    return KeyBundles(bundles=tuple(bundle(*head) for head in heads))


def at(run="run-1", round_number=1, attempt=1):
    return AggregationId(run_id=run, round=round_number, step=0, part=0, attempt=attempt)


def admit(store, *heads, at=at(), roster=ROSTER):  # noqa: B008 - a frozen name
    PeerHeads(store).admit(bundles(*heads), roster, at)


def joined(ledger, identity):
    """The head that an honest silo's bundle for this identity carries."""
    ledger.mark_joined(ledger_identity(identity), bytes(32))
    return ledger.head()


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def test_the_highest_head_is_remembered_across_restarts(store, tmp_path):
    admit(store, (ME, 1), (PEER, 5))
    admit(store, (ME, 3), (PEER, 5))
    with pytest.raises(VerificationError) as refused:
        admit(LocalStore(tmp_path), (ME, 3), (PEER, 4))
    assert refused.value.check is Check.LEDGER_HEAD
    assert refused.value.silo == PEER
    assert "rolled back" in str(refused.value)


def test_two_records_under_one_number_are_a_fork(store):
    admit(store, (PEER, 5))
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, 5, bytes(32)))
    assert refused.value.check is Check.LEDGER_HEAD
    assert refused.value.silo == PEER


def caught(store):
    return store.peer_heads()[PEER].rolled_back


def anew():
    """The roster with another key of the peer."""
    entries = tuple(
        replace(entry, verification_key=bytes([7]) * 32) if entry.silo_id == PEER else entry
        for entry in ROSTER.entries
    )
    return replace(ROSTER, entries=entries, epoch=4)


def test_a_peer_that_was_caught_stays_caught_until_it_enrols_anew(store, tmp_path):
    """Otherwise the attempts that fail would make its ledger longer than what was seen of it."""
    admit(store, (PEER, 5))
    with pytest.raises(VerificationError):
        admit(store, (PEER, 5, bytes(32)), at=at(attempt=2))
    for seq in (5, 6, 1000):
        with pytest.raises(VerificationError, match="enrol anew") as refused:
            admit(LocalStore(tmp_path), (PEER, seq), at=at(round_number=seq))
        assert refused.value.silo == PEER
    admit(store, (PEER, 0), roster=anew())


def test_a_newer_identity_of_one_run_with_a_lower_head_is_a_proof(store):
    """Each identity that is joined is a new record, and must be newer than the run's last."""
    admit(store, (PEER, 5), at=at(round_number=2))
    with pytest.raises(VerificationError):
        admit(store, (PEER, 4), at=at(round_number=2, attempt=2))
    assert caught(store)


def test_the_newest_ledger_put_back_is_taken_at_its_word(store):
    """A head that is behind in another run may be an honest silo's, so it proves nothing."""
    admit(store, (PEER, 5))
    with pytest.raises(VerificationError, match="another order"):
        admit(store, (PEER, 4), at=at("run-2"))
    assert not caught(store)
    assert store.peer_heads()[PEER].seq == 5
    admit(store, (PEER, 5), at=at("run-2", attempt=2))
    admit(store, (PEER, 6), at=at("run-2", attempt=3))


def test_a_ledger_that_went_back_meets_its_own_record_when_it_grows_again(store):
    """Every attempt of it that fails appends a record; one of them has the number that was seen."""
    admit(store, (PEER, 7))
    for attempt, seq in enumerate((5, 6), start=1):
        with pytest.raises(VerificationError):
            admit(store, (PEER, seq, bytes(32)), at=at("run-2", attempt=attempt))
        assert not caught(store)
    for attempt, seq in enumerate((7, 8, 9), start=3):
        with pytest.raises(VerificationError):
            admit(store, (PEER, seq, bytes(32)), at=at("run-2", attempt=attempt))
        assert caught(store)


def test_the_order_in_which_two_runs_are_shown_frames_nobody(tmp_path):
    """Two honest silos; the coordinator holds back the bundles of run X until it has shown Y's."""
    other = silo_names(4)[2]
    orders = {PEER: "XY", other: "YX"}
    shown = {}
    ledgers = {}
    for silo_id, order in orders.items():
        ledger = Ledger.open(tmp_path / silo_id, delta=1e-5, caps={})
        ledgers[silo_id] = ledger
        for run in order:
            shown[silo_id, run] = joined(ledger, at(run))
    store = LocalStore(tmp_path)
    # This is ``other``: it joined Y first, so of the peer it sees Y's head and then X's.
    admit(store, (PEER, *shown[PEER, "Y"]), (other, *shown[other, "Y"]), at=at("Y"))
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, *shown[PEER, "X"]), (other, *shown[other, "X"]), at=at("X"))
    assert refused.value.silo == PEER
    later = [(silo, *joined(ledger, at("Z"))) for silo, ledger in ledgers.items()]
    admit(LocalStore(tmp_path), *later, at=at("Z"))
    for ledger in ledgers.values():
        ledger.close()


def test_no_head_of_a_refused_attempt_is_remembered(store):
    admit(store, (ME, 1), (PEER, 5))
    with pytest.raises(VerificationError):
        admit(store, (ME, 9), (PEER, 2))
    assert store.peer_heads()[ME].seq == 1


def test_a_silo_that_enrolled_anew_begins_a_new_ledger(store):
    admit(store, (PEER, 50))
    admit(store, (PEER, 1), roster=anew())
    assert store.peer_heads()[PEER].seq == 1


def test_only_members_of_the_roster_are_remembered(store, tmp_path):
    admit(store, (ME, 1), (PEER, 5))
    left = replace(ROSTER, entries=tuple(e for e in ROSTER.entries if e.silo_id != PEER), epoch=4)
    admit(store, (ME, 2), roster=left)
    assert set(LocalStore(tmp_path).peer_heads()) == {ME}


def test_what_cannot_be_remembered_lets_no_share_out(tmp_path, monkeypatch):
    one = Round(tmp_path)
    message = one.bundles()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("silo_agent.books.local_store.replace_file", full)
    with pytest.raises(LocalStoreError):
        one.session.handle(message)
    assert [name for name, _ in one.wire.sent] == ["advertise_keys"]
    assert repr(one.session._state._vault) == "Vault(0 secrets)"
    one.ledger.close()


@pytest.mark.parametrize("seen", ["behind", "forked"])
def test_a_rolled_back_peer_ends_the_attempt_before_any_share_leaves(tmp_path, seen):
    """The peers of this attempt show record 0; this silo has seen one of them at another place."""
    one = Round(tmp_path)
    peer = NAMES[2]
    known = bundle(peer, 3) if seen == "behind" else bundle(peer, 0, bytes([1]) * 32)
    PeerHeads(one.store).admit(KeyBundles(bundles=(known,)), one.roster.roster, at("another-run"))
    message = one.bundles()
    with pytest.raises(VerificationError) as refused:
        one.session.handle(message)
    assert (refused.value.check, refused.value.silo) == (Check.LEDGER_HEAD, peer)
    assert [name for name, _ in one.wire.sent] == ["advertise_keys"]
    assert repr(one.session._state._vault) == "Vault(0 secrets)"
    assert not one.ledger.has_spent(one.identity())
    one.session.close()
    one.ledger.close()


def test_heads_of_bundles_that_fail_a_check_are_not_remembered(tmp_path):
    one = Round(tmp_path)
    message = one.bundles()
    forged = tuple(
        replace(b, ledger_seq=2**40) if b.silo_id == NAMES[2] else b for b in message.bundles
    )
    with pytest.raises(VerificationError) as refused:
        one.session.handle(KeyBundles(bundles=forged))
    assert refused.value.check is Check.BUNDLE_SIGNATURE
    assert one.store.peer_heads() == {}
    one.session.close()
    one.ledger.close()


# Debits ------------------------------------------------------------------------------------------


def charged(store, seq, digest=None, *, at=at()):  # noqa: B008 - a frozen name
    PeerHeads(store).remember(uploads((PEER, debit_of(seq, digest))), ROSTER, at)


def test_a_ledger_that_grew_past_its_own_rollback_still_lacks_the_debit_that_was_seen(
    store, tmp_path
):
    """Rolled back to record 3, then joined where nobody saw it, under numbers nobody compares."""
    admit(store, (PEER, 5, None, debit_of(3)))
    charged(store, 6)
    with pytest.raises(VerificationError) as refused:
        admit(LocalStore(tmp_path), (PEER, 99, None, debit_of(3)), at=at("run-2"))
    assert (refused.value.check, refused.value.silo) == (Check.DEBIT_HEAD, PEER)
    assert not caught(store)
    admit(LocalStore(tmp_path), (PEER, 99, None, debit_of(6)), at=at("run-2", attempt=2))


def test_another_debit_under_the_same_number_is_a_proof(store, tmp_path):
    admit(store, (PEER, 5, None, debit_of(3)))
    charged(store, 6)
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, 99, None, debit_of(6, bytes(32))), at=at("run-2"))
    assert refused.value.check is Check.DEBIT_HEAD
    assert caught(LocalStore(tmp_path))


def test_a_newer_identity_of_one_run_with_a_lower_debit_is_a_proof(store, tmp_path):
    admit(store, (PEER, 5, None, debit_of(3)))
    charged(store, 6)
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, 99, None, debit_of(3)), at=at(attempt=2))
    assert refused.value.check is Check.DEBIT_HEAD
    assert caught(LocalStore(tmp_path))


def test_a_debit_is_a_record_that_the_ledger_may_not_be_behind(store):
    admit(store, (PEER, 5, None, debit_of(3)))
    charged(store, 6)
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, 6, bytes(32), debit_of(6)), at=at("run-2"))
    assert refused.value.check is Check.LEDGER_HEAD


@pytest.mark.parametrize("debit", [debit_of(6), debit_of(5, bytes(32))], ids=["after", "other"])
def test_a_debit_outside_the_ledger_that_is_signed_beside_it_is_refused(store, debit):
    with pytest.raises(VerificationError) as refused:
        admit(store, (PEER, 5, None, debit))
    assert (refused.value.check, refused.value.silo) == (Check.DEBIT_HEAD, PEER)
    assert store.peer_heads() == {}


def test_an_upload_charged_before_what_was_seen_is_not_signed_for(store, tmp_path):
    admit(store, (PEER, 9, None, debit_of(8)))
    for seq, digest in ((7, None), (8, bytes(32))):
        with pytest.raises(VerificationError) as refused:
            charged(store, seq, digest)
        assert (refused.value.check, refused.value.silo) == (Check.DEBIT_HEAD, PEER)
    assert LocalStore(tmp_path).peer_heads()[PEER].debit == debit_of(8)


def test_a_silo_without_a_debit_says_so_and_may(store):
    admit(store, (PEER, 0, None, NO_DEBIT))
    admit(store, (PEER, 4, None, NO_DEBIT), at=at("run-2"))


def test_a_round_of_suite_v1_forgets_no_debit(store):
    admit(store, (PEER, 5, None, debit_of(3)))
    admit(store, (PEER, 7), at=at("run-2"))
    PeerHeads(store).remember(uploads((PEER, None)), ROSTER, at("run-2"))
    assert store.peer_heads()[PEER].debit == debit_of(3)


def test_a_state_of_an_earlier_release_knows_no_debits(store, tmp_path):
    admit(store, (PEER, 5))
    path = tmp_path / "state.json"
    state = json.loads(path.read_text())
    del state["peers"][PEER]["debit"]
    path.write_text(json.dumps(state))
    assert LocalStore(tmp_path).peer_heads()[PEER].debit == NO_DEBIT
    state["peers"][PEER]["debit"] = {"seq": -1, "sha256": "00" * 32}
    path.write_text(json.dumps(state))
    with pytest.raises(LocalStoreError, match="damaged"):
        LocalStore(tmp_path)
