"""Several model servers: whose a conversation is, what all get, and what a dead one costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from evolution.errors import (
    EngineRefusalError,
    EngineSetupError,
    EngineUnreachableError,
    PartlyAnsweredError,
)
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import EngineSpec, Prompt, Sampling
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Task
from tests.kit.evolution.model_server import KEY, model_server

RANK, ALPHA = 4, 8.0
TASKS = [Task(environment="craft", task_id=1_008_000 + i) for i in range(10)]
SAMPLED = Sampling(temperature=1.0, max_new_tokens=4, seed=3)
COMPLETIONS, LOAD = "/v1/completions", "/v1/load_lora_adapter"


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(0)
    return {
        name: tensor + rng.normal(0, 0.1, tensor.shape).astype(np.float32)
        for name, tensor in initial_adapter(tiny_base, RANK, ALPHA, 0).items()
    }


@pytest.fixture
def servers(tiny_base):
    with model_server(tiny_base, ALPHA) as one, model_server(tiny_base, ALPHA) as two:
        yield one, two


@pytest.fixture
def spec(servers, tmp_path):
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    return EngineSpec(
        kind="openai",
        urls=tuple(server.url for server in servers),
        model="base",
        api_key_file=key,
        adapter_dir=tmp_path / "adapters",
        timeout_s=5.0,
    )


def made(base, spec):
    return make_engine(base, alpha=ALPHA, dtype="float32", threads=1, spec=spec)


@pytest.fixture
def engine(tiny_base, spec, servers):
    engine = made(tiny_base, spec)
    for server in servers:
        server.requests.clear()
    yield engine
    engine.close()


def prompts(engine, *keys):
    opening = engine.chat.opening("craft", "goal plank .")
    return [Prompt(key=key, token_ids=opening) for key in keys]


def dies(server):
    for path in (COMPLETIONS, "/health"):
        server.faults[path] = [lambda h: h.hang_up()]
    server.lasting = True


def test_a_conversation_belongs_to_the_server_of_its_key_and_draws_as_with_one(
    tiny_base, engine, spec, servers
):
    together = engine.generate(prompts(engine, *range(5)), SAMPLED)
    assert [len(server.asked(COMPLETIONS)) for server in servers] == [3, 2]
    alone = made(tiny_base, replace(spec, url=servers[0].url, urls=()))
    assert alone.generate(prompts(engine, *range(5)), SAMPLED) == together
    alone.close()


def test_every_server_plays_with_the_adapter_and_lets_go_of_it(
    tiny_base, engine, servers, adapter, spec
):
    here = HfEngine(tiny_base, alpha=ALPHA)
    episodes = []
    for one in (here, engine):
        one.load_adapter("v1", adapter)
        played = run_episodes(one, TASKS, temperature=0.0, seed=7, max_new_tokens=6, batch_size=4)
        assert played.dropped == 0
        episodes.append([t.token_ids for t in played.trajectories])
    assert episodes[0] == episodes[1]
    names = [name for server in servers for name in server.adapters]
    assert len(set(names)) == 2
    engine.load_adapter("v2", adapter)
    assert not set(names) & {name for server in servers for name in server.adapters}
    engine.close()
    assert [server.adapters for server in servers] == [{}, {}]
    assert list(spec.adapter_dir.iterdir()) == []


def test_a_dead_server_costs_its_own_episodes_and_is_named(engine, servers):
    dies(servers[1])
    with capture_logs() as logs:
        played = run_episodes(engine, TASKS, temperature=0.0, seed=7, max_new_tokens=6)
    assert played.dropped == 5
    assert [t.task for t in played.trajectories] == TASKS[::2]
    named = [line["server"] for line in logs if line["event"] == "model_server_failed"]
    assert set(named) == {servers[1].url}
    # The living one answered each of its conversations once a turn: nobody was asked again.
    assert len(servers[0].asked(COMPLETIONS)) == played.environment_steps
    with pytest.raises(PartlyAnsweredError) as caught:
        engine.generate(prompts(engine, 0, 1, 2), SAMPLED)
    assert [answer is None for answer in caught.value.answers] == [False, True, False]
    assert servers[1].url in str(caught.value.__cause__)
    with pytest.raises(EngineUnreachableError, match=servers[1].url):
        engine.generate(prompts(engine, 1), SAMPLED)


def test_a_server_that_did_not_get_the_adapter_never_plays_with_other_weights(
    engine, servers, adapter
):
    servers[1].faults[LOAD] = [lambda h: h.hang_up()] * 2
    with capture_logs() as logs:
        engine.load_adapter("v1", adapter)
    (line,) = [line for line in logs if line["event"] == "adapter_not_loaded"]
    assert line["server"] == servers[1].url
    assert engine.generate(prompts(engine, 0, 2), SAMPLED)
    # It is up, and has the base, and refuses to answer for an adapter that it does not have.
    with pytest.raises(EngineRefusalError, match="404"):
        engine.generate(prompts(engine, 1), SAMPLED)
    engine.load_adapter("v2", adapter)
    assert engine.generate(prompts(engine, 0, 1), SAMPLED)


def test_where_no_server_takes_an_adapter_loading_fails(engine, servers, adapter):
    for server in servers:
        server.faults[LOAD] = [lambda h: h.hang_up()] * 2
    with pytest.raises(EngineUnreachableError):
        engine.load_adapter("v1", adapter)
    assert engine.adapter_version == ""


def test_what_a_dead_process_left_is_cleared_on_all_of_them(tiny_base, spec, servers):
    left = spec.adapter_dir / ("0" * 16)
    spec.adapter_dir.mkdir(mode=0o700)
    left.mkdir(mode=0o700)
    for number, server in enumerate(servers):
        server.adapters[f"chorale-{left.name}-00000{number}-v"] = str(left)
    made(tiny_base, spec).close()
    assert not left.exists()
    assert [server.adapters for server in servers] == [{}, {}]


@pytest.mark.parametrize("which", [0, 1])
def test_all_of_them_are_needed_at_the_start(tiny_base, spec, servers, which):
    servers[which].stop()
    with pytest.raises(EngineUnreachableError, match=servers[which].url):
        made(tiny_base, spec)


def test_urls_that_cannot_work_are_refused(tiny_base, spec, servers):
    for changes in (
        {"url": servers[0].url},
        {"urls": (servers[0].url, servers[0].url)},
        {"urls": tuple(f"http://127.0.0.1:{port}" for port in range(1, 300))},
        {"urls": (servers[0].url, "http://example.org")},
    ):
        with pytest.raises(EngineSetupError, match=r"rollout\.url"):
            made(tiny_base, replace(spec, **changes))
