"""Migrations of older databases, and what several releases in one round need of the store."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

import federation.wire as federation_wire
from secagg.descriptor import AggregationId
from server.errors import StoreError
from server.store import Store, migrations
from server.store.aggregations import AggregationOutcome
from server.store.database import Database
from server.store.heads import HeadRow
from server.store.rounds import AttemptPlace
from server.store.schema import METADATA
from tests.unit.server_world_bundle import make_bundle
from tests.unit.test_server_store import FAMILIES, make_run, record, signed


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    yield opened
    opened.close()


@contextmanager
def migrated(directory, revision):
    """A database of an older schema, open for what was written under it."""
    url = f"sqlite:///{directory / 'old.db'}"
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    database = Database(url)
    with database.transaction() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        yield url, connection
    database.close()


def test_a_database_of_the_first_schema_keeps_its_rounds(tmp_path):
    with migrated(tmp_path, "r0001") as (url, connection):
        connection.execute(
            text("INSERT INTO runs VALUES ('r', 'n', x'00', x'00', 't', 'running', '', 1.0)")
        )
        connection.execute(
            text("INSERT INTO rounds VALUES ('r', 1, 1, 'finished', '{}', x'01', 'skipped', '{}')")
        )
    again = Store(url)
    (row,) = again.rounds.finished("r")
    assert (row.round, row.outcome) == (1, "skipped")
    assert again.aggregations.list("r") == ()
    with again.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    again.close()


def test_a_run_that_began_under_the_third_schema_goes_on_at_step_0(tmp_path):
    first, second = record(0), record(1)
    with migrated(tmp_path, "r0003") as (url, connection):
        connection.execute(
            text("INSERT INTO runs VALUES ('run-1', 'n', x'00', x'00', 't', 'running', '', 1.0)")
        )
        for number in (1, 2):
            connection.execute(
                text(
                    "INSERT INTO rounds VALUES "
                    "('run-1', 1, :attempt, 'masked_input', :phases, '', '')"
                ),
                {"attempt": number, "phases": '{"masked_input": 1.0}'},
            )
        for made in (first, second):
            connection.execute(
                text("INSERT INTO records VALUES ('run-1', :round, x'00', :record)"),
                {
                    "round": made.round,
                    "record": federation_wire.record_to_proto(made).SerializeToString(),
                },
            )
    again = Store(url)
    assert again.records.list("run-1") == (first, second)
    assert [(row.step, row.attempt) for row in again.rounds.list("run-1")] == [(0, 1), (0, 2)]
    assert again.rounds.charged("run-1")[:2] == (2, 2)
    assert again.heads.list() == ()
    # The keys hold the step now: what could not stand side by side before can.
    again.records.append(record(1, 1))
    for step in (0, 1):
        place = AttemptPlace(run_id="run-1", round=2, step=step, attempt=1)
        again.rounds.set_phase(place, "training", 1.0)
    with again.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        keys = {
            name: inspect(connection).get_pk_constraint(name)["constrained_columns"]
            for name in ("rounds", "records")
        }
    assert keys == {
        "rounds": ["run_id", "round", "step", "attempt"],
        "records": ["run_id", "round", "step"],
    }
    again.close()


def test_going_back_to_the_third_schema_drops_the_step(tmp_path):
    with migrated(tmp_path, "head") as (_, connection):
        connection.execute(
            text("INSERT INTO runs VALUES ('r', 'n', x'00', x'00', 't', 'running', '', 1.0)")
        )
        connection.execute(
            text(
                "INSERT INTO rounds (run_id, round, step, attempt, phase, phases_unix_s, outcome, "
                "figures_json) VALUES ('r', 1, 0, 1, '', '{}', '', '')"
            )
        )
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.downgrade(config, "r0003")
        columns = {column["name"] for column in inspect(connection).get_columns("rounds")}
        assert "step" not in columns
        assert connection.execute(text("SELECT round, attempt FROM rounds")).all() == [(1, 1)]
        assert not inspect(connection).has_table("ledger_heads")


def test_records_are_a_chain_without_gaps_or_replacements(store):
    make_run(store)
    first, second = record(0), record(1)
    store.records.append(first)
    with pytest.raises(StoreError):
        store.records.append(record(2))
    store.records.append(second)
    with pytest.raises(StoreError):
        store.records.append(record(1))
    assert store.records.list("run-1") == (first, second)
    assert store.records.list("other") == ()


def test_a_rounds_steps_follow_each_other_and_nothing_is_left_out(store):
    make_run(store)
    store.records.append(record(0))
    chain = [record(1), record(1, 1), record(1, 2), record(2), record(2, 1)]
    refused = {
        (1, 0): [(1, 1), (2, 0), (0, 0)],
        (1, 1): [(1, 0), (1, 2), (2, 1), (3, 0)],
        (2, 0): [(1, 2), (2, 1), (3, 0)],
    }
    for expected in chain:
        for place in refused.get((expected.round, expected.step), ()):
            with pytest.raises(StoreError, match="not the next"):
                store.records.append(record(*place))
        store.records.append(expected)
    assert [(r.round, r.step) for r in store.records.list("run-1")] == [
        (0, 0),
        *((r.round, r.step) for r in chain),
    ]


def test_the_newest_attempt_is_counted_for_each_step(store):
    make_run(store)
    for step, attempt, outcome in (
        (0, 1, AggregationOutcome.ABORTED),
        (0, 2, AggregationOutcome.RELEASED),
        (1, 1, AggregationOutcome.RELEASED),
    ):
        descriptor = signed(attempt, 1, step)
        store.aggregations.open(descriptor, FAMILIES)
        store.aggregations.end(descriptor.descriptor.identity, outcome)
    assert [store.aggregations.newest_attempt("run-1", 1, step) for step in range(3)] == [2, 1, 0]
    newest = [store.aggregations.newest("run-1", 1, step) for step in range(3)]
    assert [row and (row.identity.step, row.identity.attempt) for row in newest] == [
        (0, 2),
        (1, 1),
        None,
    ]
    assert [r.identity.step for r in store.aggregations.released("run-1", 1)] == [0, 1]


def test_a_silo_has_one_newest_head(store):
    def head(seq, attempt):
        return HeadRow(
            identity=AggregationId(run_id="r", round=1, step=2, part=0, attempt=attempt),
            bundle=make_bundle("silo-001", ledger_seq=seq),
            descriptor_sha256=b"\x05" * 32,
        )

    assert store.heads.get("silo-001") is None
    # Heights are unsigned 64-bit numbers on the wire.
    for row in (head(3, 1), head(2**64 - 1, 2)):
        store.heads.put(row)
        assert store.heads.get("silo-001") == row
    assert store.heads.list() == (head(2**64 - 1, 2),)
