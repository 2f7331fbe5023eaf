"""A server that was started without the flag is refused: on a server of its own."""

from __future__ import annotations

import pytest

from evolution.errors import EngineSetupError
from evolution.rollout.engine import EngineSpec
from evolution.rollout.engines import make_engine
from tests.foreign.vllm.conftest import PYTHON
from tests.foreign.vllm.vllm_server import VllmServer


def test_vllms_own_default_is_refused_with_the_flag_to_add(base, tmp_path):
    server = VllmServer(PYTHON, base, tmp_path, logprobs_mode="raw_logprobs")
    try:
        spec = EngineSpec(
            kind="openai",
            url=server.url,
            model="base",
            api_key_file=server.key_file,
            adapter_dir=tmp_path / "adapters",
            timeout_s=60.0,
        )
        with pytest.raises(EngineSetupError, match="--logprobs-mode processed_logprobs"):
            make_engine(base, alpha=16.0, dtype="float32", threads=1, spec=spec)
    finally:
        server.stop()
