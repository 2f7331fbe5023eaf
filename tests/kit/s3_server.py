"""A real S3 protocol server on loopback, for tests: moto's, in a process of its own."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass

import obstore
from obstore.store import S3Store

from lab.loopback import free_port
from tests.kit.waiting import until


@dataclass
class S3Server:
    """One server; what a bucket holds is lost when it stops."""

    port: int = 0
    _process: subprocess.Popen | None = None
    _buckets: int = 0

    def __post_init__(self) -> None:
        self.port = free_port()
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What an operator sets."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret-key",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": self.endpoint},
        )
        until(self._answers, "the S3 server answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the S3 server stopped at its start"
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()  # noqa: S310
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None

    def bucket(self, name: str | None = None) -> str:
        """Make an empty bucket; returns its name."""
        if name is None:
            self._buckets += 1
            name = f"bucket-{self._buckets}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")  # noqa: S310
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
        return name

    def objects(self, bucket: str) -> S3Store:
        """A client of the test's own, to look at what is there and to tamper with it."""
        named = {name.removeprefix("AWS_").lower(): v for name, v in self.environment.items()}
        named["endpoint"] = named.pop("endpoint_url")
        named["region"] = named.pop("default_region")
        return S3Store(bucket, config=named, client_options={"allow_http": True})

    def keys(self, bucket: str) -> list[str]:
        found = obstore.list(self.objects(bucket)).collect()
        return sorted(meta["path"] for meta in found)
