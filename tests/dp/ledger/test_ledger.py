"""The ledger: what it charges, the order of writing, refusals, two processes."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
import threading

import pytest

from dp.accounting import rdp
from dp.config import Mode
from dp.errors import (
    BudgetExceededError,
    IdentityError,
    LedgerCorruptError,
    LedgerLockedError,
    Reason,
    SpecError,
)
from dp.ledger import journal as journal_module
from dp.ledger.ledger import Identity, Ledger
from tests.kit.dp.ledgers import DELTA, charge, entry, none_entry, opened, record_at
from tests.kit.paths import ROOT


def test_charges_add_up_and_survive_reopening(path):
    with opened(path) as ledger:
        assert ledger.spent_epsilons() == {"silo": 0.0, "task": 0.0, "user": 0.0}
        for number in range(5):
            projected = ledger.projected_epsilons(entry(number).charges)
            ledger.reserve(entry(number))
            assert ledger.spent_epsilons() == projected
        spent, head = ledger.spent_epsilons(), ledger.head()
    assert spent["silo"] == pytest.approx(rdp.epsilon(rdp.rdp_gaussian(4.0, 5), DELTA), rel=1e-12)
    # A change inside the silo moves what it releases by up to twice the clip.
    inside = rdp.epsilon(rdp.rdp_gaussian(2.0, 5), DELTA)
    assert spent["task"] == spent["user"] == pytest.approx(inside, rel=1e-12)
    with opened(path, user=7.0) as ledger:
        assert ledger.spent_epsilons() == spent
        assert ledger.head() == head
        assert head[0] == 5
        assert not ledger.torn_tail_repaired
        assert (ledger.delta, dict(ledger.caps)) == (
            DELTA,
            {"silo": 100.0, "task": 100.0, "user": 7.0},
        )


def test_record_form(path):
    with opened(path) as ledger:
        ledger.reserve(entry(3, 1, part=2, step=4))
    record = record_at(path, 1)
    divergences = record["charges"][0].pop("rdp")
    assert divergences == list(rdp.rdp_gaussian(4.0, 1))
    assert len(record.pop("prev_sha256")) == 64
    assert 20_000 < record.pop("day") < 2**16
    assert record == {
        "kind": "spent",
        "seq": 1,
        "run": "run",
        "round": 3,
        "attempt": 1,
        "step": 4,
        "part": 2,
        "mode": "silo",
        "charges": [
            {"unit": "silo", "block": "vector", "q": 1.0, "z": 4.0, "steps": 1, "delta": 0.0}
        ],
        "d": 10,
        "descriptor_sha256": "00" * 32,
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_over_budget_is_refused_before_anything_is_written(path):
    cap = rdp.epsilon(rdp.rdp_gaussian(4.0, 3), DELTA)
    with opened(path, silo=cap) as ledger:
        for number in range(3):
            ledger.reserve(entry(number))
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError) as caught:
            ledger.reserve(entry(3))
        assert path.read_bytes() == before
        assert ledger.spent_epsilons()["silo"] == cap
        assert caught.value.reason is Reason.BUDGET_EXCEEDED
        assert caught.value.epsilon_cap == cap
        assert caught.value.unit == "silo"
        projected = ledger.projected_epsilons(entry(3).charges)["silo"]
        assert caught.value.projected_epsilon == projected > cap
        assert f"{cap:.6g}" in str(caught.value)
        assert f"{caught.value.projected_epsilon:.6g}" in str(caught.value)
        assert not ledger.has_spent(entry(3).identity)
        with pytest.raises(BudgetExceededError):
            ledger.reserve(entry(3, charges=(charge(z=1e-170),)))


def test_mode_none_is_marked_but_not_charged(path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        with pytest.raises(IdentityError):
            ledger.reserve(none_entry(0))
    with opened(path) as ledger:
        assert not any(ledger.spent_epsilons().values())
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
        "from dp.ledger.ledger import Ledger\n"
        "from dp.errors import LedgerLockedError\n"
        "try:\n"
        f"    Ledger.open(sys.argv[1], delta={DELTA}, caps={{'silo': 1.0}}).close()\n"
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
        {"step": 1 << 32},
        {"part": True},
        {"run": b"run"},
        {"dimension": 0},
        {"dimension": 1.0},
        {"descriptor_sha256": b"short"},
        {"descriptor_sha256": "0" * 32},
        {"charges": [charge()]},
        {"charges": (None,)},
        {"charges": ()},
        {"charges": (charge(q=0.5),)},
        {"charges": (charge("task"),)},
        {"charges": (charge(), charge("task"))},
        {"mode": Mode.NONE},
        {"mode": Mode.RECORD_LOCAL},
        {"mode": Mode.RECORD_LOCAL, "charges": (charge("task", q=0.5),)},
        {"mode": Mode.RECORD_LOCAL, "charges": (charge("task"), charge("user"))},
        {"mode": Mode.RECORD_DISTRIBUTED},
        {"mode": Mode.RECORD_DISTRIBUTED, "charges": ()},
        {"mode": Mode.RECORD_DISTRIBUTED, "charges": (charge("task"), charge())},
    ],
)
def test_impossible_entries(change):
    with pytest.raises(SpecError):
        dataclasses.replace(entry(), **change)


@pytest.mark.parametrize(
    ("delta", "caps"),
    [
        (0.0, {"silo": 1.0}),
        (1.0, {"silo": 1.0}),
        (0.1, {"silo": -1.0}),
        (0.1, {"silo": float("inf")}),
        (0.1, {"silo": float("nan")}),
        (0.1, {"silo": True}),
        (0.1, {"row": 1.0}),
    ],
)
def test_impossible_limits(path, delta, caps):
    with pytest.raises(SpecError):
        Ledger.open(path, delta=delta, caps=caps)
    assert not path.exists()
