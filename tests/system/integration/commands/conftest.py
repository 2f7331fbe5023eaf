"""Fixtures that several files of this folder ask for."""

import pytest

from tests.kit.processes.server_harness import Coordinator


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    running = Coordinator(tmp_path_factory.mktemp("coordinator"))
    yield running
    running.close()
