"""A private PostgreSQL from Debian's packages, for tests: own directory, own port, own processes.

``initdb`` refuses to run as root, so under root everything runs as the packages' user ``postgres``.
Passwords are asked for over TCP, as on a real server; nothing but loopback is listened on.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from lab.loopback import free_port
from tests.kit.waiting import until

SETTINGS = {
    # Data need not survive a power cut of the machine that tests: only its own crashes.
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}


def binaries() -> Path | None:
    """Where initdb and postgres are; None where they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def unavailable() -> str:
    """Why no server can be started here; empty if one can."""
    if binaries() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "initdb refuses root, and there is no user postgres"
    return ""


@dataclass
class PostgresqlServer:
    """One server; ``database`` makes databases in it."""

    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="chorale-pg-")))
    port: int = 0
    password: str = field(default_factory=lambda: secrets.token_hex(12), repr=False)
    _process: subprocess.Popen | None = None
    _count: int = 0

    def __post_init__(self) -> None:
        self.port = free_port()
        secret = self.directory / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            for path in (self.directory, secret):
                shutil.chown(path, "postgres", "postgres")
        self._call(
            "initdb", "--username=chorale", f"--pwfile={secret}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale=C", "--no-sync", f"--pgdata={self._data}",
        )  # fmt: skip
        self.start()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _as(self) -> dict:
        """How its processes are started."""
        rights = {"user": "postgres", "group": "postgres", "extra_groups": []}
        return {"cwd": self.directory, **(rights if os.geteuid() == 0 else {})}

    def _call(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(binaries() / name), *arguments],
            capture_output=True, text=True, timeout=60, check=False, **self._as(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it on the same data and port as before, and wait until it answers."""
        settings = {
            **SETTINGS,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
        }
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binaries() / "postgres"), "-D", str(self._data),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as(),
            )  # fmt: skip
        until(self._answers, "PostgreSQL answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.directory / "log").read_text()
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it at once, as a crash would: clients lose their connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
            self._process = None

    def close(self) -> None:
        """End it and delete everything."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, database: str) -> psycopg.Connection:
        """A plain connection, for what a test looks at or locks by itself."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="chorale", password=self.password,
            dbname=database, autocommit=True, connect_timeout=5,
        )  # fmt: skip

    def database(self) -> str:
        """Make a database; returns its name."""
        self._count += 1
        name = f"test_{self._count}"
        with contextlib.closing(self.connect("postgres")) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY wal_log")
        return name

    def url(self, database: str) -> str:
        """With the password, as no file should hold it."""
        return f"postgresql://chorale:{self.password}@127.0.0.1:{self.port}/{database}"
