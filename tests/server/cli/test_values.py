"""Values that no request can hold: refused as arguments, never a defect."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from federation.audit.lines import EMPTY, make_line
from ops.cli.envelope import run_app
from server.cli.main import app

BIG = "5000000000"
BYTES = b"\xff".decode(errors="surrogateescape")


class Stub:
    """Every method is there, and none is reached."""

    def __getattr__(self, _name):
        return None


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["chorale", *arguments, "--format", "json"])
    with pytest.raises(SystemExit) as stopped:
        run_app(app)
    return stopped.value.code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("federation", "create", "x", "--colluding", BIG),
        ("roster", "propose", "--colluding", BIG),
        ("roster", "propose", "--epoch", BIG),
        ("transcript", "export", "R", BIG, "--out", "t"),
        ("transcript", "export", "R", "1", "--step", BIG, "--out", "t"),
        ("transcript", "export", "R", "1", "--attempt", BIG, "--out", "t"),
        ("run", "pause", BYTES),
        ("run", "resume", BYTES),
        ("run", "abort", BYTES),
        ("run", "bisect", BYTES),
        ("run", "bisect", "R", "--suspects", BYTES),
        ("silo", "suspend", BYTES),
        ("invite", BYTES, "silo-a"),
        ("adapter", "rollback", "R", "--to-round", "0", "--submit-token", BYTES),
    ],
)
def test_a_value_that_no_request_can_hold_is_an_argument(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("server.cli.client.connect", lambda _data: nullcontext(Stub()))
    code, said = call(monkeypatch, capsys, *arguments)
    assert (code, said["error_code"]) == (4, "arguments")
    assert said["hint"] or said["next_step"]


def answering_with(monkeypatch, *records):
    stub = SimpleNamespace(TailAudit=lambda *_rest, **_named: SimpleNamespace(records=records))
    monkeypatch.setattr("server.cli.client.connect", lambda _data: nullcontext(stub))


@pytest.mark.parametrize("line", ["[]", '{"a":1}', "x", '{"index":1}', "[" * 100_000])
def test_a_line_of_the_log_that_is_no_record_is_a_broken_log(monkeypatch, capsys, line):
    answering_with(monkeypatch, line)
    code, said = call(monkeypatch, capsys, "audit", "tail")
    assert (code, said["error_code"]) == (1, "audit_broken")
    assert said["next_step"] == "chorale audit verify"


def test_a_tail_that_was_cut_to_fit_says_so(monkeypatch, capsys):
    lines, head = [], EMPTY
    for event in ("genesis", "coordinator_started"):
        line, head = make_line(head, at_unix_s=0.0, event=event, details={})
        lines.append(line.decode())
    monkeypatch.setattr("sys.argv", ["chorale", "audit", "tail", "-n", "5"])
    for answer, cut in ((lines, False), (lines[1:], True)):
        answering_with(monkeypatch, *answer)
        run_app_quietly()
        assert ("chorale audit export writes all" in capsys.readouterr().err) is cut


def run_app_quietly():
    with pytest.raises(SystemExit) as stopped:
        run_app(app)
    assert stopped.value.code == 0
