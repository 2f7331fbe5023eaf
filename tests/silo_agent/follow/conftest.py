"""Fixtures that several files of this folder ask for."""

import pytest

from silo_agent.books.local_store import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)
