"""The record that a silo shows keys for an identity: once, in order, under one descriptor."""

import pytest

from dp.errors import IdentityError, LedgerCorruptError, SpecError
from tests.kit.dp.ledgers import entry, none_entry, opened

D, OTHER = bytes(range(32)), bytes(32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def identity(number, attempt=0, **change):
    return none_entry(number, attempt, **change).identity


def test_an_identity_is_joined_once_and_in_order(path):
    with opened(path) as ledger:
        ledger.mark_joined(identity(2, 1), D)
        for stale in (identity(2, 1), identity(2), identity(1, 5)):
            for descriptor in (D, OTHER):
                with pytest.raises(IdentityError):
                    ledger.mark_joined(stale, descriptor)
        ledger.mark_joined(identity(2, 2), D)
        ledger.mark_joined(identity(0, run="other"), D)
    with opened(path) as ledger:
        assert ledger.highest_identity("run") == identity(2, 2)
        with pytest.raises(IdentityError):
            ledger.mark_joined(identity(2, 2), D)
        ledger.mark_joined(identity(3), D)


def test_after_agreeing_no_later_attempt_is_joined(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(4, 1, descriptor_sha256=D))
        ledger.mark_agreed(identity(4, 1))
    with opened(path) as ledger:
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.mark_joined(identity(4, 2), D)
        ledger.mark_joined(identity(5), D)


def test_a_joined_identity_is_charged_under_its_descriptor_alone(path):
    with opened(path) as ledger:
        ledger.mark_joined(identity(1), D)
    with opened(path) as ledger:
        assert ledger.has_joined(identity(1), D)
        assert not ledger.has_joined(identity(1), OTHER)
        with pytest.raises(IdentityError, match="another descriptor"):
            ledger.reserve(none_entry(1, descriptor_sha256=OTHER))
        ledger.reserve(none_entry(1, descriptor_sha256=D))


def test_an_attempt_before_the_joined_one_is_not_charged(path):
    with opened(path) as ledger:
        ledger.mark_joined(identity(1, 3), D)
        for older in (none_entry(1, 2), none_entry(0, 9)):
            with pytest.raises(IdentityError):
                ledger.reserve(older)


def test_the_descriptor_is_a_digest(path):
    with opened(path) as ledger, pytest.raises(SpecError):
        ledger.mark_joined(identity(1), D[:31])


def test_nothing_is_joined_once_a_write_failed(path, monkeypatch):
    with opened(path) as ledger:
        monkeypatch.setattr("os.fsync", _fails)
        with pytest.raises(LedgerCorruptError):
            ledger.mark_joined(identity(1), D)
        monkeypatch.undo()
        with pytest.raises(LedgerCorruptError):
            ledger.mark_joined(identity(2), D)
        assert not ledger.has_joined(identity(1), D)


def test_an_identity_is_joined_once_and_under_one_descriptor(path):
    first = none_entry(2, 1).identity
    with opened(path) as ledger:
        assert ledger.highest_identity("run") is None
        ledger.mark_joined(first, OTHER)
    with opened(path) as ledger:
        assert ledger.highest_identity("run") == first
        assert ledger.has_joined(first, OTHER)
        assert not ledger.has_joined(first, D)
        assert not ledger.has_joined(none_entry(2, 2).identity, OTHER)
        for stale in (first, none_entry(2, 0).identity, none_entry(1, 9).identity):
            for descriptor in (OTHER, D):
                with pytest.raises(IdentityError, match="not newer"):
                    ledger.mark_joined(stale, descriptor)
        # Nothing is charged, and nothing is spent.
        assert not any(ledger.spent_epsilons().values())
        assert ledger.unprotected_releases == 0
        assert not ledger.has_spent(first)
        with pytest.raises(IdentityError, match="never spent"):
            ledger.mark_agreed(first)


def test_what_is_charged_is_what_was_joined(path):
    joined = entry(2, 1).identity
    with opened(path) as ledger:
        ledger.mark_joined(joined, D)
        for wrong, why in (
            (entry(2, 1), "another descriptor"),
            (entry(2, 0, descriptor_sha256=D), "older"),
            (entry(1, 5, descriptor_sha256=D), "older"),
        ):
            with pytest.raises(IdentityError, match=why):
                ledger.reserve(wrong)
        assert not any(ledger.spent_epsilons().values())
        ledger.reserve(entry(2, 1, descriptor_sha256=D))
        assert ledger.has_spent(joined)
        assert ledger.has_spent(joined, D)
        assert not ledger.has_spent(joined, OTHER)
        # Parts of one step may be uploaded in any order, also after one of them was joined.
        ledger.mark_joined(entry(2, 0, part=1).identity, OTHER)
        ledger.reserve(entry(2, 0, part=1))
    with opened(path) as ledger:
        assert ledger.has_spent(joined, D)
        assert ledger.highest_identity("run") == entry(2, 0, part=1).identity


def test_what_was_charged_or_agreed_on_is_not_joined(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(2, 1))
        with pytest.raises(IdentityError, match="not newer"):
            ledger.mark_joined(none_entry(2, 1).identity, OTHER)
        ledger.mark_joined(none_entry(2, 2).identity, OTHER)
        ledger.reserve(none_entry(2, 2))
        ledger.mark_agreed(none_entry(2, 2).identity)
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.mark_joined(none_entry(2, 3).identity, OTHER)
        ledger.mark_joined(none_entry(3, 1).identity, OTHER)
        ledger.mark_joined(none_entry(0, 0, run="other").identity, OTHER)
    with opened(path) as ledger:
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.mark_joined(none_entry(2, 4).identity, OTHER)
        assert ledger.highest_identity("other") == none_entry(0, 0, run="other").identity


def _fails(_descriptor):
    raise OSError("the disk is gone")
