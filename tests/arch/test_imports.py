"""The coordinator's packages import no learning framework, and the CLIs answer --help quickly."""

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "gymnasium",
    "minigrid",
    "opacus",
    "vllm",
    "matplotlib",
    "scipy",
    "dp_accounting",
    "ray",
)


def loaded_after(*codes: str) -> list[set[str]]:
    """What is loaded after each piece of code, in one process that runs one after the other."""
    script = "import sys\n" + "\n".join(f"{code}\nprint(*sorted(sys.modules))" for code in codes)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


LIGHT = (
    "import secagg, secagg.client, secagg.server, secagg.wire",
    "import dp, dp.ledger.ledger, dp.noise.share",
    "import federation.forecast.forecast, federation.transcript.file, federation.wire",
    "import federation.adapter.initial, federation.adapter.export",
    "import server.daemon, server.cli.main, server.cli.coordinator",
    "import silo_agent.daemon.daemon, silo_agent.cli.main, evolution.methods.constant",
    "import evolution.model.identity, evolution.memory.memory",
    "import lab.cli.main, lab.demo.command",
)


def test_no_heavy_module_is_loaded():
    # The first line after which one is loaded is the one that loads it.
    for code, loaded in zip(LIGHT, loaded_after(*LIGHT), strict=True):
        assert loaded.isdisjoint(HEAVY), (code, sorted(loaded.intersection(HEAVY)))


@pytest.mark.parametrize("module", ["server.cli.main", "silo_agent.cli.main", "lab.cli.main"])
def test_command_lines_start_light(module):
    (loaded,) = loaded_after(f"import {module}")
    # What makes a start slow belongs to the commands that need it.
    assert loaded.isdisjoint(
        {"grpc", "sqlalchemy", "numpy", "opentelemetry", "pydantic", "structlog"}
    ), module


@pytest.mark.parametrize(
    ("module", "never"),
    [
        # What an admin's command that asks the coordinator stands on.
        ("server.cli.client", {"numpy", "sqlalchemy", "structlog", "rich", "OpenSSL"}),
        ("server.cli.watch", {"numpy", "sqlalchemy", "structlog"}),
        ("server.members.silence", {"numpy", "sqlalchemy", "pydantic"}),
        # And what a silo's command does that reads its own files.
        ("silo_agent.cli.status", {"grpc", "structlog"}),
        ("silo_agent.books.budget", {"grpc", "structlog", "pydantic"}),
    ],
)
def test_what_is_read_alone_loads_no_writer(module, never):
    (loaded,) = loaded_after(f"import {module}")
    assert sorted(loaded & never) == []
