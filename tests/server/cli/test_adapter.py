"""``chorale adapter``: the whole chain is read, and an export says what it is."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import admin_pb2, aggregation_pb2
from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.export import ExportError, require_export_directory
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.chain.record import AdapterRecord
from federation.wire import RECORDS_PER_PAGE
from ops.cli.envelope import CommandError, run_app
from server.cli.adapter import _best_round, _round, records_of
from server.cli.main import app
from server.figures import RoundFigures
from tests.kit.federation.adapters import RANK, lora, plan_of


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

    assert records_of(SimpleNamespace(ListAdapters=answer), "run-1") == chain
    assert asked == [RECORDS_PER_PAGE * number for number in range(calls)]


@pytest.mark.parametrize("method", ["fedsa", "fedavg"])
def test_an_export_says_when_the_adapter_is_not_the_whole_result(
    tmp_path, monkeypatch, capsys, method
):
    said = exported(tmp_path, monkeypatch, capsys, method=method)
    note = INCOMPLETE_ADAPTERS.get(method)
    assert said.data["adapter_note"] == note
    assert (f"note: {note}" in said.err) == (method == "fedsa")
    assert ("note:" in said.err) == (method == "fedsa")
    assert ("Not the whole result" in said.card) == (method == "fedsa")


def test_an_adapter_of_another_rank_than_the_plans_is_no_bug_of_the_export(
    tmp_path, monkeypatch, capsys
):
    """As of a run that an earlier release started."""
    with pytest.raises(AssertionError, match=f"does not have rank {RANK + 1}") as failed:
        exported(tmp_path, monkeypatch, capsys, rank=RANK + 1)
    said = str(failed.value)
    assert "error: the adapter of round 0 is none of this plan's" in said
    assert "Traceback" not in said
    assert "defect" not in said


def exported(tmp_path, monkeypatch, capsys, *options, method="fedavg", rows=(), rank=RANK):
    """What `adapter export` says of a run of these finished rounds."""
    fresh = lora(1, b_scale=0.0)
    content = encode_adapter({f"base_model.model.{name}": each for name, each in fresh.items()})
    plan = plan_of(method)
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"lora_rank": rank})})
    chain = tuple(
        AdapterRecord(
            run_id="run-1",
            round=number,
            kind="skipped" if number else "initial",
            adapter_sha256=adapter_sha256(content if number else b"initial"),
            plan_sha256=bytes(32),
            base_model_sha256=bytes(32),
            parent_sha256=adapter_sha256(content) if number else b"",
            record_parent_sha256=bytes(32) if number else b"",
        ).sign(Ed25519PrivateKey.generate())
        for number in range(len(rows) + 1)
    )

    class Store:
        def __init__(self, _database):
            charged = SimpleNamespace(releases=0, first_steps=0, rounds=0)
            self.rounds = SimpleNamespace(charged=lambda _run: charged, finished=lambda _run: rows)
            clinics = SimpleNamespace(name="clinics")
            self.federation = SimpleNamespace(current=lambda: clinics)

        def close(self):
            pass

    config = SimpleNamespace(database_url=None, data_dir=Path("data"))
    monkeypatch.setattr("server.config.CoordinatorConfig.load", lambda _data: config)
    monkeypatch.setattr("server.store.Store", Store)
    monkeypatch.setattr("server.cli.client.connect", lambda _data: nullcontext())
    monkeypatch.setattr("server.cli.adapter.records_of", lambda *_: [])
    monkeypatch.setattr("server.cli.adapter._verified", lambda *_: (plan, chain))
    monkeypatch.setattr("server.cli.adapter._fetch", lambda *_: content)
    out_dir = tmp_path / "exported"
    arguments = ["adapter", "export", "run-1", "--out", str(out_dir), "--format", "json"]
    monkeypatch.setattr("sys.argv", ["chorale", *arguments, *options])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    captured = capsys.readouterr()
    assert not ended.value.code, captured.err
    return SimpleNamespace(
        data=json.loads(captured.out)["data"],
        err=captured.err,
        card=(out_dir / "README.md").read_text(),
    )


# Which round -------------------------------------------------------------------------------------


def finished(*ratios):
    """Rounds from 1 on with these ratios by family, or ratios and errors; none where skipped."""
    rows = []
    for number, by_family in enumerate(ratios, 1):
        success = {
            family: ratio
            if isinstance(ratio, tuple)
            else (ratio, math.inf if math.isnan(ratio) else 0.01)
            for family, ratio in by_family.items()
        }
        figures = RoundFigures(round=number, success=success, outcome="aggregated")
        rows.append(SimpleNamespace(round=number, figures_json=figures.to_json()))
    return tuple(rows)


def best_of(monkeypatch, *ratios):
    class Store:
        def __init__(self, _database):
            self.rounds = SimpleNamespace(finished=lambda _run: finished(*ratios))

        def close(self):
            pass

    config = SimpleNamespace(database_url=None, data_dir=Path("data"))
    monkeypatch.setattr("server.config.CoordinatorConfig.load", lambda _data: config)
    monkeypatch.setattr("server.store.Store", Store)
    return _best_round("data", "run-1")


@pytest.mark.parametrize(
    ("ratios", "best"),
    [
        ([{"a": 0.2}, {"a": 0.6}, {"a": 0.4}], (2, 0.6)),
        # Of those that are not told from the highest the newest.
        ([{"a": 0.4}, {"a": 0.61}, {"a": 0.6}, {"a": 0.4}], (3, 0.6)),
        # The mean over the environments of which every round has a figure; a round may have none.
        ([{"a": 1.0, "b": 0.0}, {}, {"a": 0.75, "b": 0.5}], (3, 0.625)),
        ([{"a": 0.5, "b": 0.0}, {"a": 0.25, "b": math.nan}], (1, 0.5)),
        # Further apart than noise carries two rounds, but not the outermost of four.
        ([{"a": 0.5}, {"a": 0.53}], (2, 0.53)),
        ([{"a": 0.5}, {"a": 0.53}, {"a": 0.51}, {"a": 0.52}], None),
        # Nothing to compare with.
        ([{"a": 0.5}], None),
        ([{"a": 0.5}, {"b": 0.1}], None),
        ([{"a": math.nan}, {}], None),
    ],
)
def test_the_best_round_is_the_newest_that_noise_does_not_tell_from_the_highest(
    monkeypatch, ratios, best
):
    found = best_of(monkeypatch, *ratios)
    assert (found and (found.explored, pytest.approx(found.success.mean))) == best


@pytest.mark.parametrize("ratios", [[], [{}]])
def test_without_figures_no_round_is_the_best(monkeypatch, ratios):
    with pytest.raises(CommandError, match="no sum of run-1 has reported success") as refused:
        best_of(monkeypatch, *ratios)
    assert refused.value.code == "no_figures"
    assert "--round" in refused.value.next_step


@pytest.mark.parametrize(
    ("figures", "answered"),
    [
        # The untrained adapter of round 0 explored round 1, and noise made it look best.
        (
            [(1.412, 0.89), (0.304, 0.41), (0.654, 0.41)],
            (3, "no round is told from the others beyond the noise of the figures"),
        ),
        (
            [(0.304, 0.02), (0.654, 0.02), (0.4, 0.02)],
            (1, "with this adapter 65.4 ± 2.0 % of the episodes of round 2 succeeded"),
        ),
        (
            [(0.654, 0.02), (0.3, 0.02), (0.3, 0.02)],
            (0, "note: this is the adapter that the run started from"),
        ),
    ],
)
def test_the_best_is_chosen_beyond_the_noise_and_said(
    tmp_path, monkeypatch, capsys, figures, answered
):
    rows = finished(*({"a": figure} for figure in figures))
    answer = exported(tmp_path, monkeypatch, capsys, "--round", "best", rows=rows)
    chosen, said = answered
    assert answer.data["round"] == chosen
    assert said in answer.err
    assert ("note:" in answer.err) == (chosen == 0)
    assert answer.data["told_apart"] == (chosen != 3)
    assert (answer.data["success_ratio"] is None) == (chosen == 3)
    assert (answer.data["standard_error"] is None) == (chosen == 3)
    assert "141" not in answer.err + answer.card


def test_a_round_is_a_number_or_the_best():
    assert (_round(None), _round("best"), _round("0"), _round("17")) == (None, None, 0, 17)
    for wrong in ("", "-1", "1.5", "newest", "x" * 9999, "9" * 10, "²"):
        with pytest.raises(CommandError) as refused:
            _round(wrong)
        assert refused.value.exit_code == 4


@pytest.mark.parametrize(
    "provenance", [None, b"", b"[]", b"{}", b"[" * 100_000, b'{"run": 1}', b"\xff"]
)
def test_an_export_replaces_nobody_elses_files(tmp_path, monkeypatch, capsys, provenance):
    (tmp_path / "README.md").write_text("mine")
    if provenance is not None:
        (tmp_path / "provenance.json").write_bytes(provenance)
    arguments = ["chorale", "adapter", "export", "run-1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*arguments, "--format", "json"])
    with pytest.raises(SystemExit) as stopped:
        run_app(app)
    said = json.loads(capsys.readouterr().out)
    assert (stopped.value.code, said["error_code"]) == (4, "directory_in_use")
    assert "new directory" in said["next_step"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_an_export_may_be_written_again(tmp_path):
    require_export_directory(tmp_path / "absent")
    require_export_directory(tmp_path)
    (tmp_path / "README.md").write_text("a card")
    with pytest.raises(ExportError, match="nothing was written"):
        require_export_directory(tmp_path)
    (tmp_path / "provenance.json").write_text('{"adapter_sha256": "00"}')
    require_export_directory(tmp_path)
