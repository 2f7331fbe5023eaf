"""The coordinator's many threads share its heaps from the first one on."""

from typer.testing import CliRunner

from ops import heap
from server import daemon
from server.cli.coordinator import HEAPS, app
from server.config import CoordinatorConfig


def test_heaps_are_shared_before_there_is_a_configuration_or_a_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    done = []
    monkeypatch.setattr(heap, "share_heaps", done.append)
    monkeypatch.setattr(CoordinatorConfig, "load", lambda _data: done.append("load"))
    monkeypatch.setattr(daemon, "serve", lambda _config, **_options: done.append("serve"))
    answer = CliRunner().invoke(app, ["serve", "--data", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert done == [HEAPS, "load", "serve"]
