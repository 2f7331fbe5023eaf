"""What a session writes to the ledger, shows of it, and does when it cannot be written."""

import pytest

from dp.config import Mode
from dp.errors import LedgerCorruptError
from dp.ledger.ledger import Ledger, LedgerEntry
from secagg import client
from secagg.descriptor import AggregationId
from silo_agent.books.ledger import round_entry
from tests.kit.silo_agent.session_round import Round, spec_of


@pytest.fixture
def rounds(tmp_path):
    made = []

    def make(**arguments):
        made.append(Round(tmp_path, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.ledger.close()


def test_the_bundle_carries_the_ledgers_head_with_its_own_mark_in_it(rounds):
    """A ledger that is put back to before this attempt lacks what the bundle has signed."""
    one = rounds()
    before = one.ledger.head()
    one.open().close()
    bundle = one.wire.sent[-1][1]
    assert (bundle.ledger_seq, bundle.ledger_sha256) == one.ledger.head()
    assert bundle.ledger_seq == before[0] + 1


@pytest.mark.parametrize("fails", ["mark_joined", "reserve", "mark_agreed"])
def test_a_ledger_that_cannot_be_written_wipes_the_session(rounds, monkeypatch, fails):
    one = rounds()
    calls = {
        "mark_joined": lambda: None,
        "reserve": one.delivery,
        "mark_agreed": one.survivors,
    }
    message = calls[fails]()
    states = []
    begin = client.begin
    monkeypatch.setattr(
        "silo_agent.attempt.session.protocol.begin",
        lambda setup: [states.append(made := begin(setup)), made][1],
    )

    def full(*_, **__):
        raise LedgerCorruptError("the disk is full")

    monkeypatch.setattr(Ledger, fails, full)
    one.wire.sent.clear()
    with pytest.raises(LedgerCorruptError):
        one.open() if message is None else one.session.handle(message)
    if message is None:
        # Not even a key was made.
        assert states == []
    else:
        assert repr(one.session._state._vault) == "Vault(0 secrets)"
    assert one.wire.sent == []


def test_the_charge_is_that_of_the_spec():
    spec = spec_of(Mode.SILO)
    entry = round_entry(
        spec,
        identity=AggregationId(run_id="r", round=1, step=0, part=0, attempt=2),
        dimension=5,
        descriptor_sha256=bytes(32),
    )
    assert isinstance(entry, LedgerEntry)
    assert (entry.dimension, entry.attempt) == (5, 2)
    assert [(charge.block, charge.z) for charge in entry.charges] == [
        ("vector", 1.0),
        ("metrics", 1.0),
    ]
    assert {(charge.unit, charge.q, charge.steps) for charge in entry.charges} == {("silo", 1.0, 1)}
