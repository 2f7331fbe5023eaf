"""Fixtures that several files of this folder ask for."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.ledger"
