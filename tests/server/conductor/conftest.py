"""Fixtures that several files of this folder ask for."""

import pytest

from tests.kit.server.server_runs import one_at_a_time


@pytest.fixture
def world(tmp_path, monkeypatch):
    with one_at_a_time(tmp_path, monkeypatch) as made:
        yield made
