"""A server that dies or freezes in the middle of a round: on a server of its own."""

from __future__ import annotations

import time

import pytest

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.errors import EngineUnreachableError, RolloutError
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import EngineSpec, Prompt, Sampling
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from tests.foreign.vllm.conftest import PYTHON
from tests.foreign.vllm.vllm_server import VllmServer


@pytest.mark.parametrize("outage", ["pause", "kill"])
def test_an_outage_in_a_round_costs_its_episodes_and_the_round_ends(base, tmp_path, outage):
    server = VllmServer(PYTHON, base, tmp_path)
    try:
        spec = EngineSpec(
            kind="openai",
            url=server.url,
            model="base",
            api_key_file=server.key_file,
            adapter_dir=tmp_path / "adapters",
            timeout_s=10.0,
        )
        engine = make_engine(base, alpha=16.0, dtype="float32", threads=1, spec=spec)
        ids = make("maze").task_ids(Split.HELD_OUT)[:96]
        tasks = [Task(environment="maze", task_id=task_id) for task_id in ids]
        stopped_s = []

        class Dying:
            """Passes everything on, and ends the server once a third of the episodes are over."""

            def __getattr__(self, name):
                return getattr(engine, name)

            def generate(self, prompts, sampling):
                # Who plays with this key has taken the seat of the 33rd that ended.
                if not stopped_s and any(prompt.key == 64 for prompt in prompts):
                    getattr(server, outage)()
                    stopped_s.append(time.monotonic())
                return engine.generate(prompts, sampling)

        played = run_episodes(
            Dying(), tasks, temperature=1.0, seed=1, max_new_tokens=12, batch_size=32
        )
        took_s = time.monotonic() - stopped_s[0]
        print(
            f"\nfigure: {outage}: {len(played.trajectories)} finished, {played.dropped} dropped, "
            f"the round ended {took_s:.1f} s later"
        )
        assert len(played.trajectories) >= 32
        assert played.dropped >= 32
        assert played.dropped + len(played.trajectories) == 96
        assert took_s < 40
        prompt = Prompt(key=0, token_ids=engine.chat.opening("maze", "goal"))
        sampling = Sampling(temperature=0.0, max_new_tokens=1, seed=0)
        with pytest.raises(EngineUnreachableError):
            engine.generate([prompt], sampling)
        with pytest.raises(RolloutError):
            engine.load_adapter("next", initial_adapter(base, 8, 16.0, 0))
        engine.close()
    finally:
        server.kill()
