"""A data directory names the database it is served from, for commands that nobody told."""

import json
import shutil
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from sqlalchemy import make_url

from server.audit import AuditLog
from server.config import CoordinatorConfig
from server.errors import ConfigurationError, ServedDatabaseError, StoreError
from server.members.root import create_root
from server.site.backup import backup_to
from server.site.founding import Founding, found
from server.site.restore import restore
from server.store import Store
from server.store.database import Database
from server.store.served import RECORD, database_in_force, record_served
from tests.kit.server.store_samples import silo_row

URL = "CHORALE_COORDINATOR_DATABASE_URL"
ELSEWHERE = "postgresql://chorale@db.example.org/chorale"


@pytest.fixture
def data_dir(tmp_path):
    """Founded as the handbook's systemd service is: by a command that knows no URL."""
    public = create_root(tmp_path / "root")
    found(tmp_path / "data", Founding(hosts=("localhost",), root_public_key=public))
    return tmp_path / "data"


def serve(data_dir):
    """What a coordinator does with its database when it starts; holds one silo afterwards."""
    config = CoordinatorConfig.load(data_dir)
    with closing(Store(database_in_force(config))) as store:
        record_served(database_in_force(config), config.data_dir)
        if not store.silos.list():
            store.silos.enrol(silo_row())


def silos(url):
    with closing(Store(url)) as store:
        return [row.silo_id for row in store.silos.list()]


def test_a_command_without_the_services_environment_finds_the_services_database(
    data_dir, tmp_path, postgresql, monkeypatch
):
    """The founding left a SQLite file; a backup of that one would hold nobody."""
    name = postgresql.database()
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"127.0.0.1:*:*:chorale:{postgresql.password}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv(URL, postgresql.url(name))
    serve(data_dir)
    monkeypatch.delenv(URL)
    with pytest.raises(StoreError, match=f"PostgreSQL database '{name}' at 127.0.0.1"):
        backup_to(tmp_path / "none.tar", CoordinatorConfig.load(data_dir))
    # What the unit has besides the URL is enough.
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    backup_to(tmp_path / "b.tar", CoordinatorConfig.load(data_dir))
    monkeypatch.delenv("PGPASSFILE")
    with (tmp_path / "b.tar").open("rb") as file:
        restore(file, tmp_path / "new")
    assert silos(database_in_force(CoordinatorConfig.load(tmp_path / "new"))) == ["hospital-a"]
    assert sorted(path.name for path in (tmp_path / "new").glob("*.db")) == ["coordinator.db"]


def test_the_record_is_private_and_has_no_password(data_dir, postgresql, monkeypatch):
    monkeypatch.setenv(URL, postgresql.url(postgresql.database()) + "?options=-c%20a.b=secret")
    record_served(database_in_force(CoordinatorConfig.load(data_dir)), data_dir)
    record = data_dir / RECORD
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    text = record.read_text()
    assert postgresql.password not in text
    assert "secret" not in text
    kept = make_url(json.loads(text)["url"])
    assert (kept.username, kept.host, kept.port) == ("chorale", "127.0.0.1", postgresql.port)
    plain = f"{ELSEWHERE}?password=hunter2&sslmode=verify-full&passfile=/run/pgpass"
    record_served(plain, data_dir)
    kept = make_url(json.loads(record.read_text())["url"])
    assert dict(kept.query) == {"sslmode": "verify-full", "passfile": "/run/pgpass"}


@pytest.mark.parametrize("told", ["environment", "file"])
def test_another_database_than_the_served_one_is_not_opened(data_dir, monkeypatch, told):
    serve(data_dir)
    if told == "environment":
        monkeypatch.setenv(URL, ELSEWHERE)
    else:
        with (data_dir / "coordinator.toml").open("a") as file:
            file.write(f'database_url = "{ELSEWHERE}"\n')
    config = CoordinatorConfig.load(data_dir)
    source = URL if told == "environment" else "coordinator.toml"
    with pytest.raises(ServedDatabaseError, match=source) as caught:
        _ = database_in_force(config)
    for words in (str(data_dir / "coordinator.db"), "db.example.org", "chorale restore", RECORD):
        assert words in str(caught.value)
    # A move is said by removing the record; then the configured one counts.
    (data_dir / RECORD).unlink()
    assert database_in_force(config) == ELSEWHERE


@pytest.mark.parametrize(
    "same",
    [
        "postgres://other:password@DB.example.org:5432/chorale?sslmode=require",
        "postgresql+psycopg://chorale@/chorale?host=db.example.org",
    ],
)
def test_the_same_database_in_other_words_is_no_move(data_dir, monkeypatch, same):
    record_served(ELSEWHERE, data_dir)
    monkeypatch.setenv(URL, same)
    assert database_in_force(CoordinatorConfig.load(data_dir)) == same
    for other in ("/other", ":5433/chorale"):
        monkeypatch.setenv(URL, f"postgresql://chorale@db.example.org{other}")
        with pytest.raises(ServedDatabaseError):
            _ = database_in_force(CoordinatorConfig.load(data_dir))


def test_a_copy_of_the_directory_is_served_from_its_own_file(data_dir, tmp_path, monkeypatch):
    serve(data_dir)
    # A variable that is empty names nothing.
    monkeypatch.setenv(URL, "")
    copy = shutil.copytree(data_dir, tmp_path / "copy")
    shutil.rmtree(data_dir)
    url = database_in_force(CoordinatorConfig.load(copy))
    assert url == f"sqlite:///{copy / 'coordinator.db'}"
    assert silos(url) == ["hospital-a"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"url": 3}', b'{"url": "x"}', b"\xff"])
def test_a_damaged_record_is_not_guessed_at(data_dir, content):
    (data_dir / RECORD).write_bytes(content)
    with pytest.raises(ConfigurationError, match="remove it"):
        _ = database_in_force(CoordinatorConfig.load(data_dir))


def test_a_sqlite_file_is_made_only_by_founding_and_restoring(data_dir, tmp_path):
    before = AuditLog(data_dir / "audit.jsonl").tail(10)
    lost = data_dir / "coordinator.db"
    lost.unlink()
    config = CoordinatorConfig.load(data_dir)
    with pytest.raises(StoreError, match="absent"):
        backup_to(tmp_path / "b.tar", config)
    for command in (
        ("server.cli.coordinator", "serve"),
        ("server.cli.main", "doctor"),
        ("server.cli.main", "backup", "--out", str(tmp_path / "c.tar")),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command, "--data", data_dir],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert f"the SQLite database {lost} is absent" in done.stderr
        assert "defect" not in done.stderr
    assert not list(data_dir.glob("*.db*"))
    assert AuditLog(data_dir / "audit.jsonl").tail(10) == before


def test_a_file_that_goes_while_it_is_in_use_is_not_made_anew(data_dir):
    with closing(Database(database_in_force(CoordinatorConfig.load(data_dir)))) as database:
        assert database.revision() == database.newest_revision()
        for path in data_dir.glob("coordinator.db*"):
            path.unlink()
        database.close()
        with pytest.raises(StoreError):
            database.revision()
    assert not list(data_dir.glob("*.db"))
