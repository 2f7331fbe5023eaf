"""Who serves: one process for a data directory, one session for a database."""

import asyncio
import contextlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from server import daemon
from server.errors import AlreadyServedError, StoreUnavailableError
from server.site import claim as claims
from server.site.claim import LOCK, SESSION_LOCK, Claim, claimed
from tests.kit.waiting import until

HOLDER = """
import sys, time
from pathlib import Path
from server.site.claim import Claim
held = Claim(Path(sys.argv[1]), "sqlite:///x.db")
print("held", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def other_process(data_dir):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def sqlite_of(directory):
    return f"sqlite:///{directory / 'coordinator.db'}"


def test_a_second_is_told_who_serves_and_takes_nothing_from_it(tmp_path):
    with other_process(tmp_path) as process:
        for _ in range(2):
            with pytest.raises(AlreadyServedError, match=f"pid {process.pid} on .*--standby"):
                Claim(tmp_path, sqlite_of(tmp_path))
        assert process.poll() is None
        process.kill()
        process.wait()
        with Claim(tmp_path, sqlite_of(tmp_path)):
            assert f"pid {os.getpid()} " in (tmp_path / LOCK).read_text()
            with pytest.raises(AlreadyServedError):
                Claim(tmp_path, sqlite_of(tmp_path))
    with Claim(tmp_path, sqlite_of(tmp_path)):
        assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600


def test_a_standby_waits_and_takes_over_when_the_other_is_killed(tmp_path):
    async def scenario(process):
        waiting = asyncio.create_task(
            claimed(tmp_path, sqlite_of(tmp_path), standby=True, stop=asyncio.Event())
        )
        await asyncio.sleep(3 * claims.LOOK_S)
        assert not waiting.done()
        process.kill()
        async with asyncio.timeout(10):
            return await waiting

    with other_process(tmp_path) as process, capture_logs() as logs:
        asyncio.run(scenario(process)).release()
    assert [line["event"] for line in logs] == ["standing_by", "standby_takes_over"]


def test_a_standby_that_is_told_to_stop_stops(tmp_path):
    async def scenario():
        stop = asyncio.Event()
        waiting = asyncio.create_task(
            claimed(tmp_path, sqlite_of(tmp_path), standby=True, stop=stop)
        )
        await asyncio.sleep(claims.LOOK_S)
        stop.set()
        async with asyncio.timeout(5):
            return await waiting

    with Claim(tmp_path, sqlite_of(tmp_path)):
        assert asyncio.run(scenario()) is None
        with pytest.raises(AlreadyServedError):
            asyncio.run(claimed(tmp_path, sqlite_of(tmp_path), standby=False, stop=asyncio.Event()))


@pytest.fixture
def places(tmp_path):
    made = tmp_path / "one", tmp_path / "two"
    for place in made:
        place.mkdir()
    return made


def end_session(server, name):
    """As a restart of the database does, for whoever holds the lock."""
    with contextlib.closing(server.connect(name)) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
            "AND objid = %s AND granted AND pid <> pg_backend_pid()",
            (SESSION_LOCK,),
        )


def test_two_directories_do_not_share_a_database(postgresql, places):
    url = postgresql.url(postgresql.database())
    one, two = places
    with Claim(one, url):
        with pytest.raises(AlreadyServedError, match="from another data directory"):
            Claim(two, url)
        # And the second let go of its directory.
        Claim(two, sqlite_of(two)).release()
    Claim(two, url).release()


def test_a_session_that_was_lost_is_made_anew(postgresql, places, monkeypatch):
    monkeypatch.setattr(claims, "HOLD_S", 0.05)
    name = postgresql.database()
    one, two = places

    async def hold(claim):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(claim.until_lost(), 1.0)
            return False
        return True

    with Claim(one, postgresql.url(name)) as claim:
        end_session(postgresql, name)
        with capture_logs() as logs:
            assert asyncio.run(hold(claim))
        assert "claim_renewed" in [line["event"] for line in logs]
        with pytest.raises(AlreadyServedError):
            Claim(two, postgresql.url(name))


def test_whoever_finds_its_lock_taken_has_lost(postgresql, places, monkeypatch):
    monkeypatch.setattr(claims, "HOLD_S", 0.05)
    name = postgresql.database()
    one, two = places

    async def lost(claim):
        async with asyncio.timeout(10):
            await claim.until_lost()

    with Claim(one, postgresql.url(name)) as claim:
        end_session(postgresql, name)
        with until(lambda: taken(two, postgresql.url(name)), "the lock is free"):
            asyncio.run(lost(claim))


def taken(place, url):
    with contextlib.suppress(AlreadyServedError):
        return Claim(place, url)
    return None


def test_a_database_that_does_not_answer_is_said(places):
    one, _ = places
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1"
    with pytest.raises(StoreUnavailableError):
        Claim(one, url)
    Claim(one, sqlite_of(one)).release()


def test_a_coordinator_whose_claim_was_taken_ends(postgresql, places, monkeypatch):
    monkeypatch.setattr(claims, "HOLD_S", 0.05)
    name = postgresql.database()
    one, two = places
    url, taken_by = postgresql.url(name), []

    async def serving(_config, process):
        # Again and again: whoever serves is quick to renew its session.
        take = lambda: end_session(postgresql, name) or taken(two, url)  # noqa: E731
        taken_by.append(await asyncio.to_thread(until, take, "the other has it"))
        async with asyncio.timeout(10):
            await process.stop.wait()

    monkeypatch.setattr(daemon, "_serve", serving)
    monkeypatch.setattr(daemon, "database_in_force", lambda _config: url)
    try:
        with pytest.raises(AlreadyServedError, match="this one ended"):
            asyncio.run(daemon._claim_and_serve(SimpleNamespace(data_dir=one), 0, standby=False))
    finally:
        for claim in taken_by:
            claim.release()
