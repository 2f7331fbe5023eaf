"""Somebody holds the database's lock: the coordinator is up, says so, and says what is wrong."""

import sqlite3
import time
import urllib.request
from contextlib import closing

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

QUICK_S = 8.0
"""One read that waits for the lock would take ten."""


@pytest.fixture
def loopback(tmp_path):
    with cf.federation(tmp_path) as made:
        yield made


def ask(loopback, path):
    url = f"http://127.0.0.1:{loopback.probes_port}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:  # loopback
        return answer.status, answer.read().decode()


def test_probes_scrape_and_page_wait_for_no_writer_and_the_fault_is_counted(loopback):
    database = sqlite3.connect(loopback.data_dir / "coordinator.db", isolation_level=None)
    with closing(database):
        database.execute("BEGIN IMMEDIATE")
        for path in ("/livez", "/metrics", "/"):
            began = time.monotonic()
            status, _ = ask(loopback, path)
            assert status == 200, path
            assert time.monotonic() - began < QUICK_S, path
        assert "chorale_silos{" in ask(loopback, "/metrics")[1]
        # Ready: whoever reads is served, and nobody sends silos elsewhere.
        assert ask(loopback, "/readyz")[0] == 200
        until(
            lambda: loopback.metrics("coordinator")["chorale_storage_faults_total"] > 0,
            "the fault is counted, which ChoraleStorageFailing looks at",
            within_s=40,
        )
        database.execute("ROLLBACK")
    assert "store_not_writable" in loopback.log("coordinator")
