"""The ledger: what it charges, the order of writing, refusals, two processes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dp import journal as journal_module
from dp import rdp
from dp.config import Mode
from dp.errors import (
    BudgetExceededError,
    IdentityError,
    LedgerCorruptError,
    LedgerLockedError,
    Reason,
    SpecError,
)
from dp.journal import HEADER_BYTES
from dp.ledger import Identity, Ledger
from tests.unit.dp_ledger_samples import DELTA, entry, frames, none_entry, opened

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.ledger"


def test_charges_add_up_and_survive_reopening(path):
    with opened(path) as ledger:
        assert ledger.spent_epsilon() == 0.0
        for number in range(5):
            projected = ledger.projected_epsilon(entry(number))
            ledger.reserve(entry(number))
            assert ledger.spent_epsilon() == projected
        ledger.reserve(entry(5, mode=Mode.RECORD_LOCAL, q=0.05, z=1.4, steps=200))
        spent, head = ledger.spent_epsilon(), ledger.head()
    total = rdp.rdp_gaussian(4.0, 5) + rdp.rdp_subsampled(0.05, 1.4, 200)
    assert spent == pytest.approx(rdp.epsilon(total, DELTA), rel=1e-12)
    with opened(path) as ledger:
        assert ledger.spent_epsilon() == spent
        assert ledger.head() == head
        assert head[0] == 6
        assert not ledger.torn_tail_repaired
        assert (ledger.delta, ledger.epsilon_cap) == (DELTA, 100.0)


def test_record_form(path):
    with opened(path) as ledger:
        ledger.reserve(entry(3, 1, part=2, step=4))
    data = path.read_bytes()
    start, end = frames(data)[1:3]
    record = json.loads(data[start + HEADER_BYTES : end])
    divergences = record.pop("rdp")
    assert divergences == list(rdp.rdp_gaussian(4.0, 1))
    assert len(record.pop("prev_sha256")) == 64
    assert record == {
        "kind": "spent",
        "seq": 1,
        "run": "run",
        "round": 3,
        "attempt": 1,
        "step": 4,
        "part": 2,
        "mode": "silo",
        "q": 1.0,
        "z": 4.0,
        "steps": 1,
        "d": 10,
        "descriptor_sha256": "00" * 32,
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_over_budget_is_refused_before_anything_is_written(path):
    cap = rdp.epsilon(rdp.rdp_gaussian(4.0, 3), DELTA)
    with opened(path, cap) as ledger:
        for number in range(3):
            ledger.reserve(entry(number))
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError) as caught:
            ledger.reserve(entry(3))
        assert path.read_bytes() == before
        assert ledger.spent_epsilon() == cap
        assert caught.value.reason is Reason.BUDGET_EXCEEDED
        assert caught.value.epsilon_cap == cap
        assert caught.value.projected_epsilon == ledger.projected_epsilon(entry(3)) > cap
        assert f"{cap:.6g}" in str(caught.value)
        assert f"{caught.value.projected_epsilon:.6g}" in str(caught.value)
        assert not ledger.has_spent(entry(3).identity)
        with pytest.raises(BudgetExceededError):
            ledger.reserve(entry(3, z=1e-170))


def test_mode_none_is_marked_but_not_charged(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        with pytest.raises(IdentityError):
            ledger.reserve(none_entry(0))
    with opened(path) as ledger:
        assert ledger.spent_epsilon() == 0.0
        assert ledger.unprotected_releases == 1
        assert ledger.has_spent(none_entry(0).identity)


def test_identities_are_spent_once_and_in_order(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(2, 1))
        for stale in (none_entry(2, 1), none_entry(2, 0), none_entry(1, 5)):
            with pytest.raises(IdentityError) as caught:
                ledger.reserve(stale)
            assert caught.value.reason is Reason.IDENTITY
        ledger.reserve(none_entry(2, 2))
        ledger.reserve(none_entry(2, 0, part=1))
        ledger.reserve(none_entry(2, 3))
        ledger.reserve(none_entry(0, 0, run="other"))
        assert ledger.highest_identity("run") == Identity("run", 2, 0, 1, 0)
        assert ledger.highest_identity("other") == Identity("other", 0, 0, 0, 0)
        assert ledger.highest_identity("third") is None
    with opened(path) as ledger:
        assert ledger.highest_identity("run") == Identity("run", 2, 0, 1, 0)
        with pytest.raises(IdentityError):
            ledger.reserve(none_entry(2, 3))
        ledger.reserve(none_entry(2, 0, step=1))
        with pytest.raises(IdentityError):
            ledger.reserve(none_entry(2, 9))


def test_after_agreeing_no_later_attempt_is_accepted(path):
    with opened(path) as ledger:
        with pytest.raises(IdentityError, match="never spent"):
            ledger.mark_agreed(none_entry(0).identity)
        ledger.reserve(none_entry(0))
        ledger.reserve(none_entry(0, part=1))
        assert not ledger.has_agreed("run", 0, 0, 0)
        ledger.mark_agreed(none_entry(0).identity)
        with pytest.raises(IdentityError, match="already agreed"):
            ledger.mark_agreed(none_entry(0).identity)
    with opened(path) as ledger:
        assert ledger.has_agreed("run", 0, 0, 0)
        assert not ledger.has_agreed("run", 0, 0, 1)
        assert not ledger.has_agreed("other", 0, 0, 0)
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.reserve(none_entry(0, 1))
        ledger.reserve(none_entry(0, 1, part=1))
        ledger.reserve(none_entry(1))


def test_bytes_and_directory_are_synced_before_reserve_returns(path, monkeypatch):
    trace = []
    for name in ("open", "write", "fsync", "ftruncate"):
        real = getattr(os, name)

        def spy(*arguments, _name=name, _real=real, **options):
            result = _real(*arguments, **options)
            kind = ""
            if _name == "fsync":
                kind = " dir" if stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else " file"
            trace.append(_name + kind)
            return result

        monkeypatch.setattr(journal_module.os, name, spy)
    with opened(path) as ledger:
        assert trace == ["open", "fsync file", "open", "fsync dir", "write", "fsync file"]
        trace.clear()
        ledger.reserve(none_entry(0))
        assert trace == ["write", "fsync file"]
        trace.clear()
        ledger.mark_agreed(none_entry(0).identity)
        assert trace == ["write", "fsync file"]


def test_second_process_is_refused(path):
    code = (
        "import sys\n"
        "from dp.ledger import Ledger\n"
        "from dp.errors import LedgerLockedError\n"
        "try:\n"
        f"    Ledger.open(sys.argv[1], delta={DELTA}, epsilon_cap=1.0).close()\n"
        "except LedgerLockedError:\n"
        "    sys.exit(75)\n"
    )

    def other():
        command = [sys.executable, "-c", code, str(path)]
        return subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode

    with opened(path):
        assert other() == 75
        with pytest.raises(LedgerLockedError) as caught:
            opened(path)
        assert caught.value.reason is Reason.LEDGER_LOCKED
    assert other() == 0
    opened(path).close()


def test_symlinks_forks_and_closed_ledgers(path, tmp_path, monkeypatch):
    ledger = opened(path)
    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "getpid", lambda: -1)
        with pytest.raises(LedgerLockedError, match="forked"):
            ledger.reserve(none_entry(0))
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerCorruptError, match="closed"):
        ledger.reserve(none_entry(0))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        opened(link)


def test_threads_do_not_double_spend(path):
    outcomes = []
    with opened(path) as ledger:

        def work():
            try:
                ledger.reserve(none_entry(0))
                outcomes.append("receipt")
            except IdentityError:
                outcomes.append("refused")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == ["receipt"] + ["refused"] * 7


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "silo"},
        {"run": ""},
        {"run": "x" * 257},
        {"round": -1},
        {"attempt": -1},
        {"steps": 0},
        {"dimension": 0},
        {"descriptor_sha256": b"short"},
        {"q": 0.0},
        {"q": 1.5},
        {"q": 0.5},
        {"z": 0.0},
        {"z": -1.0},
        {"z": math.inf},
        {"z": math.nan},
        {"mode": Mode.NONE},
    ],
)
def test_impossible_entries(change):
    with pytest.raises(SpecError):
        dataclasses.replace(entry(), **change)


@pytest.mark.parametrize(("delta", "cap"), [(0.0, 1.0), (1.0, 1.0), (0.1, 0.0), (0.1, math.inf)])
def test_impossible_limits(path, delta, cap):
    with pytest.raises(SpecError):
        Ledger.open(path, delta=delta, epsilon_cap=cap)
    assert not path.exists()


def test_divergences_are_stored_exactly(path):
    stored = entry(mode=Mode.RECORD_LOCAL, q=0.0123, z=0.77, steps=17)
    with opened(path, 1e6) as ledger:
        ledger.reserve(stored)
    data = path.read_bytes()
    start, end = frames(data)[1:3]
    record = json.loads(data[start + HEADER_BYTES : end])
    assert np.array_equal(record["rdp"], stored.rdp)


# Joining -----------------------------------------------------------------------------------------

A, B = bytes(32), bytes(range(32))


def test_an_identity_is_joined_once_and_under_one_descriptor(path):
    first = none_entry(2, 1).identity
    with opened(path) as ledger:
        assert ledger.highest_identity("run") is None
        ledger.mark_joined(first, A)
    with opened(path) as ledger:
        assert ledger.highest_identity("run") == first
        assert ledger.has_joined(first, A)
        assert not ledger.has_joined(first, B)
        assert not ledger.has_joined(none_entry(2, 2).identity, A)
        for stale in (first, none_entry(2, 0).identity, none_entry(1, 9).identity):
            for descriptor in (A, B):
                with pytest.raises(IdentityError, match="not newer"):
                    ledger.mark_joined(stale, descriptor)
        # Nothing is charged, and nothing is spent.
        assert ledger.spent_epsilon() == 0.0
        assert ledger.unprotected_releases == 0
        assert not ledger.has_spent(first)
        with pytest.raises(IdentityError, match="never spent"):
            ledger.mark_agreed(first)


def test_what_is_charged_is_what_was_joined(path):
    joined = entry(2, 1).identity
    with opened(path) as ledger:
        ledger.mark_joined(joined, B)
        for wrong, why in (
            (entry(2, 1), "another descriptor"),
            (entry(2, 0, descriptor_sha256=B), "older"),
            (entry(1, 5, descriptor_sha256=B), "older"),
        ):
            with pytest.raises(IdentityError, match=why):
                ledger.reserve(wrong)
        assert ledger.spent_epsilon() == 0.0
        ledger.reserve(entry(2, 1, descriptor_sha256=B))
        assert ledger.has_spent(joined)
        assert ledger.has_spent(joined, B)
        assert not ledger.has_spent(joined, A)
        # Parts of one step may be uploaded in any order, also after one of them was joined.
        ledger.mark_joined(entry(2, 0, part=1).identity, A)
        ledger.reserve(entry(2, 0, part=1))
    with opened(path) as ledger:
        assert ledger.has_spent(joined, B)
        assert ledger.highest_identity("run") == entry(2, 0, part=1).identity


def test_what_was_charged_or_agreed_on_is_not_joined(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(2, 1))
        with pytest.raises(IdentityError, match="not newer"):
            ledger.mark_joined(none_entry(2, 1).identity, A)
        ledger.mark_joined(none_entry(2, 2).identity, A)
        ledger.reserve(none_entry(2, 2))
        ledger.mark_agreed(none_entry(2, 2).identity)
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.mark_joined(none_entry(2, 3).identity, A)
        ledger.mark_joined(none_entry(3, 1).identity, A)
        ledger.mark_joined(none_entry(0, 0, run="other").identity, A)
    with opened(path) as ledger:
        with pytest.raises(IdentityError, match="agreed on"):
            ledger.mark_joined(none_entry(2, 4).identity, A)
        assert ledger.highest_identity("other") == none_entry(0, 0, run="other").identity


def test_joining_is_on_disk_before_it_returns(path, monkeypatch):
    with opened(path) as ledger:

        def full(*_):
            raise OSError(28, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "fsync", full)
            with pytest.raises(LedgerCorruptError, match="no space"):
                ledger.mark_joined(none_entry(0).identity, A)
        # Memory is not ahead of the disk, and the journal takes nothing more.
        assert ledger.highest_identity("run") is None
        with pytest.raises(LedgerCorruptError):
            ledger.mark_joined(none_entry(0).identity, A)
    with pytest.raises(SpecError, match="SHA-256"), opened(path) as ledger:
        ledger.mark_joined(none_entry(5).identity, b"short")


@pytest.mark.parametrize(
    "change", [{"descriptor_sha256": "00"}, {"descriptor_sha256": "x" * 64}, {"more": 1}]
)
def test_a_joined_record_of_another_form_is_damage(path, change):
    with opened(path):
        pass
    journal = journal_module.Journal(path)
    journal.load()
    record = {
        "kind": "joined",
        **none_entry(0).identity._asdict(),
        "descriptor_sha256": "00" * 32,
    }
    journal.append({**record, **change})
    journal.close()
    with pytest.raises(LedgerCorruptError):
        opened(path)
