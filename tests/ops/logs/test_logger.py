"""structlog is loaded with the first line, which is redacted as any other, and never before.

Failures: a line that is written before the configuration is in force; a configuration that outlives
its block; a daemon that finds out at its first line that it cannot log.
"""

import json
import subprocess
import sys

PROGRAM = """\
import sys, threading
from ops.logs.logger import get_logger
from ops.logs.setup import daemon_logs, logs_on_stderr
log = get_logger("test")
loaded = lambda: "structlog" in sys.modules
"""


def lines_of(code: str) -> list[dict[str, object]]:
    """What a process of its own wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_command_that_logs_nothing_loads_nothing():
    assert lines_of("with logs_on_stderr({}):\n    pass\nassert not loaded()\n") == []


def test_the_first_line_of_any_thread_is_redacted():
    code = """\
def say():
    log.warning("silo_joined", silo="hospital-a", secret="hunter2")
with logs_on_stderr({}):
    assert not loaded()
    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
import structlog
assert not structlog.is_configured()
"""
    lines = lines_of(code)
    assert len(lines) == 8
    assert all(line["silo"] == "hospital-a" and line["redacted"] for line in lines)
    assert "hunter2" not in json.dumps(lines)


def test_a_block_inside_a_block_ends_with_its_own_configuration():
    code = """\
with logs_on_stderr({}):
    with logs_on_stderr({"CHORALE_LOG_LEVEL": "error"}):
        log.warning("silo_joined", silo="inner")
    log.warning("silo_joined", silo="outer")
"""
    assert [line["silo"] for line in lines_of(code)] == ["outer"]


def test_a_daemon_is_ready_to_log_before_it_says_anything():
    code = "with logs_on_stderr({}), daemon_logs():\n    assert loaded()\n"
    assert lines_of(code) == []
