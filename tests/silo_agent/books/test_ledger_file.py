"""A silo's ledger is new only where the silo is, and never older than what it remembers."""

import shutil
from types import SimpleNamespace

import pytest

from dp.errors import LedgerRolledBackError, TooManyDebitsError
from silo_agent.books.ledger import LEDGER_FILE, open_ledger
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.errors import ConfigError
from tests.kit.dp.ledgers import none_entry

POLICY = SimpleNamespace(
    privacy=SimpleNamespace(delta=1e-5, caps=lambda: {"silo": 8.0}),
    limits=SimpleNamespace(max_attempts_per_day=2),
)
HEAD = ChainHead(round=1, step=0, position=1, adapter_sha256=bytes(32), record_sha256=bytes(32))


def opened(directory):
    return open_ledger(SimpleNamespace(data_dir=directory), POLICY, LocalStore(directory))


def test_a_lost_ledger_is_not_replaced_by_a_new_one(tmp_path):
    opened(tmp_path).close()
    LocalStore(tmp_path).set_chain_head("run-1", HEAD)
    opened(tmp_path).close()
    (tmp_path / LEDGER_FILE).unlink()
    with pytest.raises(ConfigError, match="restore it from a backup"):
        opened(tmp_path)


def test_the_sites_ceiling_of_a_day_is_the_ledgers(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.reserve(none_entry(0))
        ledger.reserve(none_entry(1))
        with pytest.raises(TooManyDebitsError):
            ledger.reserve(none_entry(2))


def test_an_older_copy_of_the_ledger_is_refused(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.reserve(none_entry(0))
    shutil.copy(tmp_path / LEDGER_FILE, tmp_path / "old")
    with opened(tmp_path) as ledger:
        ledger.reserve(none_entry(1))
        LocalStore(tmp_path).set_ledger_head(*ledger.head())
    opened(tmp_path).close()
    shutil.copy(tmp_path / "old", tmp_path / LEDGER_FILE)
    with pytest.raises(LedgerRolledBackError):
        opened(tmp_path)
