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
)


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import secagg, secagg.client, secagg.server, secagg.wire",
        "import dp, dp.ledger.ledger, dp.noise.share",
        "import federation.forecast.forecast, federation.transcript.file, federation.wire",
        "import server.daemon, server.cli.main, server.cli.coordinator",
        "import silo_agent.daemon.daemon, silo_agent.cli.main, evolution.methods.constant",
        "import lab.cli.main, lab.demo.command",
    ],
)
def test_no_heavy_module_is_loaded(code):
    loaded = loaded_after(code)
    assert loaded.isdisjoint(HEAVY), sorted(loaded.intersection(HEAVY))


@pytest.mark.parametrize("module", ["server.cli.main", "silo_agent.cli.main", "lab.cli.main"])
def test_command_lines_start_light(module):
    loaded = loaded_after(f"import {module}")
    # What makes a start slow belongs to the commands that need it.
    assert loaded.isdisjoint({"grpc", "sqlalchemy", "numpy", "opentelemetry"}), module
