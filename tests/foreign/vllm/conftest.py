"""This suite needs a real server (`run.sh`); other runs leave it out."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

PYTHON = os.environ.get("CHORALE_VLLM_PYTHON", "")
if PYTHON:
    # Whoever ends this run ends the servers with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(scope="session")
def base() -> Path:
    return ROOT / "lab" / "base_model"


@pytest.fixture(scope="session")
def server(base, tmp_path_factory):
    from tests.foreign.vllm.vllm_server import VllmServer

    server = VllmServer(PYTHON, base, tmp_path_factory.mktemp("server"))
    print(f"\nfigure: ready after {server.ready_s:.0f} s")
    yield server
    server.stop()


@pytest.fixture
def engine(server, base, tmp_path):
    from evolution.rollout.engine import EngineSpec
    from evolution.rollout.engines import make_engine

    spec = EngineSpec(
        kind="openai",
        url=server.url,
        model="base",
        api_key_file=server.key_file,
        adapter_dir=tmp_path / "adapters",
        timeout_s=60.0,
    )
    engine = make_engine(base, alpha=16.0, dtype="float32", threads=1, spec=spec)
    yield engine
    engine.close()
