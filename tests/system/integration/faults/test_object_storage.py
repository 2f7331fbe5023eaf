"""What only a network storage can do: be away, refuse, cut an answer, hold a foreign object."""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import threading
import time

import obstore
import pytest

from server.conductor import storage_faults
from server.config import CoordinatorConfig
from server.errors import BlobError, BlobUnavailableError, ConfigurationError
from server.metrics import CoordinatorMetrics
from server.rpc.catalogue import describe
from server.store.blobs import bucket as blob_bucket
from server.store.blobs import objects as blob_objects
from server.store.blobs.objects import ObjectBlobs
from server.store.blobs.opening import open_blobs
from server.store.blobs.storage import in_threads
from tests.kit import s3_server
from tests.kit.processes import constant_federation as cf


@pytest.fixture
def bucket(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.bucket()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "s3://",
        "s3://UPPER/x",
        "s3://key:secret@bucket/x",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "s3://bucket/x?endpoint=http://evil",
        "https://bucket.s3.amazonaws.com/x",
    ],
)
def test_a_url_names_a_bucket_and_a_prefix_and_nothing_else(tmp_path, bucket, url):
    with pytest.raises(ConfigurationError) as caught:
        ObjectBlobs(url, cache=tmp_path)
    assert "secret" not in str(caught.value)


