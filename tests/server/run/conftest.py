"""Fixtures that several files of this folder ask for."""

import pytest

from tests.kit.server import world as sw


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made
