"""The record that a silo shows keys for an identity: once, in order, under one descriptor."""

import pytest

from dp.errors import IdentityError, LedgerCorruptError, SpecError
from tests.unit.dp_ledger_samples import none_entry, opened

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


def _fails(_descriptor):
    raise OSError("the disk is gone")
