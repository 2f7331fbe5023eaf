"""What a restarted silo does with spools it finds: which it sends, and which it deletes unsent."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dp.config import Mode
from dp.ledger.ledger import Ledger, LedgerEntry
from secagg.descriptor import AggregationId
from secagg.messages import MaskedInputHeader
from silo_agent.attempt.spool import Spool
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.ledger import ledger_identity
from silo_agent.errors import TransportError
from silo_agent.metrics import SiloMetrics

ME = "silo-a"
DESCRIPTOR = b"d" * 32
FIRST = AggregationId(run_id="run-1", round=3, step=0, part=0, attempt=1)
SECOND = replace(FIRST, attempt=2)
OTHER_RUN = replace(FIRST, run_id="run-2")
VECTOR = np.arange(1000, dtype=np.uint32)


class Wire:
    def __init__(self):
        self.sent = []
        self.fails = False

    def upload(self, identity, header, spool):
        if self.fails:
            raise TransportError("cut")
        self.sent.append((identity, header, b"".join(spool.chunks(0, 100))))


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1.0}) as opened:
        yield opened


def charge(ledger, identity, descriptor=DESCRIPTOR):
    ledger.mark_joined(ledger_identity(identity), descriptor)
    ledger.reserve(
        LedgerEntry(
            run=identity.run_id, round=identity.round, step=identity.step, part=identity.part,
            attempt=identity.attempt, mode=Mode.NONE, charges=(), dimension=1000,
            descriptor_sha256=descriptor,
        )
    )  # fmt: skip


def spool(tmp_path, identity=FIRST, silo_id=ME, descriptor=DESCRIPTOR):
    header = MaskedInputHeader(
        silo_id=silo_id,
        length_bytes=VECTOR.nbytes,
        masked_sha256=hashlib.sha256(VECTOR.tobytes()).digest(),
        signature=bytes(64),
    )
    return Spool.write(
        tmp_path / "spool", identity, VECTOR, header=header, descriptor_sha256=descriptor
    )


def restarted(tmp_path, ledger, metrics=None):
    return UnfinishedUploads(
        tmp_path / "spool", silo_id=ME, ledger=ledger, metrics=metrics or SiloMetrics()
    )


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "spool").iterdir())


def lines(capsys, event):
    return [line for line in capsys.readouterr().out.splitlines() if event in line]


def test_nothing_is_left_where_nothing_was(tmp_path, ledger):
    found = restarted(tmp_path, ledger)
    assert not found.finish(FIRST, Wire())
    found.keep_only(None)


def test_the_upload_is_finished_for_its_identity_alone(tmp_path, ledger, capsys):
    charge(ledger, FIRST)
    written = spool(tmp_path)
    wire, metrics = Wire(), SiloMetrics()
    found = restarted(tmp_path, ledger, metrics)
    capsys.readouterr()
    for other in (SECOND, OTHER_RUN, replace(FIRST, part=1), replace(FIRST, round=4)):
        assert not found.finish(other, wire)
    assert wire.sent == []
    assert found.finish(FIRST, wire)
    assert wire.sent == [(FIRST, written.header, VECTOR.tobytes())]
    (line,) = lines(capsys, "upload_finished")
    assert "run-1/3/0/0/1" in line
    assert "dropped" in line
    assert metrics.registry.get_sample_value("chorale_silo_resumed_uploads_total") == 1
    # A coordinator that repeats itself gets the same bytes again.
    assert found.finish(FIRST, wire)
    assert wire.sent[0] == wire.sent[1]
    found.end(FIRST)
    assert left(tmp_path) == []
    assert not found.finish(FIRST, wire)


def test_a_cut_leaves_the_spool_for_another_try(tmp_path, ledger):
    charge(ledger, FIRST)
    spool(tmp_path)
    wire, metrics = Wire(), SiloMetrics()
    found = restarted(tmp_path, ledger, metrics)
    wire.fails = True
    with pytest.raises(TransportError):
        found.finish(FIRST, wire)
    assert metrics.registry.get_sample_value("chorale_silo_resumed_uploads_total") == 0
    wire.fails = False
    assert found.finish(FIRST, wire)


def test_the_end_of_the_round_deletes_all_and_a_descriptor_all_but_its_own(tmp_path, ledger):
    for identity in (FIRST, OTHER_RUN):
        charge(ledger, identity)
        spool(tmp_path, identity)
    found = restarted(tmp_path, ledger)
    assert len(left(tmp_path)) == 2
    found.keep_only(FIRST)
    assert [Spool.open(p).identity for p in (tmp_path / "spool").iterdir()] == [FIRST]
    found.keep_only(SECOND)
    assert left(tmp_path) == []


def test_what_was_never_charged_is_deleted_unsent(tmp_path, ledger, capsys):
    ledger.mark_joined(ledger_identity(FIRST), DESCRIPTOR)
    spool(tmp_path)
    found = restarted(tmp_path, ledger)
    assert len(lines(capsys, "spool_deleted")) == 1
    assert left(tmp_path) == []
    assert not found.finish(FIRST, Wire())


@pytest.mark.parametrize("change", [{"silo_id": "silo-b"}, {"descriptor": b"x" * 32}])
def test_a_foreign_spool_is_deleted_unsent(tmp_path, ledger, capsys, change):
    charge(ledger, FIRST)
    spool(tmp_path, **change)
    found = restarted(tmp_path, ledger)
    assert len(lines(capsys, "spool_deleted")) == 1
    assert left(tmp_path) == []
    assert not found.finish(FIRST, Wire())


@pytest.mark.parametrize("how", ["joined", "charged"])
def test_an_older_spool_is_deleted_unsent(tmp_path, ledger, capsys, how):
    charge(ledger, FIRST)
    if how == "joined":
        ledger.mark_joined(ledger_identity(SECOND), DESCRIPTOR)
    else:
        charge(ledger, SECOND)
        spool(tmp_path, SECOND)
    # Written last: a restored backup, for a later spool deletes the earlier one.
    spool(tmp_path)
    found = restarted(tmp_path, ledger)
    (line,) = lines(capsys, "spool_deleted")
    assert "later aggregation" in line
    assert not found.finish(FIRST, Wire())
    assert found.finish(SECOND, Wire()) is (how == "charged")


def test_damage_is_found_before_the_first_byte_is_sent(tmp_path, ledger, capsys):
    charge(ledger, FIRST)
    path = spool(tmp_path).path
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    found, wire = restarted(tmp_path, ledger), Wire()
    assert not found.finish(FIRST, wire)
    assert wire.sent == []
    assert len(lines(capsys, "spool_deleted")) == 1
    assert left(tmp_path) == []


def test_debris_is_removed(tmp_path, ledger, capsys):
    charge(ledger, FIRST)
    path = spool(tmp_path).path
    path.rename(path.with_name(f".{path.name}.partial"))
    (path.parent / "something-else").write_bytes(b"?")
    restarted(tmp_path, ledger)
    assert left(tmp_path) == []
    # A write that never returned is no event; a file nobody here wrote is.
    assert len(lines(capsys, "spool_deleted")) == 1
