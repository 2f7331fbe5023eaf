"""Fixtures that several files of this folder ask for."""

import pytest

from tests.kit.server import status_page_samples as samples


@pytest.fixture
def coordinator(tmp_path):
    made = samples.Coordinator(tmp_path)
    yield made
    made.close()


@pytest.fixture
def running(tmp_path):
    made = samples.in_a_run(tmp_path)
    yield made
    made.close()
