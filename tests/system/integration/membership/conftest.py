"""Fixtures that several files of this folder ask for."""

import pytest

from chorale.v1 import admin_pb2_grpc
from tests.kit.processes.renewing_silo import NUMBERS, Silo
from tests.kit.processes.server_harness import Coordinator


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    running = Coordinator(tmp_path_factory.mktemp("coordinator"))
    yield running
    running.close()


@pytest.fixture
def admin(coordinator):
    with coordinator.admin_channel() as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


@pytest.fixture
def silo(coordinator, tmp_path):
    made = Silo(coordinator, f"silo-{next(NUMBERS)}", tmp_path / "silo")
    yield made
    made.real.close()
