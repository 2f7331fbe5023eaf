"""What several folders of tests share: made when the first test asks, once a session."""

import contextlib

import pytest

from server.store import Store
from server.store.schema import METADATA

pytest.register_assert_rewrite("tests.kit")
from tests.kit import postgresql_server, s3_server  # noqa: E402
from tests.kit.processes import constant_federation  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def templates(request, tmp_path_factory):
    """Where founded federations stand, which every worker copies."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    constant_federation.TEMPLATES[:] = [shared]


def pytest_collection_modifyitems(items):
    """Whole federations come first: they wait the most, and a worker with one of them left at the
    end would keep everybody waiting."""
    items.sort(key=lambda item: "system" not in item.path.parts)


MAX_NAMED_CHARS = 60


def pytest_make_parametrize_id(val, argname):
    """A long text is named by its length: the names of tests are there to be read and typed."""
    if isinstance(val, str | bytes) and len(val) > MAX_NAMED_CHARS:
        return f"{argname} of {len(val)}"
    return None


@pytest.fixture(scope="session")
def postgresql():
    reason = postgresql_server.unavailable()
    if reason:
        pytest.skip(reason)
    server = postgresql_server.PostgresqlServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def migrated(postgresql):
    """A database of the newest schema; emptied for each test, which is faster than making one."""
    name = postgresql.database()
    Store(postgresql.url(name)).close()
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request, tmp_path):
    """An empty database of each kind that a coordinator can have."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'coordinator.db'}"
    postgresql = request.getfixturevalue("postgresql")
    return postgresql.url(postgresql.database())


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """A database of the newest schema, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'coordinator.db'}"
    postgresql, name = request.getfixturevalue("postgresql"), request.getfixturevalue("migrated")
    tables = ", ".join(table.name for table in METADATA.sorted_tables)
    with contextlib.closing(postgresql.connect(name)) as connection:
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")
    return postgresql.url(name)


@pytest.fixture
def store(store_url):
    opened = Store(store_url, create=True)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """A tiny base model that nobody may write to."""
    from tests.kit.evolution import tiny_base

    base = tiny_base.build(tmp_path_factory.mktemp("tiny_base"))
    for path in (*base.iterdir(), base):
        path.chmod(0o555)
    return base


@pytest.fixture(scope="session")
def s3():
    server = s3_server.S3Server()
    yield server
    server.stop()
