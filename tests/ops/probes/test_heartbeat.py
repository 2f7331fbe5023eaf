"""A loop that hangs is seen from outside it; systemd is told what it waits for."""

import asyncio
import socket
import threading
import time

import pytest

from federation.errors import ProbeError
from ops.probes import heartbeat
from ops.probes.heartbeat import LIVE_WITHIN_S, Heartbeat, tell_service_manager


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What systemd would read, one message at a time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(tmp_path / "notify"))
        service.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield lambda: service.recv(256).decode()


def test_a_loop_that_turns_beats_and_says_how_late(told, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    late = []
    heart = Heartbeat(late.append)

    async def held_up():
        beating = asyncio.create_task(heart.keep_beating())
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - whoever waits on the loop holds everybody up
        await asyncio.sleep(0.05)
        beating.cancel()

    asyncio.run(held_up())
    heart.require_beating()
    assert 0.2 < max(late) < 3.0
    assert told() == "WATCHDOG=1"


def test_a_loop_that_hangs_is_seen_by_other_threads():
    now = [100.0]
    heart = Heartbeat(clock=lambda: now[0])
    seen = []

    def ask():
        try:
            heart.require_beating()
        except ProbeError as error:
            seen.append(str(error))

    now[0] += LIVE_WITHIN_S
    threading.Thread(target=ask).run()
    assert seen == []
    now[0] += 1
    threading.Thread(target=ask).run()
    assert seen == ["the event loop has not turned for 61 s"]


def test_nothing_is_sent_where_nobody_listens(monkeypatch, tmp_path, capsys):
    for address in ("", "relative", str(tmp_path / "nobody")):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        tell_service_manager("READY=1")


def test_an_abstract_socket(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind("")
        service.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + service.getsockname()[1:].decode())
        tell_service_manager("READY=1\nSTATUS=serving")
        assert service.recv(64) == b"READY=1\nSTATUS=serving"
