"""systemd is told when the coordinator serves, that it lives, and that it stops."""

import os
import signal
import socket

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until


@pytest.fixture
def loopback(tmp_path):
    with cf.federation(tmp_path) as made:
        yield made


def test_ready_alive_and_stopping(loopback, tmp_path):
    loopback.kill("coordinator")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(tmp_path / "notify"))
        service.settimeout(60)
        loopback.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        loopback.start_coordinator()

        def told(*wanted):
            heard = []
            while not set(wanted) <= set(heard):
                heard += service.recv(256).decode().splitlines()
            return heard

        heard = told("READY=1", "STATUS=serving")
        assert "STATUS=bringing the database up to date" in heard
        told("WATCHDOG=1")
        os.kill(loopback.pid("coordinator"), signal.SIGTERM)
        told("STOPPING=1")
        until(lambda: not loopback.alive("coordinator"), "it ends")


def test_a_standby_has_started_when_it_waits(loopback, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(tmp_path / "notify"))
        service.settimeout(60)
        loopback.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        loopback._start(
            "second", "server.cli.coordinator", "serve", "--data", str(loopback.data_dir),
            "--standby",
        )  # fmt: skip
        heard = []
        while heard.count("WATCHDOG=1") < 2:
            heard += service.recv(256).decode().splitlines()
        assert {"READY=1", "STATUS=standing by"} <= set(heard)
