"""The daemon's log is JSON and never shows a frame's variables."""

import json

import pytest
import structlog

from server.logs import configure_logs


@pytest.fixture(autouse=True)
def restore():
    yield
    structlog.reset_defaults()


def test_a_traceback_shows_no_locals(capsys):
    configure_logs()
    secret = "the-secret-in-a-local"
    try:
        int(secret[:2] + "-")
    except ValueError:
        structlog.get_logger().exception("failed", check="x")
    line = capsys.readouterr().err
    record = json.loads(line)
    assert record["event"] == "failed"
    assert record["level"] == "error"
    assert "ValueError" in line
    assert secret not in line


def test_debug_is_not_written(capsys):
    configure_logs()
    structlog.get_logger().debug("quiet")
    assert not capsys.readouterr().err
