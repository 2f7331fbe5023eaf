"""Which record charged what: the newest debit, and whose the newest sum without noise is."""

from __future__ import annotations

import json

import pytest

from dp.errors import LedgerCorruptError, SpecError
from dp.ledger import record as form
from dp.ledger.opening import cohort_of
from tests.kit.dp.ledgers import entry, none_entry, opened, record_at, trained


def test_a_receipt_names_its_own_record_whatever_is_written_after_it(path):
    with opened(path) as ledger:
        assert ledger.newest_debit() is None
        ledger.mark_joined(none_entry(0).identity, bytes(32))
        assert ledger.newest_debit() is None
        first = ledger.reserve(none_entry(0))
        second = ledger.reserve(entry(1))
        assert first.record.seq == 2
        assert record_at(path, second.record.seq)["kind"] == "spent"
        ledger.mark_agreed(entry(1).identity)
        ledger.require_contains(*first.record)
        ledger.require_contains(*second.record)
        assert ledger.newest_debit() == second.record != ledger.head()
    with opened(path) as ledger:
        assert ledger.newest_debit() == second.record


def test_a_training_is_a_debit(path):
    with opened(path) as ledger:
        trained(ledger)
        newest = ledger.head()
        ledger.mark_joined(none_entry(0).identity, bytes(32))
        assert ledger.newest_debit() == newest
    with opened(path) as ledger:
        assert ledger.newest_debit() == newest


def test_whose_a_sum_is_survives_and_noise_forgets_nothing(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        ledger.reserve(none_entry(0, part=1))
        assert ledger.cohort is None
        ledger.mark_agreed(none_entry(0).identity, cohort=("silo-b", "silo-a", "silo-c"))
        assert ledger.cohort == {"silo-a", "silo-b", "silo-c"}
        assert record_at(path, 3)["survivors"] == ["silo-a", "silo-b", "silo-c"]
        ledger.mark_agreed(none_entry(0, part=1).identity, cohort=("silo-a", "silo-b"))
        ledger.reserve(entry(0, run="with-noise"))
        ledger.mark_agreed(entry(0, run="with-noise").identity)
        assert "survivors" not in record_at(path, ledger.head().seq)
    with opened(path) as ledger:
        assert ledger.cohort == {"silo-a", "silo-b"}


@pytest.mark.parametrize(
    "names",
    [[], ["b", "a"], ["a", "a"], [""], ["a" * 64], [1], "ab", [f"{k:03d}" for k in range(201)]],
)
def test_a_record_that_names_no_possible_cohort_is_refused(names):
    with pytest.raises(SpecError):
        cohort_of(names)
    record = {"kind": "signed_r3", **none_entry(0).identity._asdict(), "survivors": names}
    with pytest.raises(SpecError):
        form.read_signed(json.loads(json.dumps(record)))
    with pytest.raises(LedgerCorruptError):
        form.read_signed({**record, "survivors": ["a"], "more": 1})