def test_without_tls_only_loopback_is_spoken_to(tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example.org")
    with pytest.raises(ConfigurationError, match="https"):
        ObjectBlobs(f"s3://{bucket}", cache=tmp_path)


def test_credentials_come_from_a_file(tmp_path, bucket, s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = very-secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    blobs = ObjectBlobs(f"s3://{bucket}", cache=tmp_path / "cache")
    assert bytes(blobs.get(blobs.put(b"x"))) == b"x"
    assert "very-secret" not in repr(blobs._objects)
    path.write_text("very-secret, in no section\n")
    with pytest.raises(ConfigurationError, match="no readable profile") as caught:
        ObjectBlobs(f"s3://{bucket}", cache=tmp_path / "cache")
    assert "very-secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_bucket_that_is_not_there_is_no_missing_blob(tmp_path, bucket):
    blobs = ObjectBlobs("s3://no-such-bucket/x", cache=tmp_path, retries=0)
    with pytest.raises(BlobUnavailableError):
        blobs.put(b"x")


def test_a_foreign_object_is_not_fetched_beyond_the_bound(tmp_path, bucket, s3, monkeypatch):
    monkeypatch.setattr(blob_objects, "MAX_BYTES", 3 << 20)
    name = "aa" * 32
    obstore.put(s3.objects(bucket), f"aa/{name}", bytes(5 << 20))
    blobs = ObjectBlobs(f"s3://{bucket}", cache=tmp_path)
    with pytest.raises(BlobError, match="longer than"):
        blobs.get(bytes.fromhex(name))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_cache_is_bounded_and_mends_itself(tmp_path, bucket, s3):
    blobs = ObjectBlobs(f"s3://{bucket}", cache=tmp_path, cache_bytes=3000)
    names = []
    for number in range(5):
        names.append(blobs.put(bytes([number]) * 1000))
        os.utime(blobs._cache.path(names[-1]), (number, number))
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {name.hex() for name in names[2:]}
    # What was dropped comes back from the storage, and pushes out what was used least.
    assert bytes(blobs.get(names[0])) == bytes(1000)
    assert not blobs._cache.path(names[2]).exists()
    # A damaged file of the cache is fetched again, never handed out.
    blobs._cache.path(names[4]).write_bytes(b"damaged")
    assert bytes(blobs.get(names[4])) == b"\x04" * 1000
    assert len(s3.keys(bucket)) == 5


class Relay:
    """Between client and server; cuts each answer after so many bytes."""

    def __init__(self, port, after_bytes):
        self.answers, self._port, self._after = 0, port, after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            server.sendall(client.recv(65536))
            self.answers += 1
            left = self._after
            with contextlib.suppress(OSError):
                while left > 0 and (part := server.recv(min(left, 65536))):
                    client.sendall(part)
                    left -= len(part)

    def close(self):
        self._listener.close()


def test_an_answer_that_is_cut_is_an_outage_and_leaves_nothing(tmp_path, bucket, s3, monkeypatch):
    content = os.urandom(3 << 20)
    sha256 = ObjectBlobs(f"s3://{bucket}", cache=tmp_path / "a").put(content)
    relay = Relay(s3.port, 1 << 20)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
    blobs = ObjectBlobs(f"s3://{bucket}", cache=tmp_path / "b", retries=1)
    with pytest.raises(BlobUnavailableError):
        blobs.get(sha256)
    relay.close()
    assert relay.answers >= 1
    assert [path for path in (tmp_path / "b").rglob("*") if path.is_file()] == []


def test_an_outage_is_tried_again_then_typed_and_passes(tmp_path, monkeypatch):
    server = s3_server.S3Server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(blob_bucket, "RETRY_S", 1)
    monkeypatch.setattr(storage_faults, "FIRST_PAUSE_S", 0.2)
    bucket = server.bucket()
    blobs = ObjectBlobs(f"s3://{bucket}", cache=tmp_path, retries=2)
    sha256 = blobs.put(b"before")
    server.stop()
    with pytest.raises(BlobUnavailableError) as caught:
        blobs.put(b"during")
    answer = describe(caught.value)
    assert (answer.code.name, answer.text) == ("UNAVAILABLE", "internal error")
    # What the cache holds is served through an outage.
    assert bytes(blobs.get(sha256)) == b"before"

    async def scenario():
        """The loop goes on while threads wait for the storage, and so does the run afterwards."""
        ticks, stored = 0, []

        async def step():
            stored.append(await asyncio.to_thread(blobs.put, b"during"))

        async def tick():
            nonlocal ticks
            while not stored:
                await asyncio.sleep(0.01)
                ticks += 1

        async def back():
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.bucket, bucket)

        metrics = CoordinatorMetrics()
        waiting = storage_faults.over_storage_faults(step, run_id="r", metrics=metrics)
        await asyncio.gather(waiting, tick(), back())
        chunks = [chunk async for chunk in in_threads(blobs.chunks(stored[0]))]
        return ticks, chunks, metrics.registry.get_sample_value("chorale_storage_faults_total")

    ticks, chunks, faults = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert chunks == [b"during"]
    assert faults >= 1
    assert ticks > 50
    server.stop()


def test_a_slow_storage_does_not_hold_the_event_loop(tmp_path, monkeypatch, s3):
    """The storage accepts and says nothing; whatever else the coordinator does goes on."""
    silent = socket.create_server(("127.0.0.1", 0))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
    blobs = ObjectBlobs("s3://bucket", cache=tmp_path)

    async def scenario():
        reading = asyncio.ensure_future(anext(in_threads(blobs.chunks(b"\x01" * 32)), None))
        longest, last = 0.0, time.monotonic()
        for _ in range(50):
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert not reading.done()
        silent.close()
        reading.cancel()
        return longest

    async def bounded():
        loop = asyncio.get_running_loop()
        longest = await scenario()
        # The thread ends by itself once the socket is gone.
        await loop.shutdown_default_executor()
        return longest

    assert asyncio.run(bounded()) < 2.0


@pytest.mark.long
def test_a_run_keeps_its_adapters_in_object_storage(tmp_path, s3):
    """Real daemons: every adapter and sum is an object, and silos verify what they are given."""
    bucket = s3.bucket()
    with cf.federation(
        tmp_path,
        environment={
            **s3.environment,
            "CHORALE_COORDINATOR_ADAPTERS_URL": f"s3://{bucket}/oncology",
        },
    ) as loopback:
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=2))
        run_id = loopback.start_run(plan, adapter, token="s3")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [figures["outcome"] for figures in rounds] == ["aggregated"] * 2
        keys = s3.keys(bucket)
        # The initial adapter, each round's adapter, and the sum, which is the same in both.
        assert len(keys) == 4
        assert all(re.fullmatch(r"oncology/[0-9a-f]{2}/[0-9a-f]{64}", key) for key in keys)
        newest = last["run"]["adapter_sha256"]
        assert f"oncology/{newest[:2]}/{newest}" in keys
        assert not (loopback.data_dir / "adapters").exists()
        out = tmp_path / "out"
        loopback.chorale(
            "adapter", "export", run_id, "--out", str(out), "--data", str(loopback.data_dir)
        )
        assert json.loads((out / "provenance.json").read_text())
        assert "not-a-secret-key" not in loopback.log("coordinator")


def test_a_missing_package_is_named(tmp_path, bucket, monkeypatch):
    (tmp_path / "coordinator.toml").write_text(
        f'host_names = ["localhost"]\nadapters_url = "s3://{bucket}"\n'
    )
    for name in ("server.store.blobs.objects", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"chorale\[s3\]"):
        open_blobs(CoordinatorConfig.load(tmp_path))


def test_open_blobs_follows_the_configuration(tmp_path, bucket, monkeypatch):
    (tmp_path / "coordinator.toml").write_text('host_names = ["localhost"]\n')
    assert type(open_blobs(CoordinatorConfig.load(tmp_path))).__name__ == "BlobStore"
    monkeypatch.setenv("CHORALE_COORDINATOR_ADAPTERS_URL", f"s3://{bucket}/x")
    assert isinstance(open_blobs(CoordinatorConfig.load(tmp_path)), ObjectBlobs)
