"""What holds for every test of this folder."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_disk_wait(monkeypatch):
    """What dies in these tests is a process and never the machine, so no write waits for the disk.

    A disk that forgets is simulated (`crash_disk`). Power cuts are the subject of
    ``tests/dp/ledger/test_crash.py``.
    """
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
