"""What holds for every test of this folder."""

import os

import pytest

from tests.kit.simulation.session_federation import Federation


@pytest.fixture(autouse=True)
def no_disk_wait(monkeypatch):
    """What dies in these tests is a process and never the machine, so no write waits for the disk.

    A disk that forgets is simulated (`crash_disk`). Power cuts are the subject of
    ``tests/dp/ledger/test_crash.py``.
    """
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def both_suites(request, monkeypatch):
    """Federations are of either suite in turn; for tests that are about both alike."""
    monkeypatch.setattr(Federation, "default_suite", request.param)
    return request.param
