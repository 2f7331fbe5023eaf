"""The engine that asks a model server, against one that behaves and one that does not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from evolution.errors import (
    AdapterLoadError,
    EngineRefusalError,
    EngineReplyError,
    EngineServerError,
    EngineSetupError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, initial_adapter, write_adapter
from evolution.rollout.engine import EngineSpec, Prompt, Sampling
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.rollout.openai.http import api_key, require_private
from evolution.trajectory import Task
from tests.kit.evolution.model_server import KEY, completion, model_server

RANK, ALPHA = 4, 8.0
TASKS = [Task(environment="craft", task_id=1_008_000 + i) for i in range(10)]
GREEDY = Sampling(temperature=0.0, max_new_tokens=4, seed=0)
COMPLETIONS, LOAD, UNLOAD = "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(0)
    return {
        name: tensor + rng.normal(0, 0.1, tensor.shape).astype(np.float32)
        for name, tensor in initial_adapter(tiny_base, RANK, ALPHA, 0).items()
    }


@pytest.fixture
def server(tiny_base):
    with model_server(tiny_base, ALPHA) as server:
        yield server


@pytest.fixture
def spec(server, tmp_path):
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    return EngineSpec(
        kind="openai",
        url=server.url,
        model="base",
        api_key_file=key,
        adapter_dir=tmp_path / "adapters",
        timeout_s=5.0,
        max_in_flight=4,
    )


def made(base, spec, **changes):
    given = {name: getattr(spec, name) for name in EngineSpec.__dataclass_fields__} | changes
    return make_engine(base, alpha=ALPHA, dtype="float32", threads=1, spec=EngineSpec(**given))


@pytest.fixture
def engine(tiny_base, spec, server):
    engine = made(tiny_base, spec)
    # What was asked to find out whether the server can be used is not what a test counts.
    server.requests.clear()
    yield engine
    engine.close()


def opening(engine):
    return Prompt(key=3, token_ids=engine.chat.opening("craft", "goal plank ."))


@pytest.mark.parametrize("adapted", [False, True])
def test_greedy_episodes_are_those_of_the_engine_in_this_process(
    tiny_base, engine, server, adapter, adapted
):
    tensors = adapter if adapted else {}
    here = HfEngine(tiny_base, alpha=ALPHA)
    episodes = []
    for one in (here, engine):
        one.load_adapter("v1", tensors)
        played = run_episodes(one, TASKS, temperature=0.0, seed=7, max_new_tokens=6, batch_size=4)
        assert played.dropped == 0
        episodes.append(played.trajectories)
    for a, b in zip(*episodes, strict=True):
        assert (a.token_ids, a.success, a.adapter_sha256) == (b.token_ids, b.success, "v1")
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-5)
    assert 1 < server.most_under_way <= 4


def test_sampled_values_are_those_of_the_engine_in_this_process_at_its_temperature(
    tiny_base, engine, adapter
):
    """The draws differ between engines; the value of a token that was drawn does not."""
    engine.load_adapter("v1", adapter)
    played = run_episodes(engine, TASKS, temperature=0.7, seed=7, max_new_tokens=6)
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA)
    write_adapter(model, adapter)
    for trajectory in played.trajectories:
        ids = torch.tensor([trajectory.token_ids])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, :-1]
        mask = torch.tensor(trajectory.agent_mask)[1:]
        recorded = torch.tensor(trajectory.logprobs)[1:]
        for temperature, equal in ((0.7, True), (1.0, False)):
            scores = torch.log_softmax(logits / temperature, -1)
            expected = scores.gather(-1, ids[0, 1:, None])[:, 0]
            assert ((expected - recorded)[mask].abs().max() < 1e-4) == equal


def test_at_temperature_0_nothing_was_drawn_whatever_the_server_reports(engine, server):
    server.processed = False
    (answer,) = engine.generate([opening(engine)], GREEDY)
    assert answer.logprobs == (0.0,) * len(answer.token_ids) != ()


def test_a_server_that_reports_values_from_before_the_temperature_is_refused(
    tiny_base, spec, server
):
    server.processed = False
    with pytest.raises(EngineSetupError, match="--logprobs-mode processed_logprobs"):
        made(tiny_base, spec)
    asked = sorted(server.asked(COMPLETIONS), key=lambda b: (b["prompt"], b["temperature"]))
    for cold, hot in zip(asked[::2], asked[1::2], strict=True):
        # One token twice. vLLM refuses a temperature above 2.
        assert 0 < cold["temperature"] < hot["temperature"] <= 2
        assert cold | {"temperature": 0} == hot | {"temperature": 0}
    assert not spec.adapter_dir.exists()


@pytest.mark.parametrize(
    "shown", [None, [], [{}], [None], [{"a": "x"}], [{"a": 1.0}], [{"a": -1.0}, {"b": -2.0}], "abc"]
)
def test_an_answer_without_the_values_asked_for_at_the_start_is_refused(
    tiny_base, spec, server, shown
):
    server.faults[COMPLETIONS] = [
        lambda h: h.say(200, completion(h.body["prompt"], [7], [-1.0], top_logprobs=shown))
    ]
    server.lasting = True
    with pytest.raises(EngineReplyError):
        made(tiny_base, spec)


def test_what_is_asked_names_every_parameter_of_the_draw(engine, server):
    engine.generate([opening(engine)], Sampling(temperature=1.0, max_new_tokens=4, seed=11))
    (body,) = server.asked(COMPLETIONS)
    assert body.pop("prompt") == opening(engine).token_ids
    seed = body.pop("seed")
    assert body == {
        "model": "base",
        "max_tokens": 4,
        "temperature": 1.0,
        "stop_token_ids": sorted(engine.chat.end_ids),
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "logprobs": 0,
        "min_p": 0.0,
        "n": 1,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
        "stream": False,
        "top_k": 0,
        "top_p": 1.0,
    }
    prompt = opening(engine)
    for other, sampling in (
        (prompt, Sampling(temperature=1.0, max_new_tokens=4, seed=11)),
        (prompt, Sampling(temperature=1.0, max_new_tokens=4, seed=12)),
        (Prompt(key=4, token_ids=prompt.token_ids), sampling_of(11)),
        (Prompt(key=3, token_ids=prompt.token_ids[:-1]), sampling_of(11)),
    ):
        engine.generate([other], sampling)
    seeds = [body["seed"] for body in server.asked(COMPLETIONS)[1:]]
    assert seeds[0] == seed
    assert len({seed, *seeds}) == 4
    assert all(0 <= s < 2**63 for s in seeds)


def sampling_of(seed):
    return Sampling(temperature=1.0, max_new_tokens=4, seed=seed)


def test_every_adapter_has_a_name_of_its_own_and_the_old_one_goes(engine, server, adapter, spec):
    names = []
    for version in ("aa", "bb", "aa"):
        engine.load_adapter(version, adapter)
        (name,) = server.adapters
        assert name.endswith(f"-{version}")
        assert (Path(server.adapters[name]) / "adapter_config.json").is_file()
        names.append(name)
        assert engine.generate([opening(engine)], GREEDY)
        assert server.asked(COMPLETIONS)[-1]["model"] == name
    assert len(set(names)) == 3
    assert set(server.loaded_modes) == {0o700, 0o600}
    (session,) = spec.adapter_dir.iterdir()
    assert sorted(path.name for path in session.iterdir()) == [names[-1], "lock"]
    engine.load_adapter("", {})
    assert (engine.adapter_version, server.adapters) == ("", {})
    engine.generate([opening(engine)], GREEDY)
    assert server.asked(COMPLETIONS)[-1]["model"] == "base"
    engine.load_adapter("cc", adapter)
    engine.close()
    assert server.adapters == {}
    assert list(spec.adapter_dir.iterdir()) == []


def test_a_load_that_broke_off_is_tried_under_another_name(engine, server, adapter):
    def takes_it_and_hangs_up(handler):
        server.answer(LOAD, handler.body)
        handler.hang_up()

    server.faults[LOAD] = [takes_it_and_hangs_up]
    engine.load_adapter("v", adapter)
    first, second = (body["lora_name"] for body in server.asked(LOAD))
    assert first != second
    assert list(server.adapters) == [second]


def test_an_adapter_that_is_none_is_refused_and_the_one_before_stays(engine, server, adapter):
    engine.load_adapter("good", adapter)
    kept = dict(server.adapters)
    name = next(iter(adapter))
    bad = {name: np.full_like(adapter[name], np.nan)}
    for tensors in (bad, {"lm_head.weight": adapter[name]}):
        with pytest.raises(AdapterLoadError):
            engine.load_adapter("bad", tensors)
    server.faults[LOAD] = [lambda h: h.say(400, {"error": {"message": "rank too large"}})]
    with pytest.raises(AdapterLoadError, match="rank too large"):
        engine.load_adapter("bad", adapter)
    assert (engine.adapter_version, server.adapters) == ("good", kept)
    assert engine.generate([opening(engine)], GREEDY)
    assert server.asked(COMPLETIONS)[-1]["model"] in kept


def test_what_a_dead_process_left_is_cleared_and_what_lives_stays(tiny_base, spec, server, adapter):
    living = made(tiny_base, spec)
    living.load_adapter("living", adapter)
    left = spec.adapter_dir / ("0" * 16)
    left.mkdir(mode=0o700)
    server.adapters[f"chorale-{left.name}-000001-v"] = str(left)
    server.adapters["somebody-elses"] = "/elsewhere"
    made(tiny_base, spec).close()
    assert not left.exists()
    assert len(server.adapters) == 2
    assert any(name.endswith("-living") for name in server.adapters)
    living.close()


@pytest.mark.parametrize("fault", ["hang up", "busy"])
def test_what_was_not_answered_is_asked_again(engine, server, fault):
    def fails(handler):
        handler.hang_up() if fault == "hang up" else handler.say(503, b"")

    expected = engine.generate([opening(engine)], GREEDY)
    server.faults[COMPLETIONS] = [fails, fails]
    assert engine.generate([opening(engine)], GREEDY) == expected
    assert len(server.asked(COMPLETIONS)) == 4


@pytest.mark.parametrize("batch_size", [4, 10])
def test_a_server_that_is_gone_costs_its_episodes_and_no_time(
    tiny_base, engine, server, batch_size
):
    def gone(handler):
        handler.hang_up()

    server.faults[COMPLETIONS] = [lambda h: h.say(*server.answer(h.path, h.body))] * 12 + [gone]
    server.faults["/health"] = [gone]
    server.lasting = True
    started_s = time.monotonic()
    played = run_episodes(
        engine, TASKS, temperature=0.0, seed=7, max_new_tokens=6, batch_size=batch_size
    )
    assert time.monotonic() - started_s < 5
    assert played.dropped > 0
    assert played.dropped + len(played.trajectories) == len(TASKS)
    with pytest.raises(EngineUnreachableError, match="down"):
        engine.generate([opening(engine)], GREEDY)


def test_a_server_that_comes_back_is_used_again(engine, server, monkeypatch):
    server.faults[COMPLETIONS] = [lambda h: h.hang_up()] * 4
    with pytest.raises(EngineUnreachableError):
        engine.generate([opening(engine)], GREEDY)
    assert engine.generate([opening(engine)], GREEDY)


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(2000):
        if handler.server.world.release.wait(0.05):
            break
        handler.wfile.write(b" ")


@pytest.mark.parametrize("slow", [drip, lambda h: h.server.world.release.wait(100)])
def test_the_time_limit_is_for_the_whole_answer(tiny_base, spec, server, slow):
    engine = made(tiny_base, spec, timeout_s=0.3)
    server.faults[COMPLETIONS] = [slow]
    started_s = time.monotonic()
    with pytest.raises(EngineTimeoutError):
        engine.generate([opening(engine)], GREEDY)
    assert time.monotonic() - started_s < 30
    server.release.set()
    engine.close()


TOKENS, VALUES = [10, 11, 12, 13], [-1.0, -2.0, -0.5, -0.25]


def hostile(tokens=TOKENS, values=VALUES, prompt=None, **more):
    def answer(handler):
        echoed = handler.body["prompt"] if prompt is None else prompt
        handler.say(200, completion(echoed, tokens, values) | more)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        hostile(tokens=[10, 11, 12, 10_000]),
        hostile(tokens=[10, 11, 12, -1]),
        hostile(tokens=[10, 11, 12, True]),
        hostile(tokens=[10, 11, 12, 1.0]),
        hostile(tokens="abcd"),
        hostile(tokens=[], values=[]),
        hostile(tokens=TOKENS[:2], values=VALUES[:2]),  # cut off before the limit
        hostile(tokens=[*TOKENS, 14], values=[*VALUES, -1.0]),  # after it
        hostile(tokens=[1, 11, 12, 13]),  # goes on after the end token
        hostile(values=VALUES[:3]),
        hostile(values=[*VALUES[:3], None]),
        hostile(values=[*VALUES[:3], 0.5]),
        hostile(values=[*VALUES[:3], float("nan")]),
        hostile(values=[*VALUES[:3], float("-inf")]),
        hostile(values=[*VALUES[:3], -(10**400)]),
        hostile(values=[*VALUES[:3], "-1"]),
        hostile(prompt=[5, 6]),
        hostile(prompt=[]),
        hostile(choices=[]),
        hostile(choices={}),
        hostile(choices=[{}]),
        hostile(choices=[None]),
        lambda h: h.say(200, b"[" * 100_000),
        lambda h: h.say(200, b"{"),
        lambda h: h.say(200, b"\xff\xfe"),
        lambda h: h.say(200, 7),
        lambda h: h.say(200, b" " * (1 << 20)),
    ],
)
def test_an_answer_that_cannot_be_one_is_refused(engine, server, answer):
    server.faults[COMPLETIONS] = [hostile()]
    assert engine.generate([opening(engine)], GREEDY)[0].token_ids == tuple(TOKENS)
    server.faults[COMPLETIONS] = [answer]
    with pytest.raises(EngineReplyError):
        engine.generate([opening(engine)], GREEDY)


def test_a_redirect_and_an_error_are_refusals(engine, server):
    def moved(handler):
        handler.send_response(302)
        handler.send_header("location", "http://127.0.0.1:9/")
        handler.send_header("content-length", "0")
        handler.end_headers()

    server.faults[COMPLETIONS] = [moved, lambda h: h.say(500, b"\x1b[31m" + b"x" * 9_999)]
    for status in (302, 500):
        with pytest.raises(EngineRefusalError) as caught:
            engine.generate([opening(engine)], GREEDY)
        assert caught.value.status == status
        assert len(str(caught.value)) < 500
        assert "\x1b" not in str(caught.value)


def test_one_bad_answer_costs_one_episode(engine, server):
    def unlucky(handler):
        body = handler.body
        bad = body["prompt"] == wanted
        handler.say(200, b"{") if bad else handler.say(*server.answer(handler.path, body))

    from evolution.envs.catalogue import make

    craft = make("craft")
    first, _ = craft.reset(TASKS[4].task_id)
    wanted = engine.chat.opening(craft.instruction, first)
    server.faults[COMPLETIONS] = [unlucky]
    server.lasting = True
    played = run_episodes(engine, TASKS, temperature=0.0, seed=7, max_new_tokens=6)
    assert played.dropped == 1
    assert [t.task for t in played.trajectories] == TASKS[:4] + TASKS[5:]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"url": "http://example.org:8000"}, "unprotected"),
        ({"url": "ftp://127.0.0.1"}, "http://"),
        ({"url": "http://user:word@127.0.0.1:1"}, "user"),
        ({"url": "http://127.0.0.1:99999"}, "URL"),
        ({"api_key_file": None}, "api_key_file"),
        ({"model": ""}, "model"),
        ({"model": "other"}, "no base model 'other'"),
        ({"adapter_dir": None}, "adapter_dir"),
        ({"timeout_s": 0.0}, "positive"),
        ({"max_in_flight": 0}, "positive"),
    ],
)
def test_settings_that_cannot_work_are_refused(tiny_base, spec, changes, match):
    with pytest.raises(EngineSetupError, match=match):
        made(tiny_base, spec, **changes)


def test_a_server_that_is_not_the_silos_is_refused(tiny_base, spec, server, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "base", tmp_path)
    with pytest.raises(EngineSetupError, match="loaded from"):
        made(tiny_base, spec)
    monkeypatch.undo()
    server.faults["/v1/models"] = [lambda h: h.say(200, {"data": []})]
    with pytest.raises(EngineSetupError, match="without a key"):
        made(tiny_base, spec)
    spec.adapter_dir.mkdir(mode=0o755)
    spec.adapter_dir.chmod(0o755)
    with pytest.raises(EngineSetupError, match="chmod 700"):
        made(tiny_base, spec)


def test_a_server_that_is_ill_or_away_is_told_apart_from_a_working_one(tiny_base, spec, server):
    server.faults["/health"] = [lambda h: h.say(503, b"")]
    with pytest.raises(EngineUnreachableError, match="not healthy"):
        made(tiny_base, spec)
    server.stop()
    with pytest.raises(EngineUnreachableError, match="cannot be reached"):
        made(tiny_base, spec)


def test_the_key_is_in_no_message(tiny_base, spec, server, caplog, capsys):
    server.key = "another"
    with pytest.raises(EngineServerError) as caught:
        made(tiny_base, spec)
    shown = f"{caught.value!r}{caught.value.__cause__!r}{spec!r}{caplog.text}{capsys.readouterr()}"
    assert KEY not in shown


def test_a_key_is_one_word_in_a_private_file(tmp_path):
    for content in ("", "two words", "\x00", "x" * 5_000):
        path = tmp_path / "odd"
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(EngineSetupError):
            api_key(path)
    path.write_text(KEY)
    path.chmod(0o640)
    with pytest.raises(EngineSetupError, match="chmod 600"):
        api_key(path)
    with pytest.raises(EngineSetupError, match="cannot read"):
        api_key(tmp_path / "missing")


@pytest.mark.parametrize(
    "url", ["https://model.example:8443/", "http://[::1]:8000", "http://localhost:8000"]
)
def test_loopback_and_tls_are_private(url):
    assert require_private(url) == url.rstrip("/")


def test_models_that_are_none_are_refused(tiny_base, spec, server):
    for data in ("x", [None], [{"id": 3}], [{"id": "base", "max_model_len": "9"}]):
        content = json.dumps({"data": data}).encode()
        server.faults["/v1/models"] = [
            lambda h: h.say(401, b""),
            lambda h, content=content: h.say(200, content),
        ]
        with pytest.raises(EngineReplyError):
            made(tiny_base, spec)
