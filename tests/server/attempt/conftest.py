"""Fixtures that several files of this folder ask for."""

import pytest

from tests.kit.server.played import Played


@pytest.fixture
def played(tmp_path):
    made = Played(tmp_path)
    yield made
    made.attempt.close()


@pytest.fixture
def uploading(played):
    return played.masking()
