"""Databases of every earlier schema move to the newest one with what is in them, on both kinds.

A fresh coordinator of an old version is made by that version's own migrations and rows; nothing of
the newest code has touched it before it is opened.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, Table, inspect, select

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from server.errors import StoreError
from server.store import Store
from server.store.database import Database, _migrations
from server.store.rounds import AttemptPlace
from server.store.schema import METADATA
from tests.kit.server.store_samples import FAMILIES, record, signed, silo_row

REVISIONS = (
    "r0001",
    "r0002",
    "r0003",
    "r0004",
    "r0005",
    "r0006",
    "r0007",
    "r0008",
    "r0009",
    "r0010",
    "r0011",
    "r0012",
    "r0013",
)
HEAD = REVISIONS[-1]


def test_every_revision_is_tried():
    script = ScriptDirectory.from_config(_migrations(None))
    assert tuple(reversed([step.revision for step in script.walk_revisions()])) == REVISIONS
    assert Database.newest_revision() == HEAD


def put(connection, name, /, **values):
    """Add a row to a table as it is here; columns that it does not have are left out."""
    table = Table(name, MetaData(), autoload_with=connection)
    connection.execute(table.insert().values({k: v for k, v in values.items() if k in table.c}))


def fill(connection, revision):
    """One of everything that a coordinator of this revision writes."""
    row = silo_row()
    put(
        connection,
        "silos",
        silo_id=row.silo_id,
        spiffe_uri=row.spiffe_uri,
        verification_key=row.verification_key,
        certificate_sha256=row.certificate_sha256,
        certificate_expiry_unix_s=10,
        enrolled_unix_s=5,
        last_seen_unix_s=1.5,
        families='["maze"]',
        revoked=False,
        suspended=True,
        left=False,
    )
    put(
        connection,
        "invites",
        secret_sha256=b"\x09" * 32,
        silo_id="hospital-b",
        created_unix_s=1,
        expires_unix_s=2,
    )
    put(
        connection,
        "runs",
        run_id="run-1",
        name="n",
        plan=b"\x00",
        plan_sha256=b"\x05" * 32,
        submit_token="t",
        state="running",
        error="",
        created_unix_s=1.0,
        state_since_unix_s=2.0,
        suite=2,
    )
    for attempt in (1, 2):
        put(
            connection,
            "rounds",
            run_id="run-1",
            round=1,
            step=0,
            attempt=attempt,
            phase="masked_input",
            phases_unix_s='{"masked_input": 1.0}',
            descriptor=b"\x01",
            outcome="",
            figures_json="",
        )
    for made in (record(0), record(1)):
        put(
            connection,
            "records",
            run_id="run-1",
            round=made.round,
            step=0,
            adapter_sha256=made.adapter_sha256,
            record=federation_wire.record_to_proto(made).SerializeToString(),
        )
    if revision == "r0001":
        return
    identity = {"run_id": "run-1", "round": 1, "step": 0, "part": 0, "attempt": 1}
    put(
        connection,
        "aggregations",
        **identity,
        descriptor=secagg_wire.descriptor_to_proto(signed()).SerializeToString(),
        families_json='{"silo-001": ["maze"], "silo-003": []}',
        members_json='[["silo-001"]]',
        phases_closed=1,
        outcome="",
    )
    put(
        connection,
        "messages",
        **identity,
        phase="advertise_keys",
        silo_id="silo-001",
        body=b"public",
        sealed=b"secret",
    )
    put(connection, "folds", **identity, generation=1, silo_id="silo-001")


@pytest.mark.parametrize("revision", REVISIONS)
def test_what_an_older_coordinator_wrote_is_there_after_the_migration(empty_url, revision):
    with closing(Database(empty_url, create=True)) as database:
        with database.transaction() as connection:
            command.upgrade(_migrations(connection), revision)
            fill(connection, revision)
        assert database.revision() == revision
    with closing(Store(empty_url)) as store:
        with store.transaction() as connection:
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
            keys = {
                name: inspect(connection).get_pk_constraint(name)["constrained_columns"]
                for name in ("rounds", "records")
            }
        assert keys == {
            "rounds": ["run_id", "round", "step", "attempt"],
            "records": ["run_id", "round", "step"],
        }
        (kept,) = store.silos.list()
        suspended = revision >= "r0005"
        assert kept == silo_row(last_seen_unix_s=1.5, families=("maze",), suspended=suspended)
        assert [invite.silo_id for invite in store.invites.open()] == ["hospital-b"]
        run = store.runs.get("run-1")
        assert (run.state, run.state_since_unix_s) == ("running", 2.0 * (revision >= "r0006"))
        assert run.suite == (2 if revision >= "r0010" else 1)
        rows = store.rounds.list("run-1")
        assert [(row.round, row.step, row.attempt) for row in rows] == [(1, 0, 1), (1, 0, 2)]
        assert store.rounds.charged("run-1")[:2] == (2, 2)
        assert [made.round for made in store.records.list("run-1")] == [0, 1]
        # The keys hold the step now: what could not stand side by side before can.
        store.records.append(record(1, 1))
        for step in (0, 1):
            place = AttemptPlace(run_id="run-1", round=2, step=step, attempt=1)
            store.rounds.set_phase(place, "training", 1.0)
        assert store.aggregations.newest_attempt("run-1", 1, 0) == 2
        open_attempts = store.aggregations.unfinished()
        if revision == "r0001":
            assert open_attempts == ()
            return
        (attempt,) = open_attempts
        old = revision == "r0002"
        assert (attempt.descriptor, attempt.folded) == (signed(), ("silo-001",))
        assert attempt.families == ({} if old else FAMILIES)
        assert attempt.members == (() if old else (("silo-001",),))
        assert store.messages.with_secrets(attempt.identity)[0].sealed == b"secret"


def test_a_database_goes_back_as_far_as_its_rows_allow(empty_url):
    with (
        closing(Database(empty_url, create=True)) as database,
        database.transaction() as connection,
    ):
        command.upgrade(_migrations(connection), HEAD)
        fill(connection, HEAD)
        for revision in reversed(REVISIONS[:-1]):
            command.downgrade(_migrations(connection), revision)
        columns = {column["name"] for column in inspect(connection).get_columns("rounds")}
        assert "step" not in columns
        table = Table("rounds", MetaData(), autoload_with=connection)
        rows = connection.execute(select(table.c.round, table.c.attempt)).all()
        assert sorted(rows) == [(1, 1), (1, 2)]
        assert not inspect(connection).has_table("ledger_heads")
        command.downgrade(_migrations(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    # And forward again, on the same database.
    with closing(Store(empty_url)) as store:
        store.check_writable()


def test_a_database_of_a_newer_version_is_left_alone(store, store_url):
    with store.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r9999'")
    with pytest.raises(StoreError, match="newer version"):
        Store(store_url)
    with store.transaction() as connection:
        kept = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        assert kept == "r9999"
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{HEAD}'")  # noqa: S608


SEVERAL = """
import sys, time
from server.store import Store
time.sleep(max(0, float(sys.argv[2]) - time.time()))
store = Store(sys.argv[1], create=True)
store.check_writable()
print(store._database.revision())
"""


def test_processes_that_start_at_once_migrate_once(empty_url):
    at = str(time.time() + 4)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SEVERAL, empty_url, at],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in started:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, HEAD), err


def test_threads_may_migrate_databases_of_their_own_at_once(tmp_path):
    def migrate(number):
        Store(f"sqlite:///{tmp_path / f'{number}.db'}", create=True).close()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(migrate, number) for number in range(16)]:
            done.result()
