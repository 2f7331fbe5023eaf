"""``chorale adapter``: the whole chain is read, and an export says what it is."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federation_fixtures import RANK, lora, plan_of

from chorale.v1 import admin_pb2, aggregation_pb2
from federation.adapter import adapter_sha256, encode_adapter
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.record import AdapterRecord
from federation.wire import RECORDS_PER_PAGE
from server.cli.adapter import _records
from server.cli.envelope import run_app
from server.cli.main import app


@pytest.mark.parametrize(
    ("length", "calls"),
    [(1, 1), (RECORDS_PER_PAGE, 2), (RECORDS_PER_PAGE + 1, 2), (3 * RECORDS_PER_PAGE - 1, 3)],
)
def test_every_page_is_read(length, calls):
    chain = [aggregation_pb2.AdapterRecord(round=number) for number in range(length)]
    asked = []

    def answer(request, timeout):
        asked.append(request.from_position)
        page = chain[request.from_position : request.from_position + RECORDS_PER_PAGE]
        return admin_pb2.ListAdaptersResponse(records=page)

    assert _records(SimpleNamespace(ListAdapters=answer), "run-1") == chain
    assert asked == [RECORDS_PER_PAGE * number for number in range(calls)]


@pytest.mark.parametrize("method", ["fedsa", "fedavg"])
def test_an_export_says_when_the_adapter_is_not_the_whole_result(
    tmp_path, monkeypatch, capsys, method
):
    fresh = lora(1, b_scale=0.0)
    content = encode_adapter({f"base_model.model.{name}": each for name, each in fresh.items()})
    plan = plan_of(method)
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"lora_rank": RANK})})
    record = AdapterRecord(
        run_id="run-1",
        round=0,
        kind="initial",
        adapter_sha256=adapter_sha256(content),
        plan_sha256=bytes(32),
        base_model_sha256=bytes(32),
    ).sign(Ed25519PrivateKey.generate())

    class Store:
        def __init__(self, _database):
            charged = SimpleNamespace(releases=0, first_steps=0, rounds=0)
            self.rounds = SimpleNamespace(charged=lambda _run: charged, finished=lambda _run: ())

        def close(self):
            pass

    config = SimpleNamespace(database=None, federation="clinics")
    monkeypatch.setattr("server.config.CoordinatorConfig.load", lambda _data: config)
    monkeypatch.setattr("server.store.Store", Store)
    monkeypatch.setattr("server.cli.client.connect", lambda _data: nullcontext())
    monkeypatch.setattr("server.cli.adapter._records", lambda *_: [])
    monkeypatch.setattr("server.cli.adapter._verified", lambda *_: (plan, (record,)))
    monkeypatch.setattr("server.cli.adapter._fetch", lambda *_: content)
    out_dir = tmp_path / "exported"
    arguments = ["adapter", "export", "run-1", "--out", str(out_dir), "--format", "json"]
    monkeypatch.setattr("sys.argv", ["chorale", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    captured = capsys.readouterr()
    assert not ended.value.code, captured.err
    note = INCOMPLETE_ADAPTERS.get(method)
    assert json.loads(captured.out)["data"]["adapter_note"] == note
    card = (out_dir / "README.md").read_text()
    assert (f"note: {note}" in captured.err) == (method == "fedsa")
    assert ("note:" in captured.err) == (method == "fedsa")
    assert ("Not the whole result" in card) == (method == "fedsa")
