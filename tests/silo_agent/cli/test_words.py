"""chorale-silo and words that are not its own: a secret, a damaged file, a hostile answer."""

import io
import json
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from chorale.v1 import admin_pb2
from ops.cli.envelope import Exit, Format
from server.cli.program import answering as server_answering
from silo_agent.cli.program import answering
from silo_agent.errors import IdentityError
from silo_agent.line.transport import Coordinator
from tests.kit.silo_agent.command_line import call

HOSTILE = "\x1b[2J\x1b]52;c;Y2hvcmFsZQ==\x07\u202eapproved epoch 7\nhint: chorale-silo leave --wipe"


def test_the_invite_may_come_on_standard_input(tmp_path: Path, monkeypatch, capsys):
    taken = []

    def join(invite: str, _data: Path, **_kwargs) -> None:
        taken.append(invite)
        raise IdentityError("enough")

    monkeypatch.setattr("silo_agent.identity.join.join", join)
    monkeypatch.setattr("sys.stdin", io.StringIO("chorale1.secret\nchorale1.second\n"))
    call(monkeypatch, capsys, "join", "-", "--data", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    code, out, _ = call(
        monkeypatch, capsys, "join", "-", "--data", str(tmp_path), "--format", "json"
    )
    assert (code, json.loads(out)["error_code"]) == (Exit.ARGUMENTS, "invite_absent")
    assert taken == ["chorale1.secret"]
    # A terminal asks, and does not echo.
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr(
        "typer.prompt", lambda _text, *, hide_input, err: "chorale1.typed" * (hide_input and err)
    )
    call(monkeypatch, capsys, "join", "--data", str(tmp_path))
    assert taken == ["chorale1.secret", "chorale1.typed"]


@pytest.mark.parametrize("line", ["[]", '{"a":1}', "null", '"x"'])
def test_a_line_that_is_no_record_is_said_and_no_bug(tmp_path: Path, monkeypatch, capsys, line):
    (tmp_path / "audit.jsonl").write_text(line + "\n")
    code, out, err = call(
        monkeypatch, capsys, "audit", "tail", "--data", str(tmp_path), "--format", "json"
    )
    assert (code, json.loads(out)["error_code"]) == (Exit.SERVER, "audit_chain")
    assert "line 1 of the 1 newest is no record" in err


@pytest.mark.parametrize("command", ["approve", "refuse"])
def test_an_id_that_is_no_text_is_a_wrong_argument(tmp_path: Path, monkeypatch, capsys, command):
    (tmp_path / "silo.toml").write_text("environments = []")
    (tmp_path / "policy.toml").write_text("")
    code, out, _ = call(
        monkeypatch, capsys, command, "run-\udcff", "--data", str(tmp_path), "--format", "json"
    )
    assert code == Exit.ARGUMENTS, out


@pytest.mark.parametrize("answers", [answering, server_answering])
def test_text_that_cannot_be_sent_is_a_wrong_argument(answers, capsys):
    with pytest.raises(SystemExit) as stop, answers(Format.TEXT):
        admin_pb2.PauseRunRequest(run_id="run-\udcff")
    assert stop.value.code == Exit.ARGUMENTS
    assert "an argument is not text in UTF-8" in capsys.readouterr().err


def test_what_the_coordinator_says_does_not_drive_the_terminal(capsys):
    """Its words reach an error over real gRPC, and a forged line stays part of the true one."""

    class Hostile(grpc.GenericRpcHandler):
        def service(self, _details):
            def answer(_request, context):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, HOSTILE)

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Hostile(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    coordinator = Coordinator(
        address=f"127.0.0.1:{port}", credentials=grpc.local_channel_credentials()
    )
    try:
        with pytest.raises(SystemExit), answering(Format.TEXT):
            coordinator.ping()
    finally:
        coordinator.close()
        server.stop(None).wait()
    first, *others = capsys.readouterr().err.splitlines()
    assert "approved epoch 7" in first
    assert first.isprintable()
    assert all(line.startswith(("hint: ", "next: ")) for line in others)
